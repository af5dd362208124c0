"""The measuring servers as processes of their own, which say what happens, take orders and can be killed for good."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from benchmarks.common.harness import REPOSITORY, BenchmarkError, Process, free_port


class Instrument:
    """A program of this package: JSON lines on its standard output, orders as lines on its standard input."""

    def __init__(self, program: str, *arguments: str) -> None:
        self.port = free_port()
        self.events: list[dict[str, object]] = []
        self._command = [sys.executable, "-m", f"benchmarks.common.{program}", "--port", str(self.port), *arguments]
        self._process: Process | None = None
        self._lines: queue.Queue[dict[str, object]] = queue.Queue()

    def start(self) -> int:
        """Starts it, again on the same port if it ran before; returns since when it listens (CLOCK_MONOTONIC, ns)."""
        path = {"PYTHONPATH": str(REPOSITORY)}
        self._process = Process(self._command, path, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        with contextlib.suppress(PermissionError):
            # It stamps arrivals: a stamp must not wait behind the processes that are measured.
            os.setpriority(os.PRIO_PROCESS, self._process.pid, -10)
        self._lines = queue.Queue()
        threading.Thread(target=self._read, args=(self._process, self._lines), daemon=True).start()
        return int(str(self.wait_for("listening", 10)["ns"]))

    @staticmethod
    def _read(process: Process, lines: queue.Queue[dict[str, object]]) -> None:
        assert process.pipes.stdout
        with process.pipes.stdout as output:
            for line in output:
                lines.put(json.loads(line))

    def wait_for(self, event: str, seconds: float) -> dict[str, object]:
        """The next event of that name; those before it are kept in `events`."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                found = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise BenchmarkError(f"no {event!r} at the server within {seconds:g} s") from None
            self.events.append(found)
            if found["event"] == event:
                return found

    def order(self, words: str) -> None:
        assert self._process and self._process.pipes.stdin
        self._process.pipes.stdin.write(words.encode() + b"\n")
        self._process.pipes.stdin.flush()

    def kill(self) -> None:
        """SIGKILL: no goodbye on its connections but what the kernel says."""
        self._close(signal.SIGKILL)

    def stop(self) -> None:
        self._close(signal.SIGTERM)

    def _close(self, how: signal.Signals) -> None:
        if self._process:
            self._process.end(how)
            if self._process.pipes.stdin:
                self._process.pipes.stdin.close()
            self._process = None


class Receiver(Instrument):
    """receiver.py, the neutral server."""

    def __init__(self, directory: Path, bounded: bool = False) -> None:
        super().__init__("receiver", "--directory", str(directory), *(["--bounded"] if bounded else []))
        self.directory = directory


class Relay(Instrument):
    """relay.py, between a client and a server: it delays, resets, records."""

    def __init__(self, upstream: int, round_trip: float = 0, record: Path | None = None) -> None:
        """`upstream` is the server's port, `round_trip` in seconds; requests are recorded in the directory `record`."""
        recording = ["--record", str(record)] if record else []
        super().__init__("relay", "--upstream", str(upstream), "--round-trip", f"{round_trip:g}", *recording)
