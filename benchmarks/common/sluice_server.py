"""Runs `sluice serve`, which can be killed and restarted on the same port with the same directory."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.common.harness import SLUICE, BenchmarkError, Process, free_port


class SluiceServer:
    """Our own server. Its output is in `log`."""

    name = "sluice serve"

    def __init__(self, directory: Path, *options: str, program: Path = SLUICE) -> None:
        self.directory = directory / "store"
        self.directory.mkdir(parents=True)
        self.port = free_port()
        self.log = directory / "log"
        self.process: Process | None = None
        address = f"127.0.0.1:{self.port}"
        has_other_store = "--discard" in options or "--store" in options
        where = [] if has_other_store else ["--directory", str(self.directory)]
        self._command = [str(program), "serve", "--listen", address, *where, *options]

    def start(self) -> tuple[int, int]:
        """Starts it. Returns when it was started and when it began to listen (CLOCK_MONOTONIC, ns)."""
        listening: list[int] = []
        said = threading.Event()
        started = time.monotonic_ns()
        with open(self.log, "ab") as log:
            process = Process(self._command, {}, stdin=subprocess.DEVNULL, stdout=log.fileno(), stderr=subprocess.PIPE)
        self.process = process

        def read() -> None:
            assert process.pipes.stderr
            with process.pipes.stderr as lines, open(self.log, "ab") as log:
                for line in lines:
                    if line.startswith(b"listening on") and not listening:
                        listening.append(time.monotonic_ns())
                        said.set()
                    log.write(line)
            said.set()

        threading.Thread(target=read, daemon=True).start()
        if not said.wait(10) or not listening:
            raise BenchmarkError(f"sluice serve does not listen: {self.log.read_text(errors='replace')}")
        return started, listening[0]

    def kill(self) -> None:
        """Sends SIGKILL."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        if self.process:
            self.process.end(how)
            self.process = None

    def cpu_ns(self) -> int:
        """The CPU time that the running process has used so far."""
        return self.process.cpu_ns() if self.process else 0

    def settle(self) -> None:
        """Waits until it is idle. After an upload, it computes the recording's digest for a while."""
        deadline = time.monotonic() + 30
        used = -1
        while (now := self.cpu_ns()) != used:
            if time.monotonic() > deadline:
                raise BenchmarkError("sluice serve is still busy 30 s after a transfer")
            used = now
            time.sleep(0.1)

    def stored(self) -> list[Path]:
        """The stored streams, unfinished or complete, without the server's own files."""
        return [path for path in self.directory.glob("[!.]*") if path.is_file() and path.suffix != ".sidecar"]

    def clear(self) -> None:
        """Removes all streams. None may be in progress."""
        for path in self.stored():
            path.unlink()
            path.with_suffix(".sidecar").unlink(missing_ok=True)


@contextlib.contextmanager
def sluice_server(directory: Path, *options: str, program: Path = SLUICE) -> Iterator[SluiceServer]:
    """Runs a server during a `with` block."""
    server = SluiceServer(directory, *options, program=program)
    try:
        server.start()
        yield server
    finally:
        server.stop()
