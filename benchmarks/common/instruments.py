"""Runs the measuring servers as separate processes, which report events, accept orders and can be killed."""

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
    """A program of this package. It prints JSON lines to standard output, and reads orders from standard input."""

    def __init__(self, program: str, *arguments: str) -> None:
        self.port = free_port()
        self.events: list[dict[str, object]] = []
        self._command = [sys.executable, "-m", f"benchmarks.common.{program}", "--port", str(self.port), *arguments]
        self._process: Process | None = None
        self._lines: queue.Queue[dict[str, object]] = queue.Queue()

    def start(self) -> int:
        """Starts or restarts it on its port. Returns when it began to listen (CLOCK_MONOTONIC, ns)."""
        path = {"PYTHONPATH": str(REPOSITORY)}
        self._process = Process(self._command, path, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        with contextlib.suppress(PermissionError):
            # It records arrival times, so it must not wait until the measured processes release the processor.
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
        """Waits for the next event of that name. It and all events before it are kept in `events`."""
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
        """Sends SIGKILL, so that only the kernel closes its connections."""
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
    """relay.py, which delays, resets and records the connections between a client and a server."""

    def __init__(self, upstream: int, round_trip: float = 0, record: Path | None = None) -> None:
        """`upstream` is the server's port. `round_trip` is in seconds. `record` is a directory for the requests."""
        recording = ["--record", str(record)] if record else []
        super().__init__("relay", "--upstream", str(upstream), "--round-trip", f"{round_trip:g}", *recording)
