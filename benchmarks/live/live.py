#!/usr/bin/env python3
"""`make bench`: ours beside what people use today, on the same device, in one run, turn by turn.

Each round runs every contender once, one after the other, so that what the machine does meanwhile happens to all. A
ratio is ours to a rival's of the same round; the table gives the median of the rounds and the spread.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.file_servers import FileServer, nginx, sluice_serve
from benchmarks.common.harness import SLUICE, BenchmarkError, end_on_signals, need, scratch_directory
from benchmarks.common.report import machine, markdown_table, median_and_spread, print_table, write_section
from benchmarks.live import contenders, pipe_path
from benchmarks.live.beds import Bed, PulseBed, TestMicrophoneBed
from benchmarks.live.contenders import ARECORD, FFMPEG, GSTREAMER, SLUICE_ARECORD, SLUICE_QUICK, Contender
from benchmarks.live.live_path import Figures, count_syscalls, measure
from benchmarks.live.pipe_path import PipeFigures

RATE, CHANNELS = 48_000, 1
SYSCALL_SECONDS = 5.0


@dataclass(frozen=True)
class Target:
    """What we want to reach: a ratio, ours to a rival's."""

    measure: str
    ours: str
    rival: str
    limit: float
    at_least: bool = False

    def verdict(self, ratios: list[float]) -> str:
        middle = statistics.median(ratios)
        met = middle >= self.limit if self.at_least else middle <= self.limit
        return f"{'≥' if self.at_least else '≤'} {self.limit:.2f} {'met' if met else 'MISSED'}"


LIVE_TARGETS = (
    *(Target("delay_p99_ms", SLUICE_QUICK.key, rival.key, 1.0) for rival in (FFMPEG, GSTREAMER)),
    *(Target("cpu_s_per_min", SLUICE_QUICK.key, rival.key, 0.25) for rival in (FFMPEG, GSTREAMER)),
    Target("cpu_s_per_min", SLUICE_ARECORD.key, ARECORD.key, 0.6),
    Target("pss_mib", SLUICE_ARECORD.key, ARECORD.key, 0.8),
)
PIPE_TARGETS = (
    Target("mib_per_s", "sluice pipe", "curl -T -", 1.0, at_least=True),
    Target("cpu_s_per_gib", "sluice pipe", "curl -T -", 1.0),
)
# A delay above the quickest frame of a run says nothing about another run's: no target on the bed that has no clock.
LIVE_COLUMNS = (
    ("CPU s/min", "cpu_s_per_min", 3),
    ("RSS MiB", "rss_mib", 1),
    ("PSS MiB", "pss_mib", 1),
    ("delay ms, median", "delay_median_ms", 1),
    ("delay ms, p99", "delay_p99_ms", 1),
    ("syscalls/s", "syscalls_per_s", 0),
)
PIPE_COLUMNS = (
    ("MiB/s", "mib_per_s", 0),
    ("CPU s/GiB", "cpu_s_per_gib", 3),
    ("RSS MiB", "rss_mib", 1),
    ("PSS MiB", "pss_mib", 1),
)

#: For each contender its rounds, in order.
Rounds = dict[str, list[dict[str, object]]]


def _numbers(rounds: Rounds, key: str, what: str) -> list[float]:
    return [value for figures in rounds.get(key, []) if isinstance(value := figures[what], (int, float))]


def ratios(rounds: Rounds, target: Target) -> list[float]:
    """Ours to the rival's, round by round; none where either was not measured."""
    pairs = zip(_numbers(rounds, target.ours, target.measure), _numbers(rounds, target.rival, target.measure))
    return [ours / rival for ours, rival in pairs if rival > 0]


def live_rounds(bed: Bed, chosen: list[Contender], options: argparse.Namespace, scratch: Path) -> Rounds:
    """All rounds on one bed, then system calls in runs of their own: strace makes everything slow."""
    rounds: Rounds = {contender.key: [] for contender in chosen}
    for turn in range(options.rounds):
        # Every other round backwards: what comes after a busy contender is not always the same one.
        for contender in chosen if turn % 2 == 0 else reversed(chosen):
            print(f"{bed.name}, round {turn + 1} of {options.rounds}: {contender.title}", file=sys.stderr)
            directory = scratch / f"{bed.name}-{turn}-{contender.key}"
            figures: Figures = measure(contender, bed, directory, options.seconds, RATE, CHANNELS)
            if figures.missing_ms:
                print(f"  {figures.missing_ms:.1f} ms of audio missing: this machine was too busy", file=sys.stderr)
            rounds[contender.key].append(figures.json())
    for contender in chosen:
        print(f"{bed.name}, system calls: {contender.title}", file=sys.stderr)
        directory = scratch / f"{bed.name}-strace-{contender.key}"
        count = count_syscalls(contender, bed, directory, SYSCALL_SECONDS, RATE, CHANNELS)
        for figures_of_round in rounds[contender.key]:
            figures_of_round["syscalls_per_s"] = count
    return rounds


def pipe_rounds(server: FileServer, names: list[str], file: Path, count: int, scratch: Path) -> Rounds:
    """The same file to the same server, turn by turn, after one upload each that is not counted."""
    rounds: Rounds = {name: [] for name in names}
    for turn in range(-1, count):
        for name in names if turn % 2 == 0 else reversed(names):
            print(f"{server.name}, round {turn + 1} of {count}: {name}", file=sys.stderr)
            directory = scratch / f"{server.name}-{turn}-{name}".replace(" ", "-")
            figures: PipeFigures = pipe_path.upload(name, server, file, directory)
            if turn >= 0:
                rounds[name].append(figures.json())
    return rounds


@dataclass
class Section:
    """One table of the report, with its ratios."""

    title: str
    note: str
    rounds: Rounds
    titles: dict[str, str]
    columns: tuple[tuple[str, str, int], ...]
    targets: tuple[Target, ...]

    def tables(self) -> list[tuple[list[str], list[list[str]]]]:
        header = [self.title, *(column[0] for column in self.columns)]
        rows = []
        for key in self.rounds:
            rows.append([self.titles[key], *(self._cell(key, what, digits) for _, what, digits in self.columns)])
        names = {what: name for name, what, _ in self.columns}
        verdicts = []
        for target in self.targets:
            if found := ratios(self.rounds, target):
                ours = f"{names[target.measure]}: {self.titles[target.ours]}"
                verdicts.append([ours, self.titles[target.rival], median_and_spread(found), target.verdict(found)])
        tables = [(header, rows)]
        if verdicts:
            tables.append((["ratio of", "to", "median (spread)", "target"], verdicts))
        return tables

    def _cell(self, key: str, what: str, digits: int) -> str:
        values = _numbers(self.rounds, key, what)
        return median_and_spread(values, digits) if values else "–"

    def show(self) -> None:
        print(self.note)
        for header, rows in self.tables():
            print_table(header, rows)

    def markdown(self) -> str:
        return self.note + "\n\n" + "\n\n".join(markdown_table(header, rows) for header, rows in self.tables())


def live_sections(options: argparse.Namespace, scratch: Path) -> Iterator[Section]:
    chosen = contenders.choose(options.only)
    need("strace", *{program for contender in chosen for program in contender.programs})
    beds: dict[str, Callable[[Path], Bed]] = {
        "testmic": lambda directory: TestMicrophoneBed(directory, RATE, CHANNELS),
        "pulse": lambda directory: PulseBed(directory, RATE, CHANNELS),
    }
    notes = {
        "testmic": "Test microphone (bounded ring on the monotonic clock): delay from capture to the server's recv.",
        "pulse": "PulseAudio null sink, `pulse` plugin: delay above the quickest frame of the run, so no ratio of it.",
    }
    for name in options.beds.split(","):
        if name not in beds:
            raise BenchmarkError(f"no bed {name!r}; there are: {', '.join(beds)}")
        directory = scratch / f"bed-{name}"
        directory.mkdir()
        with beds[name](directory) as bed:
            rounds = live_rounds(bed, chosen, options, scratch)
        absolute = all(figures["delay_is_absolute"] for each in rounds.values() for figures in each)
        targets = tuple(target for target in LIVE_TARGETS if absolute or not target.measure.startswith("delay"))
        rounds_of = f"{options.rounds} rounds of {options.seconds:g} s"
        note = f"{notes[name]} {RATE // 1000} kHz mono; {rounds_of}. `make bench-live`."
        titles = {contender.key: contender.title for contender in contenders.ALL}
        yield Section(f"live path, {name}", note, rounds, titles, LIVE_COLUMNS, targets)


def pipe_sections(options: argparse.Namespace, scratch: Path) -> Iterator[Section]:
    need("curl", "nginx")
    names = list(pipe_path.COMMANDS)
    servers = [nginx]
    if SLUICE.exists():
        servers.append(sluice_serve)
    else:
        names.remove("sluice pipe")
    with ExitStack() as stack:
        # In memory where there is room: the disk's mood is not what is compared.
        shared = Path("/dev/shm")
        roomy = shared.is_dir() and _free_bytes(shared) > 4 * (options.mebibytes << 20)
        directory = stack.enter_context(scratch_directory(shared if roomy else None))
        file = directory / "file"
        pipe_path.make_file(file, options.mebibytes << 20)
        for number, serve in enumerate(servers):
            with serve(directory / f"server-{number}") as server:
                rounds = pipe_rounds(server, names, file, options.rounds, scratch)
                server.clear()
            what = f"{options.mebibytes} MiB from standard input to {server.name}"
            note = f"{what}; {options.rounds} rounds. `make bench-live`."
            titles = {name: name for name in names}
            yield Section(f"pipe, to {server.name}", note, rounds, titles, PIPE_COLUMNS, PIPE_TARGETS)


def _free_bytes(directory: Path) -> int:
    room = os.statvfs(directory)
    return room.f_bavail * room.f_frsize


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure CPU, memory, delay, system calls, throughput beside rivals.")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each contender (default: 3)")
    parser.add_argument("--seconds", type=float, default=20, help="of steady streaming in each (default: 20)")
    parser.add_argument("--mebibytes", type=int, default=1024, help="size of the file for pipe (default: 1024)")
    parser.add_argument("--beds", default="testmic,pulse", help="microphones (default: testmic,pulse)")
    parser.add_argument("--only", default="", help="contenders, comma-separated: " + ", ".join(contenders.KEYS))
    parser.add_argument("--parts", default="live,pipe", help="what to measure (default: live,pipe)")
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/benchmarks.md")
    options = parser.parse_args()
    end_on_signals()
    parts = {"live": live_sections, "pipe": pipe_sections}
    sections: list[Section] = []
    about = machine()
    failure: BenchmarkError | None = None
    try:
        for part in options.parts.split(","):
            if part not in parts:
                raise BenchmarkError(f"no part {part!r}; there are: {', '.join(parts)}")
            with scratch_directory() as scratch:
                for section in parts[part](options, scratch):
                    sections.append(section)
    except BenchmarkError as error:
        # What was measured until then is shown all the same.
        failure = error
    print("; ".join(f"{name} {value}" for name, value in about.items() if value), end="\n\n")
    for section in sections:
        section.show()
    if failure:
        print(f"bench: {failure}", file=sys.stderr)
    if options.json:
        figures = {section.title: section.rounds for section in sections}
        options.json.write_text(json.dumps({"machine": about, "figures": figures}, indent=2) + "\n")
    if options.write:
        for section in sections:
            write_section(section.title[0].upper() + section.title[1:], section.markdown())
    return 1 if failure else 0


if __name__ == "__main__":
    sys.exit(main())
