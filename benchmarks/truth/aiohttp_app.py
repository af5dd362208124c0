"""A typical ingest endpoint with aiohttp, with faults of a known size and a log of its actions."""

import asyncio
import json
import os
import time

from aiohttp import web

FAULT = json.loads(os.environ["TRUTH_FAULT"])
LOG = open(os.environ["TRUTH_LOG"], "a", buffering=1)  # noqa: SIM115
connections: dict[object, int] = {}
number = 0


def log(event: str, request: int, **more: object) -> None:
    print(json.dumps({"time_ns": time.time_ns(), "event": event, "request": request, **more}), file=LOG)


async def ingest(request: web.Request) -> web.Response:
    global number
    mine, number = number, number + 1
    transport = request.transport
    connection = connections.setdefault(transport, len(connections))
    log("head", mine, connection=connection)
    if connection >= FAULT.get("connections", 1 << 30):
        await request.read()
        log("response", mine, status=503)
        return web.Response(status=503)
    await asyncio.sleep(FAULT.get("read_delay", 0))
    size = 0
    async for piece in request.content.iter_any():
        size += len(piece)
        if rate := FAULT.get("read_rate"):
            await asyncio.sleep(len(piece) / rate)
    log("end", mine, bytes=size)
    if mine % FAULT.get("cut_every", 1 << 30) == FAULT.get("cut_every", 0) - 1:
        log("cut", mine)
        transport.abort()
        return web.Response()
    await asyncio.sleep(FAULT.get("response_delay", 0))
    refused = mine % FAULT.get("refuse_every", 1 << 30) == FAULT.get("refuse_every", 0) - 1
    log("response", mine, status=503 if refused else 200)
    return web.Response(status=503 if refused else 200)


app = web.Application(client_max_size=1 << 40)
app.router.add_route("*", "/{path:.*}", ingest)
web.run_app(app, host="127.0.0.1", port=int(os.environ["TRUTH_PORT"]), print=None, access_log=None)
