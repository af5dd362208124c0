"""A typical Python program for uploads: an ASGI application that appends each piece to a file as it arrives.

uvicorn or hypercorn runs it in a separate environment, so it imports nothing of ours. Files are stored below STORE.
"""

import os

STORE = os.environ["STORE"]


async def app(scope, receive, send):  # type: ignore[no-untyped-def]
    """Uses blocking writes, because writing to the page cache takes less time than passing the bytes to a thread."""
    if scope["type"] != "http":
        return  # "lifespan": both servers work without it
    path = os.path.join(STORE, os.path.basename(scope["path"]))
    descriptor = os.open(path + ".part", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC)
    try:
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            if message["body"]:
                os.write(descriptor, message["body"])
            if not message.get("more_body"):
                break
    finally:
        os.close(descriptor)
    os.rename(path + ".part", path)
    await send({"type": "http.response.start", "status": 201, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body"})
