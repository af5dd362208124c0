"""The same endpoint as aiohttp_app.py as an ASGI application, for uvicorn."""

import asyncio
import json
import os
import time

FAULT = json.loads(os.environ["TRUTH_FAULT"])
LOG = open(os.environ["TRUTH_LOG"], "a", buffering=1)  # noqa: SIM115
connections: dict[tuple[str, int], int] = {}
number = 0


def log(event: str, request: int, **more: object) -> None:
    print(json.dumps({"time_ns": time.time_ns(), "event": event, "request": request, **more}), file=LOG)


async def app(scope, receive, send):  # type: ignore[no-untyped-def]
    global number
    if scope["type"] != "http":
        return
    mine, number = number, number + 1
    connection = connections.setdefault(tuple(scope["client"]), len(connections))
    log("head", mine, connection=connection)
    is_beyond = connection >= FAULT.get("connections", 1 << 30)
    if not is_beyond:
        await asyncio.sleep(FAULT.get("read_delay", 0))
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size += len(message["body"])
        if rate := FAULT.get("read_rate"):
            await asyncio.sleep(len(message["body"]) / rate)
        if not message.get("more_body"):
            break
    if not is_beyond:
        log("end", mine, bytes=size)
        if mine % FAULT.get("cut_every", 1 << 30) == FAULT.get("cut_every", 0) - 1:
            log("cut", mine)
            # ASGI has no message for this, so take the transport of uvicorn's cycle of request and response.
            send.__self__.transport.abort()
            # uvicorn notices the end of the connection, and does not try to answer.
            await asyncio.sleep(0.01)
            return
        await asyncio.sleep(FAULT.get("response_delay", 0))
    refused = mine % FAULT.get("refuse_every", 1 << 30) == FAULT.get("refuse_every", 0) - 1
    status = 503 if refused or is_beyond else 200
    log("response", mine, status=status)
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body"})
