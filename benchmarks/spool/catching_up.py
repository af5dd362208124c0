"""Compares how long a server takes to receive a backlog from a spool and the same bytes from a file."""

from __future__ import annotations

import filecmp
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.harness import SLUICE, BenchmarkError, Process
from benchmarks.common.sluice_server import SluiceServer

#: The time limit for filling the spool, and for sending everything to the server.
PATIENCE = 300.0


@dataclass(frozen=True)
class CatchUp:
    """One round, in which both ways send the same bytes."""

    drain_seconds: float
    curl_seconds: float


def catch_up(directory: Path, size: int, rounds: int, found: list[CatchUp]) -> None:
    """Fills a spool while no server listens, starts the server, and sends. The server is empty in each round."""
    file = directory / "bytes"
    with open(file, "wb") as bytes_of_stream:
        for _ in range(0, size, 1_000_000):
            bytes_of_stream.write(os.urandom(1_000_000))
    server = SluiceServer(directory)
    url = f"http://127.0.0.1:{server.port}"
    for turn in range(rounds):
        print(f"round {turn + 1} of {rounds}: catching up", file=sys.stderr)
        spool = directory / f"spool-{turn}"
        _fill(spool, f"{url}/drained", file, size)
        server.start()
        try:
            ways: list[Callable[[], float]] = [
                lambda: _seconds([str(SLUICE), "spool", "drain", str(spool)]),
                lambda: _seconds(["curl", "-sSf", "-T", str(file), f"{url}/sent"]),
            ]
            order = (0, 1) if turn % 2 == 0 else (1, 0)
            seconds = {way: ways[way]() for way in order}
        finally:
            server.stop()
        for stored in (stored_all := server.stored()):
            if not filecmp.cmp(stored, file, shallow=False):
                raise BenchmarkError(f"{stored.name} differs from the sent bytes")
        if len(stored_all) != 2:
            raise BenchmarkError(f"two recordings should be stored, not {[path.name for path in stored_all]}")
        server.clear()
        found.append(CatchUp(seconds[0], seconds[1]))


def _fill(spool: Path, url: str, file: Path, size: int) -> None:
    """Fills a spool as `sluice pipe` does when it is stopped during an outage."""
    command = [str(SLUICE), "pipe", url, "--spool", str(spool), "--spool-limit", f"{2 * size}B", "--progress", "json"]
    command += ["--finish-timeout", "1s"]
    with open(file, "rb") as source:
        pipe = Process(command, stdin=source.fileno(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert pipe.pipes.stdout
        deadline = time.monotonic() + PATIENCE
        for line in pipe.pipes.stdout:
            event = json.loads(line)
            if event["event"] == "progress" and event["captured"] == size:
                break
            if time.monotonic() > deadline:
                raise BenchmarkError(f"the spool is not full after {PATIENCE:g} s: {event}")
        pipe.send(signal.SIGTERM)
        last = pipe.pipes.stdout.read().splitlines()
        if not pipe.wait(PATIENCE):
            raise BenchmarkError(f"sluice pipe does not end: {last[-1:]}")
    finally:
        pipe.end()


def _seconds(command: list[str]) -> float:
    process = Process(command, stderr=subprocess.PIPE)
    try:
        assert process.pipes.stderr
        said = process.pipes.stderr.read().decode(errors="replace")
        if not process.wait(PATIENCE) or process.exit is None or process.exit.code != 0:
            raise BenchmarkError(f"{' '.join(command[:3])} failed: {said}")
        return (process.exit.at_ns - process.begun_ns) / 1e9
    finally:
        process.end()
