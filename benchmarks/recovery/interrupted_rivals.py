"""Tests the tools that people use instead when a server is restarted: ffmpeg in a shell loop, and `curl --retry`.

Each has the options for the fastest recovery: a second between attempts, without end. Each run has one outage, because
curl sends a file again from its first byte, so a later outage would cost it more than an earlier one.
"""

from __future__ import annotations

import os
import shlex
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.feeder import PACED_PIECE, PACED_RATE, Feeder, Pattern
from benchmarks.common.harness import BenchmarkError, Pipeline
from benchmarks.common.instruments import Receiver
from benchmarks.common.recording import Request, read_requests

# How long each streams before the server dies.
BEFORE = 2.0
# The time limit for a rival's recovery after the restart.
PATIENCE = 40.0


@dataclass(frozen=True)
class Rival:
    """A tool that uploads during an outage."""

    key: str
    title: str
    command: Callable[[str, Path], list[str]]  # from a URL and a file of the stream
    is_live: bool  # whether it reads a pipe in real time, instead of the file


def _ffmpeg(url: str, _: Path) -> list[str]:
    words = [
        *("ffmpeg", "-hide_banner", "-nostats", "-loglevel", "error", "-f", "s16le", "-ar", str(PACED_RATE // 2)),
        *("-ac", "1", "-i", "pipe:0", "-c", "copy", "-f", "s16le", "-flush_packets", "1", url),
    ]
    return ["sh", "-c", f"until {shlex.join(words)}; do sleep 1; done"]


def _ffmpeg_recovering(url: str, _: Path) -> list[str]:
    # ffmpeg's own recovery: the fifo muxer reopens the output a second after a failure.
    recovery = [
        *("-f", "fifo", "-fifo_format", "s16le", "-attempt_recovery", "1", "-recover_any_error", "1"),
        *("-recovery_wait_time", "1", "-queue_size", "1000"),
    ]
    return [
        *("ffmpeg", "-hide_banner", "-nostats", "-loglevel", "error", "-f", "s16le", "-ar", str(PACED_RATE // 2)),
        *("-ac", "1", "-i", "pipe:0", "-c", "copy", "-map", "0", *recovery, "-flush_packets", "1", url),
    ]


def _curl(url: str, file: Path, *options: str) -> list[str]:
    # Without the last option it ends after a reset instead of trying again.
    retrying = ["--retry", "1000", "--retry-delay", "1", "--retry-connrefused", "--retry-all-errors"]
    return ["curl", "-sSf", "-T", str(file), "-H", "Expect:", *retrying, *options, url]


def _curl_live(url: str, _: Path) -> list[str]:
    return _curl(url, Path("-"))


def _curl_paced(url: str, file: Path) -> list[str]:
    return _curl(url, file, "--limit-rate", str(PACED_RATE))


PACED = (
    Rival("ffmpeg", "ffmpeg in a loop, 32 kB/s", _ffmpeg, True),
    Rival("ffmpeg-fifo", "ffmpeg, recovery_wait_time 1, 32 kB/s", _ffmpeg_recovering, True),
    # The feeder replaces arecord. Its pipe holds 64 KiB, and bytes beyond that are lost.
    Rival("curl-live", "arecord | curl --retry, 32 kB/s", _curl_live, True),
    Rival("curl", "curl --retry, a file at 32 kB/s", _curl_paced, False),
)
FAST = (Rival("curl-fast", "curl --retry, as fast as it goes", _curl, False),)


@dataclass
class Return:
    """The cost of the outage for a rival."""

    first_ms: float  # from the server's return to its first byte
    new_ms: float  # … to the first byte that it did not have before
    again: int  # bytes sent again until then
    lost: int  # bytes of the stream that the server never received


def interrupted(rival: Rival, pattern: Pattern, file: Path, down: float, before: float, directory: Path) -> Return:
    """Streams for `before` seconds, kills the server, and restarts it `down` seconds later."""
    store = directory / "store"
    store.mkdir(parents=True)
    receiver = Receiver(store)
    receiver.start()
    feeder = Feeder(pattern, is_paced=True) if rival.is_live else None
    command = rival.command(f"http://127.0.0.1:{receiver.port}/stream", file)
    with open(os.devnull, "rb") as nothing:
        pipeline = Pipeline([command], {}, directory, stdin=feeder.reader if feeder else nothing.fileno())
    if feeder:
        feeder.start()
    try:
        receiver.wait_for("first byte", 20)
        time.sleep(before)  # time passes; this waits for no event
        receiver.kill()
        time.sleep(down)
        returned = receiver.start()
        receiver.wait_for("first byte", PATIENCE)
        had = _longest(store)
        # The record contains the time of the awaited bytes. This only waits until they exist.
        deadline = time.monotonic() + PATIENCE
        while not rival.is_live and _last_length(store) <= had:
            if pipeline.members[0].wait(0.05) or time.monotonic() > deadline:
                raise BenchmarkError(f"{rival.title} does not get beyond byte {had}; it said: {pipeline.said()}")
    finally:
        # The shell of a loop and its current child have their own process group.
        os.killpg(pipeline.members[0].pid, signal.SIGKILL)
        pipeline.kill()
        if feeder:
            feeder.finish()
        receiver.stop()
    return _judge(read_requests(store), rival, pattern, returned)


def _bodies(store: Path) -> list[int]:
    return [path.stat().st_size for path in sorted(store.glob("*.body"))]


def _last_length(store: Path) -> int:
    return _bodies(store)[-1]


def _longest(store: Path) -> int:
    return max(_bodies(store)[:-1])


def _judge(requests: list[Request], rival: Rival, pattern: Pattern, returned: int) -> Return:
    *before, last = requests
    first_ms = (last.arrivals[0].ns - returned) / 1e6
    if rival.is_live:
        end = (pattern.offset(before[0].body) or 0) + len(before[0].body)
        start = pattern.offset(last.body[: 4 * PACED_PIECE])
        if start is None:
            # The bytes do not contain a complete piece, which would show their position.
            raise BenchmarkError(f"{rival.title}: {len(last.body)} bytes after the return are too few")
        return Return(first_ms, first_ms, 0, start - end)
    had = max(len(each.body) for each in before)
    new = next(arrival for arrival in last.arrivals if arrival.received > had)
    return Return(first_ms, (new.ns - returned) / 1e6, had, 0)
