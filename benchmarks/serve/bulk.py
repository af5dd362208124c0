"""Measures the bytes per CPU second of one to four simultaneous long uploads by curl into a directory in memory."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.file_servers import FileServer
from benchmarks.common.harness import BenchmarkError, Process

# A run that takes longer than this has hung.
PATIENCE = 120.0


@dataclass
class BulkFigures:
    """The measurements of the uploads of one round."""

    mib_per_s: float  # all uploads together, from the first exec to the last exit
    cpu_s_per_gib: float  # the server's


def upload(server: FileServer, file: Path, parallel: int, scratch: Path) -> BulkFigures:
    """Sends the file `parallel` times at once, and checks that as many copies of its size are stored."""
    server.clear()
    before = server.process.cpu_ns()
    with open(scratch / "curl", "wb") as messages:
        clients = [
            Process(
                ["curl", "-sSf", "-T", str(file), "-H", "Expect:", f"{server.url}-{number}"],
                stdout=messages.fileno(),
                stderr=messages.fileno(),
            )
            for number in range(parallel)
        ]
    try:
        for client in clients:
            if not client.wait(PATIENCE) or client.exit is None or client.exit.code != 0:
                said = (scratch / "curl").read_text(errors="replace").strip()
                raise BenchmarkError(f"{server.name}: curl ended with {client.exit}; it said: {said}")
        # A server may still rename or sync a file after its answer. This is so little work that it is not counted.
        spent = server.process.cpu_ns() - before
    finally:
        for client in clients:
            client.end(signal.SIGKILL)
    size = file.stat().st_size
    sizes = [path.stat().st_size for path in server.stored()]
    if sum(1 for each in sizes if each == size) < parallel:
        raise BenchmarkError(f"{server.name}: {parallel} × {size} bytes were sent, but the stored files have {sizes}")
    seconds = (max(client.exit.at_ns for client in clients if client.exit) - _begun(clients)) / 1e9
    total = parallel * size
    return BulkFigures(total / 2**20 / seconds, spent / 1e9 / (total / 2**30))


def _begun(clients: list[Process]) -> int:
    return min(client.begun_ns for client in clients)
