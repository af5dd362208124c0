"""Measures the server's cost of thousands of live streams, each an unfinished body of 1 kB/s.

The generator uses only libcurl (LibcurlLoad --plain): one chunked PUT per stream. The streams count as held if each got
a 2xx answer at its end, and every message was sent within the window.
"""

from __future__ import annotations

import json
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.file_servers import FileServer
from benchmarks.common.harness import REPOSITORY, BenchmarkError, Process

LIBCURL_LOAD = REPOSITORY / ".build" / "libcurl-load"
MESSAGE, PERIOD = 1000, 1.0
STARTED_PER_SECOND = 1000


@dataclass
class HeldFigures:
    """The measurements of one run."""

    streams: int
    is_held: bool
    kb_per_stream: float  # growth of the server's own (anonymous) memory
    cpu_us_per_message: float
    complaint: str


def anonymous_memory(process: Process) -> int:
    """The process's own memory in bytes. Pages of its program and of stored files do not count."""
    found = re.search(r"^RssAnon:\s+(\d+)", Path(f"/proc/{process.pid}/status").read_text(), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def hold(server: FileServer, streams: int, seconds: float, scratch: Path) -> HeldFigures:
    """Opens the streams, lets them run for `seconds`, and ends them."""
    server.clear()
    ramp = max(1.0, streams / STARTED_PER_SECOND)
    # The generator's own window begins two messages after the last stream has.
    command = [
        *(str(LIBCURL_LOAD), server.url, "--plain", "--streams", str(streams), "--bytes", str(MESSAGE)),
        *("--every", f"{PERIOD * 1000:g}", "--ramp", f"{ramp:g}", "--duration", f"{seconds:g}"),
    ]
    before = anonymous_memory(server.process)
    output, messages = scratch / "output", scratch / "messages"
    with open(output, "wb") as report, open(messages, "wb") as errors:
        generator = Process(command, stdout=report.fileno(), stderr=errors.fileno())
    try:
        # All streams have begun and have sent a message or two by then. This waits for no event.
        generator.wait(ramp + 2 * PERIOD)
        cpu, since = server.process.cpu_ns(), time.monotonic_ns()
        # Measure until just before the end, so that the server's buffers have had time to fill.
        generator.wait(seconds - 1)
        cpu, passed = server.process.cpu_ns() - cpu, (time.monotonic_ns() - since) / 1e9
        grown = anonymous_memory(server.process) - before
        if not generator.wait(ramp + 60):
            raise BenchmarkError(f"{server.name}: the streams do not end")
    finally:
        generator.end(signal.SIGKILL)
    code = generator.exit.code if generator.exit else -1
    said = messages.read_text(errors="replace").strip().split("\n")[0]
    if code != 0 and not said:
        said = f"{json.loads(output.read_text())['messages']} of the generator's messages"
    return HeldFigures(
        streams=streams,
        is_held=code == 0,
        kb_per_stream=grown / 1000 / streams,
        cpu_us_per_message=cpu / 1e3 / (passed / PERIOD * streams),
        complaint=said if code else "",
    )
