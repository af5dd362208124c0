#!/usr/bin/env python3
"""`make bench-before BEFORE=COMMIT`: compares this commit with an earlier one.

Both commits take the same work in alternating rounds: a microphone's stream, a pipe, a load test, and the storage of
live streams. The other side of each transfer is always the same program: a receiver or a generator in C, or this
commit. CPU time is the measure, because elapsed time on a shared machine says little.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.harness import REPOSITORY, SLUICE, BenchmarkError, Process, need_built, scratch_directory
from benchmarks.common.report import Report, Section, add_arguments
from benchmarks.common.sluice_server import sluice_server
from benchmarks.common.tables import Table, median_and_spread
from benchmarks.live.beds import TestMicrophoneBed
from benchmarks.live.contenders import SLUICE_ARECORD, SLUICE_QUICK, Capture, Contender
from benchmarks.live.live import CHANNELS, RATE
from benchmarks.live.live_path import measure
from benchmarks.live.pipe_path import make_file

#: The maximum ratio of this commit's CPU time to that of the earlier one.
AIM = 1.03
LIBCURL_LOAD = REPOSITORY / ".build" / "libcurl-load"
STREAMS = 1000
# A run that takes longer than this has hung.
PATIENCE = 120.0


@dataclass(frozen=True)
class Work:
    """Something that both commits do."""

    title: str
    unit: str
    cpu: Callable[[Path, Path, argparse.Namespace], float]  # of a program, with a scratch directory


def _other(base: Contender, program: Path) -> Contender:
    def commands(capture: Capture) -> list[list[str]]:
        (command,) = base.commands(capture)
        return [[str(program), *command[1 : command.index("--progress")], "--progress", "none"]]

    return Contender(base.key, base.title, base.period_ms, commands, ours=True)


def _microphone(base: Contender) -> Callable[[Path, Path, argparse.Namespace], float]:
    def cpu(program: Path, scratch: Path, options: argparse.Namespace) -> float:
        tools = scratch / "tools"
        tools.mkdir()
        with TestMicrophoneBed(tools, RATE, CHANNELS) as bed:
            figures = measure(_other(base, program), bed, scratch / "run", options.seconds, RATE, CHANNELS)
        return figures.cpu_s_per_min * 1e3

    return cpu


def _pipe(program: Path, scratch: Path, options: argparse.Namespace) -> float:
    file = scratch / "file"
    make_file(file, options.mebibytes << 20)
    with sluice_server(scratch / "server", "--discard") as server, open(file, "rb") as source:
        url = f"http://127.0.0.1:{server.port}/file"
        process = Process([str(program), "pipe", url, "--progress", "none"], stdin=source.fileno())
        try:
            process.wait(PATIENCE)
        finally:
            process.end(signal.SIGKILL)
    if process.exit is None or process.exit.code != 0:
        raise BenchmarkError(f"{program} pipe: exit {process.exit}")
    return process.exit.cpu_ns / 1e6 / (options.mebibytes / 1024)


def _streams(command: list[str], measured: Callable[[Process], Callable[[], int]], seconds: float) -> float:
    """CPU time in µs per message, during `seconds` in which all streams of a generator are live."""
    process = Process(command)
    try:
        deadline = time.monotonic() + PATIENCE
        descriptors = Path(f"/proc/{process.pid}/fd")
        while sum(1 for _ in descriptors.iterdir()) < STREAMS:
            if process.wait(0.1) or time.monotonic() > deadline:
                raise BenchmarkError(f"{process.name} does not open {STREAMS} streams")
        # All streams have sent their first message by then.
        time.sleep(2)
        cpu_ns = measured(process)
        before, since = cpu_ns(), time.monotonic_ns()
        time.sleep(seconds)
        used, passed = cpu_ns() - before, (time.monotonic_ns() - since) / 1e9
    finally:
        process.end(signal.SIGTERM, seconds=PATIENCE)
    return used / 1e3 / (passed * STREAMS)


def _load(program: Path, scratch: Path, options: argparse.Namespace) -> float:
    with sluice_server(scratch / "server", "--discard", "--max-uploads", "100000") as server:
        command = [
            *(str(program), "load", f"http://127.0.0.1:{server.port}/load", "--streams", str(STREAMS)),
            *("--resumable", "always", "--progress", "none", "--rate", "1000", "--chunk", "1s"),
            *("--ramp", "2s", "--duration", f"{options.seconds + 15:g}s"),
        ]
        return _streams(command, lambda generator: generator.cpu_ns, options.seconds)


def _serve(*store: str) -> Callable[[Path, Path, argparse.Namespace], float]:
    def cpu(program: Path, scratch: Path, options: argparse.Namespace) -> float:
        with sluice_server(scratch / "server", "--max-uploads", "100000", *store, program=program) as server:
            command = [
                *(str(LIBCURL_LOAD), f"http://127.0.0.1:{server.port}/load", "--streams", str(STREAMS)),
                *("--bytes", "1000", "--every", "1000", "--ramp", "2", "--duration", f"{options.seconds + 10:g}"),
            ]
            return _streams(command, lambda _: server.cpu_ns, options.seconds)

    return cpu


WORKS = (
    Work("mic, periods of 10 ms", "CPU ms per minute", _microphone(SLUICE_QUICK)),
    Work("mic, periods of 125 ms", "CPU ms per minute", _microphone(SLUICE_ARECORD)),
    Work("pipe", "CPU ms per GiB", _pipe),
    Work("load, 1,000 live streams", "CPU µs per message", _load),
    Work("serve, 1,000 live streams stored", "CPU µs per message", _serve()),
    Work("serve --discard, 1,000 live streams", "CPU µs per message", _serve("--discard")),
)


Rounds = dict[str, list[float]]  # by "now" and "before"


def section(found: dict[Work, Rounds], options: argparse.Namespace) -> Section:
    rows = []
    for work, rounds in found.items():
        now, before = rounds["now"], rounds["before"]
        if not now or not before:
            continue
        ratios = [ours / earlier for ours, earlier in zip(now, before)]
        middle, least = statistics.median(ratios), min(now) / min(before)
        rows.append(
            [
                *(f"{work.title}, {work.unit}", median_and_spread(before, 1), median_and_spread(now, 1)),
                *(median_and_spread(ratios), f"{least:.2f}", f"≤ {AIM} {'met' if middle <= AIM else 'MISSED'}"),
            ]
        )
    header = ["work", f"before ({options.commit})", "now", "ratio", "of the minimums", "target"]
    note = (
        f"The same work by this commit and by {options.commit}, in {options.rounds} alternating rounds with windows of "
        f"{options.seconds:g} s. The table shows the median (minimum–maximum). "
        f"`make bench-before BEFORE={options.commit}`."
    )
    return Section("This commit compared with an earlier one", note, [Table(header, rows)])


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare the CPU time of this commit with that of an earlier one.")
    add_arguments(parser, rounds=7, of="pairs of each kind of work")
    parser.add_argument("program", type=Path, help="the command sluice of the earlier commit")
    parser.add_argument("--commit", required=True, help="the name of the earlier commit")
    parser.add_argument("--only", default="", help="works whose title begins with this")
    parser.add_argument("--seconds", type=float, default=10, help="duration of a window (default: 10)")
    parser.add_argument("--mebibytes", type=int, default=1024, help="size of the file of pipe (default: 1024)")
    options = parser.parse_args()
    report = Report("before")
    found: dict[Work, Rounds] = {}
    with report.measuring():
        need_built(SLUICE, "build")
        need_built(LIBCURL_LOAD, "libcurl-load")
        pair = {"now": SLUICE, "before": options.program}
        for work in WORKS:
            if not work.title.startswith(options.only):
                continue
            rounds = found[work] = {name: [] for name in pair}
            for turn in range(options.rounds):
                print(f"{work.title}, round {turn + 1} of {options.rounds}", file=sys.stderr)
                for name in pair if turn % 2 == 0 else reversed(pair):
                    with scratch_directory() as scratch:
                        rounds[name].append(work.cpu(pair[name], scratch, options))
    report.sections = [section(found, options)]
    report.figures = {work.title: rounds for work, rounds in found.items()}
    return report.finish(options)


if __name__ == "__main__":
    sys.exit(main())
