#!/usr/bin/env python3
"""`make bench-throughput`: the throughput of resumable uploads compared with plain curl, to the same server.

`sluice put` is compared with `curl -T`, and `sluice pipe` with `curl -T -`, in alternating pairs. The file is in the
page cache. The server's directory is in memory and on disk. Each upload is compared byte by byte with the file.
"""

from __future__ import annotations

import argparse
import filecmp
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.common.harness import (
    MEMORY_FILE_SYSTEM,
    SLUICE,
    BenchmarkError,
    MemorySampler,
    Pipeline,
    free_bytes,
    need,
    scratch_directory,
)
from benchmarks.common.report import Report, Section, add_arguments
from benchmarks.common.sluice_server import SluiceServer, sluice_server
from benchmarks.common.tables import Table, median_and_spread
from benchmarks.live.pipe_path import curl_command, make_file

# A run that takes longer than this has hung.
PATIENCE = 300.0


@dataclass(frozen=True)
class Uploader:
    """A command that uploads a file, from its path or from standard input."""

    title: str
    command: Callable[[str, Path], list[str]]
    resumes: bool


def _put(url: str, file: Path) -> list[str]:
    # With `always`, an upload without the protocol is an error instead of a better figure.
    return [str(SLUICE), "put", str(file), url, "--resumable", "always", "--progress", "none"]


def _pipe(url: str, _: Path) -> list[str]:
    return [str(SLUICE), "pipe", url, "--resumable", "always", "--progress", "none"]


def _curl(url: str, file: Path) -> list[str]:
    return ["curl", "-sSf", "-T", str(file), "-H", "Expect:", url]


PUT = (Uploader("sluice put", _put, True), Uploader("curl -T", _curl, False))
PIPE = (Uploader("sluice pipe", _pipe, True), Uploader("curl -T -", lambda url, _: curl_command(url), False))
PAIRS = {"put": PUT, "pipe": PIPE}
#: The minimum share of curl's throughput.
AIM = 0.95


@dataclass
class Figures:
    """The results of one upload."""

    mib_per_s: float  # from exec to exit
    client_cpu_s_per_gib: float
    server_cpu_s_per_gib: float
    rss_mib: float


COLUMNS = (
    ("MiB/s", "mib_per_s", 0),
    ("client, CPU s/GiB", "client_cpu_s_per_gib", 3),
    ("server, CPU s/GiB", "server_cpu_s_per_gib", 3),
    ("client, RSS MiB", "rss_mib", 1),
)


def upload(uploader: Uploader, server: SluiceServer, file: Path, directory: Path) -> Figures:
    """Sends the file, and compares the stored bytes with it."""
    directory.mkdir()
    server.clear()
    cpu_before = server.cpu_ns()
    with open(file, "rb") as source:
        command = uploader.command(f"http://127.0.0.1:{server.port}/file", file)
        pipeline = Pipeline([command], {}, directory, stdin=source.fileno())
    try:
        memory = MemorySampler(pipeline)
        ended = pipeline.wait(PATIENCE)
        cpu_after = server.cpu_ns()
        memory.finish()
    finally:
        pipeline.kill()
    end = pipeline.members[0].exit
    if not ended or end is None or end.code != 0:
        raise BenchmarkError(f"{uploader.title}: exit {end and end.code}; it said: {pipeline.said()}")
    stored = server.stored()
    if len(stored) != 1 or not filecmp.cmp(stored[0], file, shallow=False):
        sizes = {path.name: path.stat().st_size for path in stored}
        raise BenchmarkError(f"{uploader.title}: the stored bytes differ from the file: {sizes}")
    size = file.stat().st_size
    return Figures(
        mib_per_s=size / 2**20 / ((end.at_ns - pipeline.started_ns) / 1e9),
        client_cpu_s_per_gib=end.cpu_ns / 1e9 / (size / 2**30),
        server_cpu_s_per_gib=(cpu_after - cpu_before) / 1e9 / (size / 2**30),
        rss_mib=memory.peak_rss / 2**20,
    )


@dataclass
class PairRounds:
    """All rounds of one pair to one server."""

    title: str
    rounds: dict[str, list[Figures]]

    def rows(self) -> list[list[str]]:
        rows = []
        for title, figures in self.rounds.items():
            if not figures:
                continue
            cells = [median_and_spread([asdict(each)[what] for each in figures], digits) for _, what, digits in COLUMNS]
            rows.append([f"{title}, {self.title}", *cells])
        return rows

    def verdicts(self) -> list[list[str]]:
        """One row with the ratio of the medians, the spread of the pairs' ratios, and the ratios of processor time at
        both ends. No row before the first pair is complete."""
        (ours_title, ours), (rival_title, rivals) = self.rounds.items()
        ratios = [mine.mib_per_s / other.mib_per_s for mine, other in zip(ours, rivals)]
        if not ratios:
            return []
        middle, *cpu = (
            statistics.median(getattr(each, what) for each in ours)
            / statistics.median(getattr(each, what) for each in rivals)
            for what in ("mib_per_s", "client_cpu_s_per_gib", "server_cpu_s_per_gib")
        )
        return [
            [
                *(f"{ours_title} / {rival_title}, {self.title}", f"{middle:.2f}", median_and_spread(ratios)),
                *(f"≥ {AIM:.2f} {'met' if middle >= AIM else 'MISSED'}", *(f"{each:.2f}" for each in cpu)),
            ]
        ]


def measure(pair: str, server: SluiceServer, file: Path, count: int, scratch: Path, found: PairRounds) -> None:
    """Runs one uncounted upload each, and then the pairs, every other one in reverse order."""
    uploaders = PAIRS[pair]
    for turn in range(-1, count):
        for uploader in uploaders if turn % 2 == 0 else reversed(uploaders):
            print(f"{found.title}, pair {turn + 1} of {count}: {uploader.title}", file=sys.stderr)
            directory = scratch / f"{pair}-{turn}-{uploader.title}".replace(" ", "-")
            figures = upload(uploader, server, file, directory)
            if turn >= 0:
                found.rounds[uploader.title].append(figures)


def measure_at(place: str, durability: str, options: argparse.Namespace, found: list[PairRounds]) -> None:
    """Measures every pair with one server that stores at this place."""
    places = {"memory": MEMORY_FILE_SYSTEM, "disk": options.disk}
    if place not in places:
        raise BenchmarkError(f"no place {place!r}; there are: {', '.join(places)}")
    with scratch_directory(places[place]) as scratch:
        if free_bytes(scratch) < 3 * (options.mebibytes << 20):
            raise BenchmarkError(f"no space for two files of {options.mebibytes} MiB in {scratch.parent}")
        # The file was just written, so it is always read from memory.
        file = scratch / "file"
        make_file(file, options.mebibytes << 20)
        with sluice_server(scratch / "server", "--durability", durability) as server:
            for pair in options.pairs.split(","):
                rounds: dict[str, list[Figures]] = {uploader.title: [] for uploader in PAIRS[pair]}
                found.append(PairRounds(f"{place}, durability {durability}", rounds))
                measure(pair, server, file, options.rounds, scratch, found[-1])


def tables(found: list[PairRounds]) -> list[Table]:
    header = ["upload", *(name for name, _, _ in COLUMNS)]
    ratio_header = ["ratio", "of medians", "pair by pair", "target", "client's CPU", "server's CPU"]
    return [
        Table(header, [row for each in found for row in each.rows()]),
        Table(ratio_header, [row for each in found for row in each.verdicts()]),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare the throughput of resumable uploads with plain curl.")
    add_arguments(parser, rounds=7, of="pairs")
    parser.add_argument("--mebibytes", type=int, default=1024, help="size of the file (default: 1024)")
    parser.add_argument("--pairs", default="put,pipe", help="what to measure (default: put,pipe)")
    parser.add_argument("--places", default="memory,disk", help="where the server stores (default: memory,disk)")
    parser.add_argument("--durability", default="none,interval", help="server's durability (default: none,interval)")
    parser.add_argument("--disk", type=Path, help="a directory on the disk to be used (default: the temporary one)")
    options = parser.parse_args()
    found: list[PairRounds] = []
    report = Report("throughput")
    with report.measuring():
        need("curl")
        for place in options.places.split(","):
            for durability in options.durability.split(","):
                measure_at(place, durability, options, found)
    note = (
        f"{options.mebibytes} MiB, {options.rounds} pairs, to `sluice serve`, measured from exec to exit: median "
        "(minimum–maximum). Sluice uses the resumable protocol (`--resumable always`), and curl sends one plain "
        "request. `make bench-throughput`."
    )
    report.sections = [Section("Throughput of resumable uploads", note, tables(found))]
    report.figures = found
    return report.finish(options)


if __name__ == "__main__":
    sys.exit(main())
