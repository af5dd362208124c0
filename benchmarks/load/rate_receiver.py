"""Runs rate-receiver, the neutral judge of load testers, and reads its results for windows of time."""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import dataclass

from benchmarks.common.harness import REPOSITORY, BenchmarkError, Process, free_port

PROGRAM = REPOSITORY / ".build" / "rate-receiver"


@dataclass
class Window:
    """The results of a window of time, for the requests that existed throughout it."""

    seconds: float
    streams: int
    held: int  # streams whose bytes arrived at their rate within 10 %
    live: int  # held streams that were never silent for longer than allowed
    bytes: int  # of bodies, on all connections together
    requests: int  # that began within the window
    rate_median: float  # bytes per second of a stream
    silence_p99_ms: float  # of the streams' longest silences
    cpu_share: float  # the receiver's own share of one processor


class RateReceiver:
    """The receiver, which runs during a `with` block."""

    def __init__(self, address: str = "127.0.0.1") -> None:
        if not PROGRAM.exists():
            raise BenchmarkError(f"{PROGRAM} does not exist. Run make .build/rate-receiver.")
        self.port = free_port()
        self.url = f"http://{address}:{self.port}/stream"
        self.process = Process([str(PROGRAM), str(self.port), address], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._opened_cpu = 0
        self._opened = 0
        self._answer()

    def __enter__(self) -> RateReceiver:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.end(seconds=2)
        for pipe in (self.process.pipes.stdin, self.process.pipes.stdout):
            if pipe:
                pipe.close()

    def open(self) -> int:
        """Begins a window. Returns how many requests are being received."""
        streams = int(str(self._order("open")["streams"]))
        self._opened_cpu, self._opened = self.process.cpu_ns(), time.monotonic_ns()
        return streams

    def close(self, rate: float, silence: float = 1) -> Window:
        """Ends the window. `rate` is in bytes per second. `silence` is the longest silence of a live
        stream, in seconds."""
        spent, passed = self.process.cpu_ns() - self._opened_cpu, time.monotonic_ns() - self._opened
        found = self._order(f"close {rate:g} {silence * 1000:g}")
        return Window(
            seconds=float(found["seconds"]),
            streams=int(found["streams"]),
            held=int(found["held"]),
            live=int(found["live"]),
            bytes=int(found["bytes"]),
            requests=int(found["requests"]),
            rate_median=float(found["stream_bytes_per_second"]["p50"]),
            silence_p99_ms=float(found["longest_silence_ms"]["p99"]),
            cpu_share=spent / passed,
        )

    def _order(self, words: str) -> dict:
        orders = self.process.pipes.stdin
        assert orders
        orders.write(words.encode() + b"\n")
        orders.flush()
        return self._answer()

    def _answer(self) -> dict:
        answers = self.process.pipes.stdout
        assert answers
        line = answers.readline()
        if not line:
            raise BenchmarkError("rate-receiver has ended")
        return dict(json.loads(line))
