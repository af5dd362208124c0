#!/usr/bin/env python3
"""`make bench-memory`: tests whether memory stays flat while ten gigabytes pass through client and server.

`sluice put` sends a sparse file, and `sluice pipe` sends zeros from a pipe. The server really writes them to disk, or
into the log of a broker. At each mark, this broker is stopped for two seconds (SIGSTOP), so that the server must let
its clients wait. The result is the growth of the peak (VmHWM) after the first gigabyte, and the resident memory at
several marks.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.harness import SLUICE, BenchmarkError, Pipeline, Process, free_bytes, scratch_directory
from benchmarks.common.nats import Brokers, brokers
from benchmarks.common.report import Report, Section, add_arguments
from benchmarks.common.sluice_server import SluiceServer, sluice_server
from benchmarks.common.tables import Table

GIGABYTE = 10**9
# The time limit from one mark to the next.
PATIENCE = 600.0
#: The allowed growth of the peak after the first gigabyte, in MiB, because the allocator varies a little. With a log,
#: it also depends on what the client library of the brokers buffers in each pause.
ALLOWANCES = {"directory": 1.0, "log": 4.0}


@dataclass(frozen=True)
class Memory:
    """The memory of one process, in MiB (proc_pid_status(5))."""

    resident: float
    private: float  # the part that is not backed by a file
    peak: float

    @staticmethod
    def of(process: Process) -> Memory:
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        kib = {words[0]: int(words[1]) for line in lines if len(words := line.split()) == 3 and words[2] == "kB"}
        return Memory(*(kib[name] / 1024 for name in ("VmRSS:", "RssAnon:", "VmHWM:")))

    def cell(self) -> str:
        return f"{self.resident:.1f} ({self.private:.1f}), {self.peak:.1f}"


@dataclass(frozen=True)
class Mark:
    """The memory of client and server when this number of bytes was stored."""

    stored: int
    client: Memory
    server: Memory


def _put(url: str, file: Path) -> list[list[str]]:
    return [[str(SLUICE), "put", str(file), url, "--resumable", "always", "--progress", "none"]]


def _pipe(url: str, file: Path) -> list[list[str]]:
    generator = ["head", "-c", str(file.stat().st_size), "/dev/zero"]
    return [generator, [str(SLUICE), "pipe", url, "--resumable", "always", "--progress", "none"]]


COMMANDS: dict[str, Callable[[str, Path], list[list[str]]]] = {"put": _put, "pipe": _pipe}


@dataclass(frozen=True)
class Destination:
    """A server, and where it stores the bytes."""

    server: SluiceServer
    broker: Brokers | None = None

    def stored(self) -> int:
        """The stored bytes. A log's messages have headers too, which are less than 1 % here."""
        if not self.broker:
            return sum(path.stat().st_size for path in self.server.stored())
        with urllib.request.urlopen(f"{self.broker.monitors[0]}/jsz", timeout=10) as answer:
            return int(json.load(answer)["bytes"])

    def pause(self) -> None:
        """Stops a broker for two seconds."""
        if self.broker:
            (process,) = self.broker.processes
            process.send(signal.SIGSTOP)
            time.sleep(2)
            process.send(signal.SIGCONT)


@contextlib.contextmanager
def destination(store: str, directory: Path) -> Iterator[Destination]:
    """A server with a directory or a log, during a `with` block."""
    if store == "directory":
        with sluice_server(directory) as server:
            yield Destination(server)
    else:
        directory.mkdir()
        with brokers(1, directory) as broker:
            with sluice_server(directory / "server", "--store", broker.urls, "--replicas", "1") as server:
                yield Destination(server, broker)


def watch(name: str, to: Destination, file: Path, marks: list[int], directory: Path, found: list[Mark]) -> None:
    """Runs one upload and measures both ends at each mark."""
    directory.mkdir()
    server = to.server
    pipeline = Pipeline(COMMANDS[name](f"http://127.0.0.1:{server.port}/file", file), {}, directory)
    client = pipeline.members[-1]
    assert server.process
    try:
        for mark in marks:
            deadline = time.monotonic() + PATIENCE
            # The last mark is slightly before the end, because the client exits at the end and could not be measured.
            wanted = min(mark, file.stat().st_size - 64 * 2**20)
            while (stored := to.stored()) < wanted:
                if client.wait(0.002) or time.monotonic() > deadline:
                    raise BenchmarkError(f"sluice {name} ended or stopped at {stored} bytes: {pipeline.said()}")
            # Before the measurement, so that the first one includes what is buffered in a pause.
            to.pause()
            found.append(Mark(stored, Memory.of(client), Memory.of(server.process)))
            print(f"sluice {name}, {stored / GIGABYTE:.1f} GB: {found[-1].client.cell()}", file=sys.stderr)
        if not pipeline.wait(PATIENCE) or any(member.exit is None or member.exit.code for member in pipeline.members):
            raise BenchmarkError(f"sluice {name} failed: {pipeline.said()}")
    finally:
        pipeline.kill()
    if to.stored() < file.stat().st_size:
        raise BenchmarkError(f"{to.stored()} bytes of {file.stat().st_size} were stored")


def growth(found: list[Mark]) -> dict[str, float]:
    """The growth of the peak at each end from the first mark to the last, in MiB."""
    first, last = found[0], found[-1]
    return {"client": last.client.peak - first.client.peak, "server": last.server.peak - first.server.peak}


def is_flat(name: str, found: list[Mark]) -> bool:
    allowance = ALLOWANCES[name.partition(", ")[2]]
    return all(grown <= allowance for grown in growth(found).values())


def verdict(name: str, found: list[Mark]) -> str:
    words = ", ".join(f"{end} {grown:+.2f} MiB" for end, grown in growth(found).items())
    first, last = (each.stored / GIGABYTE for each in (found[0], found[-1]))
    shape = "flat" if is_flat(name, found) else "NOT FLAT"
    return f"sluice {name}: growth of the peak from {first:.1f} to {last:.1f} GB: {words}: {shape}"


def upload(name: str, store: str, size: int, disk: Path | None, found: list[Mark]) -> None:
    """Runs one command with its own server, so that the peaks of the commands are independent."""
    with scratch_directory(disk) as scratch:
        if free_bytes(scratch) < size * 1.1:
            raise BenchmarkError(f"no space for {size} bytes in {scratch.parent}. Use --disk or --gigabytes.")
        file = scratch / "file"
        with open(file, "wb") as holes:
            holes.truncate(size)
        marks = [mark for mark in (GIGABYTE, 2 * GIGABYTE, 5 * GIGABYTE) if mark < size] + [size]
        with destination(store, scratch / "destination") as to:
            watch(name, to, file, marks, scratch / name, found)


def table(results: dict[str, list[Mark]]) -> Table:
    rows = [
        [f"sluice {name}", f"{mark.stored / GIGABYTE:.1f}", mark.client.cell(), mark.server.cell()]
        for name, found in results.items()
        for mark in found
    ]
    return Table(["RSS (anonymous part), peak; MiB", "GB", "client", "server"], rows)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the memory of client and server during long uploads.")
    add_arguments(parser)
    parser.add_argument("--gigabytes", type=float, default=10, help="gigabytes to send, at least 1.1 (default: 10)")
    parser.add_argument("--stores", default="directory,log", help="stores of the server (default: directory,log)")
    parser.add_argument("--disk", type=Path, help="a directory with enough space (default: the temporary one)")
    options = parser.parse_args()
    stores = options.stores.split(",")
    if unknown := [store for store in stores if store not in ALLOWANCES]:
        parser.error(f"no store {', '.join(unknown)}; there are: {', '.join(ALLOWANCES)}")
    results: dict[str, list[Mark]] = {}
    #: Only the commands that ended. A verdict requires all marks.
    whole: dict[str, list[Mark]] = {}
    report = Report("memory")
    with report.measuring():
        for store in stores:
            for name in COMMANDS:
                title = f"{name}, {store}"
                size = int(options.gigabytes * GIGABYTE)
                upload(name, store, size, options.disk, results.setdefault(title, []))
                whole[title] = results[title]
    note = (
        "Memory of client and server during resumable uploads to disk, in a directory or in the log of one broker. The "
        "broker is stopped for two seconds at each mark. With a directory, growth of up to 1 MiB counts as flat. With "
        "a log, growth of up to 4 MiB counts as flat, because the brokers' client library buffers more in some pauses. "
        "`make bench-memory`."
    )
    verdicts = [verdict(name, found) for name, found in whole.items()]
    report.sections = [Section("Memory of resumable uploads", note, [table(results)], verdicts)]
    report.figures = results
    # Memory that is not flat is a failure too, but its figures are complete and are written.
    return report.finish(options) or int(not all(is_flat(name, found) for name, found in whole.items()))


if __name__ == "__main__":
    sys.exit(main())
