#!/usr/bin/env python3
"""`make bench-foundation`: the cost of FoundationUploads on Linux.

An upload task and a download task are compared with curl, alternately, to and from the same `sluice serve`. Each file
is compared byte by byte. A bound pair with delegates on two run loops is compared with a pipe(2) and two blocking
threads. The memory of a program that imports FoundationUploads is compared with one that imports FoundationNetworking.
The last measurement is the memory while a million pairs are created and dropped.
"""

from __future__ import annotations

import argparse
import filecmp
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.common.harness import (
    MEMORY_FILE_SYSTEM,
    REPOSITORY,
    BenchmarkError,
    Pipeline,
    Process,
    free_bytes,
    need,
    scratch_directory,
)
from benchmarks.common.report import Report, Section, add_arguments
from benchmarks.common.sluice_server import SluiceServer, sluice_server
from benchmarks.common.tables import Table, median_and_spread
from benchmarks.live.pipe_path import make_file

PROGRAM = REPOSITORY / ".build" / "bench" / "release" / "foundation-uploads-benchmark"
IDLE_RIVAL = REPOSITORY / ".build" / "bench" / "release" / "foundation-networking-memory"
# A run that takes longer than this has hung.
PATIENCE = 300.0
OURS = "FoundationUploads"


@dataclass
class Contest:
    """One measurement of our program and of a rival, round by round."""

    title: str
    unit: str
    rival: str
    aim: float | None
    at_least: bool = True
    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)

    def run(self, rounds: int, mine: Callable[[], float], other: Callable[[], float]) -> None:
        """Runs each once without counting it, and then alternately, every other round in reverse order."""
        for number in range(-1, rounds):
            print(f"{self.title}, round {number + 1} of {rounds}", file=sys.stderr)
            turns = [(mine, self.ours), (other, self.theirs)]
            for measure, figures in turns if number % 2 == 0 else reversed(turns):
                figure = measure()
                if number >= 0:
                    figures.append(figure)

    def row(self) -> list[str]:
        ratios = [mine / other for mine, other in zip(self.ours, self.theirs)]
        middle = statistics.median(ratios)
        verdict = "no target"
        if self.aim is not None:
            met = middle >= self.aim if self.at_least else middle <= self.aim
            verdict = f"{'≥' if self.at_least else '≤'} {self.aim:.2f} {'met' if met else 'MISSED'}"
        digits = 0 if min(self.ours) > 20 else 2
        cells = [median_and_spread(figures, digits) for figures in (self.ours, self.theirs)]
        return [f"{self.title}, {self.unit}", cells[0], cells[1], self.rival, median_and_spread(ratios, 2), verdict]


def seconds_of(command: Sequence[str], directory: Path, name: str) -> float:
    """The time from exec to a successful exit."""
    (directory / name).mkdir(exist_ok=True)
    # The temporary file of a download task is on the file system of its target, so moving it copies nothing.
    pipeline = Pipeline([command], {"TMPDIR": str(directory)}, directory / name)
    try:
        ended = pipeline.wait(PATIENCE)
    finally:
        pipeline.kill()
    end = pipeline.members[0].exit
    if not ended or end is None or end.code != 0:
        raise BenchmarkError(f"{command[0]}: exit {end and end.code}; it said: {pipeline.said()}")
    return (end.at_ns - pipeline.started_ns) / 1e9


def compare_files(one: Path, other: Path) -> None:
    if not filecmp.cmp(one, other, shallow=False):
        raise BenchmarkError(f"{one} differs from {other}: {one.stat().st_size} and {other.stat().st_size} bytes")


def measure_upload(server: SluiceServer, file: Path, scratch: Path, rounds: int) -> Contest:
    contest = Contest("upload task", "MiB/s", "curl -T", 0.95)
    url = f"http://127.0.0.1:{server.port}/uploaded"
    mebibytes = file.stat().st_size / 2**20

    def upload(command: Sequence[str]) -> float:
        server.clear()
        server.settle()
        taken = seconds_of(command, scratch, "upload")
        stored = server.stored()
        if len(stored) != 1:
            raise BenchmarkError(f"stored after one upload: {[path.name for path in stored]}")
        compare_files(stored[0], file)
        return mebibytes / taken

    contest.run(
        rounds,
        lambda: upload([str(PROGRAM), "upload", str(file), url]),
        lambda: upload(["curl", "-sSf", "-o", "/dev/null", "-T", str(file), "-H", "Expect:", url]),
    )
    return contest


def measure_download(server: SluiceServer, file: Path, scratch: Path, rounds: int) -> Contest:
    contest = Contest("download task", "MiB/s", "curl -o", 0.95)
    server.clear()
    url = f"http://127.0.0.1:{server.port}/source"
    seconds_of(["curl", "-sSf", "-o", "/dev/null", "-T", str(file), "-H", "Expect:", url], scratch, "store")
    target = scratch / "fetched"
    address = f"http://127.0.0.1:{server.port}/{server.stored()[0].name}"

    def download(command: Sequence[str]) -> float:
        target.unlink(missing_ok=True)
        server.settle()
        taken = seconds_of(command, scratch, "download")
        compare_files(target, file)
        return file.stat().st_size / 2**20 / taken

    contest.run(
        rounds,
        lambda: download([str(PROGRAM), "download", address, str(target)]),
        lambda: download(["curl", "-sSf", "-o", str(target), address]),
    )
    return contest


def measure_pair(size: int, count: int, rounds: int, aim: float | None) -> Contest:
    contest = Contest(f"bound pair, {size} bytes", "MB/s", "pipe(2)", aim)

    def measure(kind: str) -> float:
        command = [str(PROGRAM), kind, str(count), str(size)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        if done.returncode != 0:
            raise BenchmarkError(f"{' '.join(command)}: exit {done.returncode}; it said: {done.stderr}")
        return float(done.stdout) / 1e6

    contest.run(rounds, lambda: measure("pair"), lambda: measure("pipe"))
    return contest


def measure_memory(rounds: int) -> Contest:
    contest = Contest("memory after the start", "MiB", "FoundationNetworking", 1.1, at_least=False)

    def resident(command: Sequence[str]) -> float:
        process = Process(command, {}, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            said = process.pipes.stdout
            if said is None or said.readline() != b"ready\n":
                raise BenchmarkError(f"{command[0]} is not ready")
            lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
            return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
        finally:
            process.end()

    contest.run(rounds, lambda: resident([str(PROGRAM), "memory"]), lambda: resident([str(IDLE_RIVAL)]))
    return contest


def count_pairs(count: int) -> str:
    """One sentence about the memory while this many pairs are created and dropped."""
    done = subprocess.run([str(PROGRAM), "pairs", str(count)], capture_output=True, text=True, timeout=PATIENCE)
    if done.returncode != 0:
        raise BenchmarkError(f"{count} pairs: exit {done.returncode}; it said: {done.stderr}")
    kibibytes = [int(line) for line in done.stdout.split()]
    first, last = kibibytes[0], kibibytes[-1]
    return f"{count:,} bound pairs in succession: {first} KiB resident after a tenth of them, {last} KiB at the end"


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the cost of FoundationUploads.")
    add_arguments(parser, rounds=5, of="turns of each")
    parser.add_argument("--mebibytes", type=int, default=1024, help="size of the file (default: 1024)")
    parser.add_argument("--pairs", type=int, default=1_000_000, help="pairs to create and drop (default: 1000000)")
    options = parser.parse_args()
    contests: list[Contest] = []
    remarks: list[str] = []
    report = Report("foundation")
    with report.measuring():
        need("curl")
        with scratch_directory(MEMORY_FILE_SYSTEM) as scratch:
            if free_bytes(scratch) < 3 * (options.mebibytes << 20):
                raise BenchmarkError(f"no space for three files of {options.mebibytes} MiB in {scratch.parent}")
            file = scratch / "file"
            make_file(file, options.mebibytes << 20)
            with sluice_server(scratch / "server", "--durability", "none", "--allow-download") as server:
                contests.append(measure_upload(server, file, scratch, options.rounds))
                contests.append(measure_download(server, file, scratch, options.rounds))
        contests.append(measure_pair(64 << 10, 4_000_000_000, options.rounds, 1.0))
        contests.append(measure_pair(4096, 400_000_000, options.rounds, None))
        contests.append(measure_memory(options.rounds))
        remarks.append(count_pairs(options.pairs))
    header = ["measurement", OURS, "rival", "name of the rival", "ratio, round by round", "target"]
    note = (
        f"{options.mebibytes} MiB by tasks of `URLSession` to and from an idle `sluice serve` in memory, from exec to "
        "exit. A bound pair with delegates on two run loops is compared with a pipe and two blocking threads. The "
        "memory is the proportional memory of a program that creates a session's configuration. "
        f"Median of {options.rounds} rounds (minimum–maximum). `make bench-foundation`."
    )
    report.sections = [Section("FoundationUploads", note, [Table(header, [each.row() for each in contests])], remarks)]
    report.figures = contests
    return report.finish(options)


if __name__ == "__main__":
    sys.exit(main())
