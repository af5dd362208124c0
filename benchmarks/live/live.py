#!/usr/bin/env python3
"""`make bench`: Sluice compared with today's common tools, on the same device, in alternating runs.

Each round runs every contender once, one after the other, so that other work on the machine affects all of them. A
ratio compares our value with a rival's of the same round. The table shows the median and the spread of the rounds.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.file_servers import FileServer, Serve, nginx, sluice_serve
from benchmarks.common.harness import SLUICE, BenchmarkError, in_memory, need, scratch_directory
from benchmarks.common.report import Report, add_arguments
from benchmarks.live import contenders, pipe_path
from benchmarks.live.beds import Bed, PulseBed, TestMicrophoneBed
from benchmarks.live.comparison import Comparison, Rounds, Target
from benchmarks.live.contenders import (
    ARECORD,
    FFMPEG,
    GSTREAMER,
    LEAST_ARECORD,
    LEAST_QUICK,
    SLUICE_ARECORD,
    SLUICE_QUICK,
    Contender,
)
from benchmarks.live.live_path import Figures, count_syscalls, measure
from benchmarks.live.pipe_path import PipeFigures

RATE, CHANNELS = 48_000, 1
SYSCALL_SECONDS = 5.0

LIVE_TARGETS = (
    *(Target("delay_p99_ms", SLUICE_QUICK.key, rival.key, 1.0) for rival in (FFMPEG, GSTREAMER)),
    Target("cpu_s_per_min", SLUICE_QUICK.key, LEAST_QUICK.key, 1.25),
    Target("cpu_s_per_min", SLUICE_ARECORD.key, LEAST_ARECORD.key, 1.25),
    Target("pss_mib", SLUICE_ARECORD.key, ARECORD.key, 0.8),
)
PIPE_TARGETS = (
    Target("mib_per_s", "sluice pipe", "curl -T -", 1.0, at_least=True),
    Target("cpu_s_per_gib", "sluice pipe", "curl -T -", 1.1),
)
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


def measure_live(bed: Bed, chosen: list[Contender], options: argparse.Namespace, scratch: Path, rounds: Rounds) -> None:
    """Measures all rounds on one bed. System calls are counted in separate runs, because strace slows programs down."""
    for turn in range(options.rounds):
        # Every other round is in reverse order, so that not always the same contender follows a busy one.
        for contender in chosen if turn % 2 == 0 else reversed(chosen):
            print(f"{bed.name}, round {turn + 1} of {options.rounds}: {contender.title}", file=sys.stderr)
            directory = scratch / f"{bed.name}-{turn}-{contender.key}"
            figures: Figures = measure(contender, bed, directory, options.seconds, RATE, CHANNELS)
            if figures.missing_ms:
                print(f"  {figures.missing_ms:.1f} ms of audio missing: this machine was too busy", file=sys.stderr)
            rounds.setdefault(contender.key, []).append(figures.json())
    for contender in chosen:
        print(f"{bed.name}, system calls: {contender.title}", file=sys.stderr)
        directory = scratch / f"{bed.name}-strace-{contender.key}"
        count = count_syscalls(contender, bed, directory, SYSCALL_SECONDS, RATE, CHANNELS)
        for figures_of_round in rounds[contender.key]:
            figures_of_round["syscalls_per_s"] = count


def measure_pipe(server: FileServer, names: list[str], file: Path, count: int, scratch: Path, rounds: Rounds) -> None:
    """Uploads the same file to the same server, alternately, after one uncounted upload each."""
    for turn in range(-1, count):
        for name in names if turn % 2 == 0 else reversed(names):
            print(f"{server.name}, round {turn + 1} of {count}: {name}", file=sys.stderr)
            directory = scratch / f"{server.name}-{turn}-{name}".replace(" ", "-")
            figures: PipeFigures = pipe_path.upload(name, server, file, directory)
            if turn >= 0:
                rounds.setdefault(name, []).append(figures.json())


@dataclass(frozen=True)
class LiveBed:
    """A microphone that contenders stream from."""

    make: Callable[[Path, int, int], Bed]
    note: str
    targets: tuple[Target, ...]


BEDS = {
    "testmic": LiveBed(
        TestMicrophoneBed,
        "Test microphone (bounded ring on the monotonic clock). The delay is from capture to the server's recv.",
        LIVE_TARGETS,
    ),
    "pulse": LiveBed(
        PulseBed,
        "PulseAudio null sink, `pulse` plugin. The delay is relative to the fastest frame of the run, so it has no "
        "ratio.",
        # A delay relative to one run's fastest frame cannot be compared with another run's.
        tuple(target for target in LIVE_TARGETS if not target.measure.startswith("delay")),
    ),
}


def live_part(options: argparse.Namespace, scratch: Path, found: list[Comparison]) -> None:
    """Measures every contender on each bed."""
    chosen = contenders.choose(options.only)
    need("strace", *{program for contender in chosen for program in contender.programs})
    titles = {contender.key: contender.title for contender in contenders.ALL}
    for name in options.beds.split(","):
        if name not in BEDS:
            raise BenchmarkError(f"no bed {name!r}; there are: {', '.join(BEDS)}")
        bed = BEDS[name]
        rounds_of = f"{options.rounds} rounds of {options.seconds:g} s"
        note = f"{bed.note} {RATE // 1000} kHz mono; {rounds_of}. `make bench-live`."
        found.append(Comparison(f"live path, {name}", note, {}, titles, LIVE_COLUMNS, bed.targets))
        directory = scratch / f"bed-{name}"
        directory.mkdir()
        with bed.make(directory, RATE, CHANNELS) as microphone:
            measure_live(microphone, chosen, options, scratch, found[-1].rounds)


def pipe_part(options: argparse.Namespace, scratch: Path, found: list[Comparison]) -> None:
    """Measures the upload of a file from standard input to each server."""
    need("curl", "nginx")
    names = list(pipe_path.COMMANDS)
    servers: list[Serve] = [nginx]
    if SLUICE.exists():
        servers.append(sluice_serve)
    else:
        names.remove("sluice pipe")
    size = options.mebibytes << 20
    with scratch_directory(in_memory(4 * size)) as directory:
        file = directory / "file"
        pipe_path.make_file(file, size)
        for number, serve in enumerate(servers):
            with serve(directory / f"server-{number}") as server:
                note = (
                    f"{options.mebibytes} MiB from standard input to {server.name}; {options.rounds} rounds. "
                    "`make bench-live`."
                )
                titles = {name: name for name in names}
                found.append(Comparison(f"pipe, to {server.name}", note, {}, titles, PIPE_COLUMNS, PIPE_TARGETS))
                measure_pipe(server, names, file, options.rounds, scratch, found[-1].rounds)
                server.clear()


PARTS = {"live": live_part, "pipe": pipe_part}


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare CPU, memory, delay, system calls and throughput with rivals.")
    add_arguments(parser, rounds=3, of="turns of each contender")
    parser.add_argument("--seconds", type=float, default=20, help="duration of steady streaming per run (default: 20)")
    parser.add_argument("--mebibytes", type=int, default=1024, help="size of the file for pipe (default: 1024)")
    parser.add_argument("--beds", default="testmic,pulse", help="microphones (default: testmic,pulse)")
    parser.add_argument("--only", default="", help="contenders, comma-separated: " + ", ".join(contenders.KEYS))
    parser.add_argument("--parts", default="live,pipe", help="what to measure (default: live,pipe)")
    options = parser.parse_args()
    report = Report("bench")
    found: list[Comparison] = []
    with report.measuring():
        for part in options.parts.split(","):
            if part not in PARTS:
                raise BenchmarkError(f"no part {part!r}; there are: {', '.join(PARTS)}")
            with scratch_directory() as scratch:
                PARTS[part](options, scratch, found)
    report.sections = [each.section() for each in found]
    report.figures = {each.title: each.rounds for each in found}
    return report.finish(options)


if __name__ == "__main__":
    sys.exit(main())
