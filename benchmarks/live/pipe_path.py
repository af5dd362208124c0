"""Uploads a file from standard input with `sluice pipe` or `curl -T -`, to the same server."""

from __future__ import annotations

import filecmp
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.common.file_servers import FileServer
from benchmarks.common.harness import SLUICE, BenchmarkError, MemorySampler, Pipeline

# A run that takes longer than this has hung.
PATIENCE = 60.0


@dataclass
class PipeFigures:
    """The results of one upload."""

    mib_per_s: float  # from exec to exit
    cpu_s_per_gib: float
    rss_mib: float
    pss_mib: float

    def json(self) -> dict[str, object]:
        return asdict(self)


def curl_command(url: str) -> list[str]:
    return ["curl", "-sSf", "-T", "-", "-H", "Expect:", url]


def sluice_command(url: str) -> list[str]:
    # PUT, because curl sends it and nginx stores it.
    return [str(SLUICE), "pipe", url, "--method", "PUT", "--progress", "none"]


COMMANDS: dict[str, Callable[[str], list[str]]] = {"sluice pipe": sluice_command, "curl -T -": curl_command}


def make_file(path: Path, size: int) -> None:
    """Writes `size` bytes of noise, which cannot be compressed."""
    block = os.urandom(1 << 20)
    with open(path, "wb") as file:
        for number in range(-(-size // len(block))):
            # All blocks differ, so that a comparison detects swapped or repeated blocks.
            file.write(number.to_bytes(8, "little") + block[8:])
        file.truncate(size)


def upload(name: str, server: FileServer, file: Path, directory: Path) -> PipeFigures:
    """Sends the file, and compares the stored bytes with it."""
    directory.mkdir(parents=True)
    server.clear()
    url = f"http://127.0.0.1:{server.port}/file"
    with open(file, "rb") as source:
        pipeline = Pipeline([COMMANDS[name](url)], {}, directory, stdin=source.fileno())
    try:
        memory = MemorySampler(pipeline)
        ended = pipeline.wait(PATIENCE)
        memory.finish()
    finally:
        pipeline.kill()
    end = pipeline.members[0].exit
    if not ended or end is None or end.code != 0:
        raise BenchmarkError(f"{name} to {server.name}: exit {end and end.code}; it said: {pipeline.said()}")
    size = file.stat().st_size
    if not any(path.stat().st_size == size and filecmp.cmp(path, file, shallow=False) for path in server.stored()):
        sizes = {path.name: path.stat().st_size for path in server.stored()}
        raise BenchmarkError(f"{name} to {server.name}: the stored files differ from the {size} bytes sent: {sizes}")
    seconds = (end.at_ns - pipeline.started_ns) / 1e9
    return PipeFigures(
        mib_per_s=size / 2**20 / seconds,
        cpu_s_per_gib=end.cpu_ns / 1e9 / (size / 2**30),
        rss_mib=memory.peak_rss / 2**20,
        pss_mib=memory.peak_pss / 2**20,
    )
