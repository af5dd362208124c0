#!/usr/bin/env python3
"""`make bench-memory`: whether memory is flat while ten gigabytes pass through client and server.

`sluice put` sends a file of holes, `sluice pipe` zeros from a pipe; the server writes them to disk for real. What
counts is how much the peak (VmHWM) grows after the first gigabyte, and what is resident on the way.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.common.harness import SLUICE, BenchmarkError, Pipeline, Process, end_on_signals, scratch_directory
from benchmarks.common.report import machine, markdown_table, print_table, write_section
from benchmarks.common.sluice_server import SluiceServer, sluice_server

GIGABYTE = 10**9
# From one mark to the next at most.
PATIENCE = 600.0
#: The peak may grow by so much after the first gigabyte, in MiB: the allocator's mood, and nothing that adds up.
ALLOWANCE = 1.0


@dataclass(frozen=True)
class Memory:
    """Of one process, in MiB (proc_pid_status(5))."""

    resident: float
    private: float  # of it, not backed by a file
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
    """How client and server stood when so many bytes were stored."""

    stored: int
    client: Memory
    server: Memory


def _put(url: str, file: Path) -> list[list[str]]:
    return [[str(SLUICE), "put", str(file), url, "--resumable", "always", "--progress", "none"]]


def _pipe(url: str, file: Path) -> list[list[str]]:
    generator = ["head", "-c", str(file.stat().st_size), "/dev/zero"]
    return [generator, [str(SLUICE), "pipe", url, "--resumable", "always", "--progress", "none"]]


COMMANDS: dict[str, Callable[[str, Path], list[list[str]]]] = {"put": _put, "pipe": _pipe}


def watch(name: str, server: SluiceServer, file: Path, marks: list[int], directory: Path) -> list[Mark]:
    """Runs one upload and looks at both ends each time another mark is passed."""
    directory.mkdir()
    server.clear()
    pipeline = Pipeline(COMMANDS[name](f"http://127.0.0.1:{server.port}/file", file), {}, directory)
    client = pipeline.members[-1]
    assert server.process
    found: list[Mark] = []
    try:
        for mark in marks:
            deadline = time.monotonic() + PATIENCE
            # The last mark is the end, at which the client is gone before it can be looked at: a little earlier, then.
            wanted = min(mark, file.stat().st_size - 64 * 2**20)
            while (stored := sum(path.stat().st_size for path in server.stored())) < wanted:
                if client.wait(0.002) or time.monotonic() > deadline:
                    raise BenchmarkError(f"sluice {name} ended or stopped at {stored} bytes: {pipeline.said()}")
            found.append(Mark(stored, Memory.of(client), Memory.of(server.process)))
            print(f"sluice {name}, {stored / GIGABYTE:.1f} GB: {found[-1].client.cell()}", file=sys.stderr)
        if not pipeline.wait(PATIENCE) or any(member.exit is None or member.exit.code for member in pipeline.members):
            raise BenchmarkError(f"sluice {name} did not end well: {pipeline.said()}")
    finally:
        pipeline.kill()
    (stored_file,) = server.stored()
    if stored_file.stat().st_size != file.stat().st_size:
        raise BenchmarkError(f"{stored_file.stat().st_size} bytes of {file.stat().st_size} were stored")
    return found


def verdict(name: str, found: list[Mark]) -> str:
    first, last = found[0], found[-1]
    growth = {"client": last.client.peak - first.client.peak, "server": last.server.peak - first.server.peak}
    words = ", ".join(f"{end} {grown:+.2f} MiB" for end, grown in growth.items())
    met = all(grown <= ALLOWANCE for grown in growth.values())
    return f"sluice {name}: peak from {first.stored / GIGABYTE:.1f} to {last.stored / GIGABYTE:.1f} GB: {words}: " + (
        "flat" if met else "NOT FLAT"
    )


HEADER = ["RSS (of it anonymous), peak; MiB", "GB", "client", "server"]


def main() -> int:
    parser = argparse.ArgumentParser(description="Watch the memory of both ends while much passes through.")
    parser.add_argument("--gigabytes", type=float, default=10, help="to be sent, at least 1.1 (default: 10)")
    parser.add_argument("--disk", type=Path, help="a directory with room for them (default: the temporary one)")
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    parser.add_argument("--write", action="store_true", help="write the table into docs/benchmarks.md")
    options = parser.parse_args()
    end_on_signals()
    size = int(options.gigabytes * GIGABYTE)
    marks = [mark for mark in (GIGABYTE, 2 * GIGABYTE, 5 * GIGABYTE) if mark < size] + [size]
    results: dict[str, list[Mark]] = {}
    try:
        for name in COMMANDS:
            with scratch_directory(options.disk) as scratch:
                room = os.statvfs(scratch)
                if room.f_bavail * room.f_frsize < size * 1.1:
                    raise BenchmarkError(f"no room for {size} bytes in {scratch.parent}: --disk or --gigabytes")
                file = scratch / "file"
                with open(file, "wb") as holes:
                    holes.truncate(size)
                # A server for each: the peak of the one is not the other's.
                with sluice_server(scratch / "server") as server:
                    results[name] = watch(name, server, file, marks, scratch / name)
    except BenchmarkError as error:
        print(f"memory: {error}", file=sys.stderr)
        return 1
    rows = [
        [f"sluice {name}", f"{mark.stored / GIGABYTE:.1f}", mark.client.cell(), mark.server.cell()]
        for name, found in results.items()
        for mark in found
    ]
    verdicts = [verdict(name, found) for name, found in results.items()]
    print("; ".join(f"{name} {value}" for name, value in machine().items() if value), end="\n\n")
    print_table(HEADER, rows)
    print("\n".join(verdicts))
    if options.json:
        figures = {name: [asdict(mark) for mark in found] for name, found in results.items()}
        options.json.write_text(json.dumps({"machine": machine(), "figures": figures}, indent=2) + "\n")
    if options.write:
        note = "Both ends while the bytes pass, through the resumable protocol, to disk. `make bench-memory`."
        table = markdown_table(HEADER, rows)
        write_section("Memory of resumable uploads", f"{note}\n\n{table}\n\n{'; '.join(verdicts)}.")
    return 0 if all("NOT" not in line for line in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
