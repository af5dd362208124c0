#!/usr/bin/env python3
"""`make bench-throughput`: a file through the whole resumable protocol, beside plain curl, to the same `sluice serve`.

`sluice put` beside `curl -T`, and `sluice pipe` beside `curl -T -`: pair by pair, in turn, the file in the page cache,
the server's directory in memory and on disk. Each upload is compared with the file, byte for byte.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import os
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.common.harness import (
    SLUICE,
    BenchmarkError,
    MemorySampler,
    Pipeline,
    end_on_signals,
    need,
    scratch_directory,
)
from benchmarks.common.report import machine, markdown_table, median_and_spread, print_table, write_section
from benchmarks.common.sluice_server import SluiceServer, sluice_server
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
    # Always: were the protocol not used, that would be an error and not a better figure.
    return [str(SLUICE), "put", str(file), url, "--resumable", "always", "--progress", "none"]


def _pipe(url: str, _: Path) -> list[str]:
    return [str(SLUICE), "pipe", url, "--resumable", "always", "--progress", "none"]


def _curl(url: str, file: Path) -> list[str]:
    return ["curl", "-sSf", "-T", str(file), "-H", "Expect:", url]


PUT = (Uploader("sluice put", _put, True), Uploader("curl -T", _curl, False))
PIPE = (Uploader("sluice pipe", _pipe, True), Uploader("curl -T -", lambda url, _: curl_command(url), False))
PAIRS = {"put": PUT, "pipe": PIPE}
#: At least this share of curl's throughput.
AIM = 0.95


@dataclass
class Figures:
    """What one upload showed."""

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
    """Sends the file and compares what was stored with it."""
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
        raise BenchmarkError(f"{uploader.title}: what was stored is not the file: {sizes}")
    size = file.stat().st_size
    return Figures(
        mib_per_s=size / 2**20 / ((end.at_ns - pipeline.started_ns) / 1e9),
        client_cpu_s_per_gib=end.cpu_ns / 1e9 / (size / 2**30),
        server_cpu_s_per_gib=(cpu_after - cpu_before) / 1e9 / (size / 2**30),
        rss_mib=memory.peak_rss / 2**20,
    )


@dataclass
class Section:
    """All rounds of one pair to one server."""

    title: str
    rounds: dict[str, list[Figures]]

    def rows(self) -> list[list[str]]:
        rows = []
        for title, figures in self.rounds.items():
            cells = [median_and_spread([asdict(each)[what] for each in figures], digits) for _, what, digits in COLUMNS]
            rows.append([f"{title}, {self.title}", *cells])
        return rows

    def verdict(self) -> list[str]:
        """The ratio of the medians, the spread of the pairs' ratios, and of the processor time at both ends."""
        (ours_title, ours), (rival_title, rivals) = self.rounds.items()
        ratios = [mine.mib_per_s / other.mib_per_s for mine, other in zip(ours, rivals)]
        middle = statistics.median(each.mib_per_s for each in ours) / statistics.median(
            each.mib_per_s for each in rivals
        )
        cpu = [
            statistics.median(getattr(each, name) for each in ours)
            / statistics.median(getattr(each, name) for each in rivals)
            for name in ("client_cpu_s_per_gib", "server_cpu_s_per_gib")
        ]
        return [
            *(f"{ours_title} / {rival_title}, {self.title}", f"{middle:.2f}", median_and_spread(ratios)),
            *(f"≥ {AIM:.2f} {'met' if middle >= AIM else 'MISSED'}", *(f"{each:.2f}" for each in cpu)),
        ]


def measure(pair: str, server: SluiceServer, title: str, file: Path, rounds: int, scratch: Path) -> Section:
    """One upload each that is not counted, then pair by pair: every other pair the other way round."""
    uploaders = PAIRS[pair]
    section = Section(title, {uploader.title: [] for uploader in uploaders})
    for turn in range(-1, rounds):
        for uploader in uploaders if turn % 2 == 0 else reversed(uploaders):
            print(f"{title}, pair {turn + 1} of {rounds}: {uploader.title}", file=sys.stderr)
            directory = scratch / f"{pair}-{title}-{turn}-{uploader.title}".replace(" ", "-")
            figures = upload(uploader, server, file, directory)
            if turn >= 0:
                section.rounds[uploader.title].append(figures)
    return section


def _free_bytes(directory: Path) -> int:
    room = os.statvfs(directory)
    return room.f_bavail * room.f_frsize


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure throughput through the resumable protocol beside plain curl.")
    parser.add_argument("--rounds", type=int, default=7, help="pairs (default: 7)")
    parser.add_argument("--mebibytes", type=int, default=1024, help="size of the file (default: 1024)")
    parser.add_argument("--pairs", default="put,pipe", help="what to measure (default: put,pipe)")
    parser.add_argument("--places", default="memory,disk", help="where the server stores (default: memory,disk)")
    parser.add_argument("--durability", default="none,interval", help="of the server (default: none,interval)")
    parser.add_argument("--disk", type=Path, help="a directory on the disk to be used (default: the temporary one)")
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/benchmarks.md")
    options = parser.parse_args()
    end_on_signals()
    sections: list[Section] = []
    failed = False
    places = {"memory": Path("/dev/shm"), "disk": options.disk}
    try:
        need("curl")
        for place in options.places.split(","):
            if place not in places:
                raise BenchmarkError(f"no place {place!r}; there are: {', '.join(places)}")
            for durability in options.durability.split(","):
                with scratch_directory(places[place]) as scratch:
                    if _free_bytes(scratch) < 3 * (options.mebibytes << 20):
                        raise BenchmarkError(f"no room for two files of {options.mebibytes} MiB in {scratch.parent}")
                    # Read from memory either way: one write of it ago.
                    file = scratch / "file"
                    make_file(file, options.mebibytes << 20)
                    with sluice_server(scratch / "server", "--durability", durability) as server:
                        for pair in options.pairs.split(","):
                            title = f"{place}, durability {durability}"
                            sections.append(measure(pair, server, title, file, options.rounds, scratch))
    except BenchmarkError as error:
        # What was measured until then is shown all the same.
        print(f"throughput: {error}", file=sys.stderr)
        failed = True
    tables = [
        (["upload", *(name for name, _, _ in COLUMNS)], [row for section in sections for row in section.rows()]),
        (
            ["ratio", "of medians", "pair by pair", "aim", "client's CPU", "server's CPU"],
            [section.verdict() for section in sections],
        ),
    ]
    print("; ".join(f"{name} {value}" for name, value in machine().items() if value), end="\n\n")
    for header, rows in tables:
        print_table(header, rows)
    if options.json:
        figures = [
            {"title": each.title, "rounds": {key: [asdict(one) for one in found] for key, found in each.rounds.items()}}
            for each in sections
        ]
        options.json.write_text(json.dumps({"machine": machine(), "figures": figures}, indent=2) + "\n")
    if options.write and not failed:
        note = (
            f"{options.mebibytes} MiB, {options.rounds} pairs, to `sluice serve`; from exec to exit, median "
            "(least–most). Ours through the whole protocol (`--resumable always`), curl's as one plain request."
            " `make bench-throughput`."
        )
        body = "\n\n".join(markdown_table(header, rows) for header, rows in tables)
        write_section("Throughput of resumable uploads", f"{note}\n\n{body}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
