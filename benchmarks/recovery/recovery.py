#!/usr/bin/env python3
"""`make bench-recovery`: how long a stream stalls after an outage, and how many bytes are sent twice.

There are two kinds of outage. First, the server is killed and restarted. The time runs from the moment when it listens
again to the first newly acknowledged byte, and includes the pause between attempts. Second, the connection is reset
while the server runs, over paths of several lengths. The time runs from the reset to the first newly acknowledged byte.
The same run also measures the tools that people use instead.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.common.feeder import FAST_PIECE, PACED_PIECE, Pattern
from benchmarks.common.harness import BenchmarkError, in_memory, need, scratch_directory
from benchmarks.common.recording import percentile
from benchmarks.common.report import Report, Section, add_arguments
from benchmarks.common.tables import Table
from benchmarks.live.beds import TestMicrophoneBed
from benchmarks.recovery import darkice, interrupted_rivals
from benchmarks.recovery.interrupted_rivals import Return, Rival
from benchmarks.recovery.session import Load, Outages, Session

# From the server's return to the first byte newly acknowledged: median, and 99th percentile.
RETURN_LIMIT_MS, RETURN_LIMIT_P99_MS = 500, 1500
# After a reset: this many round trips and this many milliseconds.
RESET_ROUND_TRIPS, RESET_LIMIT_MS = 3, 50
# A fast stream fills a memory file system. After this many outages it ends and is checked, and another begins.
OUTAGES_OF_A_FAST_STREAM = 5


def spread(values: Sequence[float], digits: int = 1) -> list[str]:
    """Median, 90th percentile (nearest rank), maximum."""
    ordered = sorted(values)
    return [f"{each:.{digits}f}" for each in (statistics.median(ordered), percentile(ordered, 0.9), ordered[-1])]


def whole(values: Sequence[float]) -> list[str]:
    """Median, 90th and 99th percentile (nearest rank), maximum."""
    ordered = sorted(values)
    found = (statistics.median(ordered), percentile(ordered, 0.9), percentile(ordered, 0.99), ordered[-1])
    return [f"{each:.0f}" for each in found]


def loads(names: str) -> list[Load]:
    every = {
        "paced": Load("32 kB/s", True, Pattern.make(PACED_PIECE), (0.3, 1.3)),
        "fast": Load("as fast as it goes", False, Pattern.make(FAST_PIECE), (0.05, 0.15)),
    }
    if unknown := set(names.split(",")) - set(every):
        raise BenchmarkError(f"no load {', '.join(sorted(unknown))}; there are: {', '.join(every)}")
    return [every[name] for name in names.split(",")]


def outages(load: Load, options: argparse.Namespace, scratch: Path, round_trip: float | None, found: Outages) -> None:
    """All outages of one kind. `round_trip` is in seconds for resets, and None for a server that is killed. Every
    stream in `found` was compared with the streamed bytes."""
    kind = "server killed" if round_trip is None else f"reset, round trip of {round_trip * 1e3:g} ms"
    choose = random.Random(f"{options.seed} {load.title} {kind}")
    step = options.events if load.is_paced else OUTAGES_OF_A_FAST_STREAM
    for done in range(0, options.events, step):
        count = min(step, options.events - done)
        print(f"{kind}, {load.title}: {done + count} of {options.events}", file=sys.stderr)
        directory = scratch / f"{kind} {load.title} {done}".replace(" ", "-").replace("/", "-")
        directory.mkdir()
        session = Session(load, directory, choose)
        if round_trip is None:
            found.add(session.through_returns(count, (options.least_down, options.down)))
        else:
            found.add(session.through_resets(count, round_trip))


def rival_returns(
    rival: Rival, load: Load, options: argparse.Namespace, scratch: Path, file: Path, found: list[Return]
) -> None:
    """The same outages for a rival, each in a separate run."""
    choose = random.Random(f"{options.seed} {rival.key}")
    before = interrupted_rivals.BEFORE if load.is_paced else statistics.mean(load.steady)
    for number in range(options.events):
        print(f"server killed, {rival.title}: {number + 1} of {options.events}", file=sys.stderr)
        with scratch_directory(scratch) as directory:
            down = choose.uniform(options.least_down, options.down)
            found.append(interrupted_rivals.interrupted(rival, load.pattern, file, down, before, directory))


def darkice_returns(options: argparse.Namespace, scratch: Path, found: list[Return]) -> None:
    """The same outages for darkice, which captures by itself."""
    choose = random.Random(f"{options.seed} darkice")
    with scratch_directory(scratch) as tools, TestMicrophoneBed(tools, 48_000, 2) as bed:
        for number in range(options.events):
            print(f"server killed, {darkice.TITLE}: {number + 1} of {options.events}", file=sys.stderr)
            with scratch_directory(scratch) as directory:
                down = choose.uniform(options.least_down, options.down)
                found.append(darkice.interrupted(bed, down, directory))


#: Ours, or a rival's.
Returns = Outages | list[Return]

RETURN_HEADER = [
    *("server killed and restarted, ms", "outages", "to the first new byte: median", "p90", "p99", "max"),
    *("of this, pause: median", "sent again, KiB", "lost, KiB"),
]


def return_row(title: str, found: Outages) -> list[str]:
    return [
        *(title, str(len(found.above_ms)), *whole(found.total_ms), f"{statistics.median(found.pause_ms):.0f}"),
        *(f"{sum(found.resent) / len(found.above_ms) / 1024:.1f}", "0"),
    ]


def rival_row(title: str, found: list[Return]) -> list[str]:
    again, lost = (statistics.mean(values) / 1024 for values in zip(*((each.again, each.lost) for each in found)))
    new = whole([each.new_ms for each in found])
    return [title, str(len(found)), *new, "–", f"{again:.1f}", f"{lost:.1f}"]


def returns_table(returns: dict[str, Returns]) -> Table:
    rows = []
    for title, found in returns.items():
        if isinstance(found, list) and found:
            rows.append(rival_row(title, found))
        elif isinstance(found, Outages) and found.above_ms:
            rows.append(return_row(f"sluice pipe, {title}", found))
    return Table(RETURN_HEADER, rows)


def return_verdict(title: str, found: Outages) -> str:
    middle, last = statistics.median(found.total_ms), percentile(sorted(found.total_ms), 0.99)
    is_met = middle <= RETURN_LIMIT_MS and last <= RETURN_LIMIT_P99_MS
    return (
        f"{title}: median {middle:.0f} ms (limit {RETURN_LIMIT_MS} ms), p99 {last:.0f} ms (limit {RETURN_LIMIT_P99_MS} "
        f"ms): {'met' if is_met else 'MISSED'}; without the remaining pause {statistics.median(found.above_ms):.1f} "
        f"ms; {sum(found.failures)} attempts failed after the restart; the server listens "
        f"{statistics.median(found.starting_ms):.0f} ms after exec"
    )


RESET_HEADER = ["connection reset, ms", "resets", "median", "p90", "max", "limit", "result", "sent again, KiB"]


def reset_row(load: Load, round_trip: float, found: Outages) -> list[str]:
    limit = RESET_ROUND_TRIPS * round_trip * 1e3 + RESET_LIMIT_MS
    verdict = "met" if statistics.median(found.above_ms) <= limit else "MISSED"
    return [
        *(f"round trip of {round_trip * 1e3:g} ms, {load.title}", str(len(found.above_ms)), *spread(found.above_ms)),
        *(f"{limit:.0f}", verdict, f"{sum(found.resent) / len(found.above_ms) / 1024:.1f}"),
    ]


@dataclass
class Found:
    """Everything that was measured."""

    returns: dict[str, Returns] = field(default_factory=dict)  # ours by the load's title, a rival's by its own
    resets: dict[tuple[str, Load], Outages] = field(default_factory=dict)  # by the round trip in ms, as in the options

    def figures(self) -> dict[str, object]:
        resets = {f"reset, {round_trip} ms, {load.title}": each for (round_trip, load), each in self.resets.items()}
        return {**{f"return, {title}": each for title, each in self.returns.items()}, **resets}

    def section(self, options: argparse.Namespace) -> Section:
        note = (
            f"{options.events} outages of each kind. The server is killed with SIGKILL and restarted after "
            f"{options.least_down:g} to {options.down:g} s. The time runs from the moment when it listens again to the "
            "first newly acknowledged byte, and includes the pause between attempts. Resets happen at a relay that "
            "delays the bytes. After each run, the stored stream was compared byte by byte with the streamed one. The "
            "other programs stream to a neutral server, and their time ends at the first byte that it did not have. "
            "`make bench-recovery`."
        )
        resets = [
            reset_row(load, float(round_trip) / 1e3, each)
            for (round_trip, load), each in self.resets.items()
            if each.above_ms
        ]
        ours = {title: each for title, each in self.returns.items() if isinstance(each, Outages) and each.above_ms}
        return Section(
            "Recovery",
            note,
            [returns_table(self.returns), Table(RESET_HEADER, resets)],
            remarks=[return_verdict(title, each) for title, each in ours.items()],
            # The seed reproduces all random times.
            details=[f"seed {options.seed}"],
        )


def measure_returns(load: Load, options: argparse.Namespace, scratch: Path, found: Found) -> None:
    """Measures Sluice when the server is killed and restarted."""
    found.returns[load.title] = ours = Outages()
    outages(load, options, scratch, None, ours)


def measure_rivals(load: Load, options: argparse.Namespace, scratch: Path, found: Found) -> None:
    """Measures the tools that people use instead, when the server is killed and restarted."""
    need("curl", "ffmpeg", "darkice")
    file = scratch / "file"
    load.pattern.write(file, 4 << 20 if load.is_paced else 2 << 30)
    for rival in interrupted_rivals.PACED if load.is_paced else interrupted_rivals.FAST:
        theirs: list[Return] = []
        found.returns[rival.title] = theirs
        rival_returns(rival, load, options, scratch, file, theirs)
    file.unlink()
    if load.is_paced:
        found.returns[darkice.TITLE] = theirs = []
        darkice_returns(options, scratch, theirs)


def measure_resets(load: Load, options: argparse.Namespace, scratch: Path, found: Found) -> None:
    """Measures Sluice when the connection is reset, over each path."""
    for round_trip in options.round_trips.split(","):
        found.resets[round_trip, load] = ours = Outages()
        outages(load, options, scratch, float(round_trip) / 1e3, ours)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure how long a stream stalls after an outage.")
    parser.add_argument("--events", type=int, default=30, help="outages of each kind (default: 30)")
    parser.add_argument("--down", type=float, default=5, help="maximum seconds without a server (default: 5)")
    parser.add_argument("--least-down", type=float, default=1, help="minimum seconds without a server (default: 1)")
    parser.add_argument("--round-trips", default="0,10,50,100", help="round trips in ms (default: 0,10,50,100)")
    parser.add_argument("--loads", default="paced,fast", help="what is streamed (default: paced,fast)")
    parser.add_argument("--parts", default="return,reset,rivals", help="what to measure (default: return,reset,rivals)")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32), help="seed (default: random)")
    add_arguments(parser)
    options = parser.parse_args()
    parts = options.parts.split(",")
    print(f"seed {options.seed}", file=sys.stderr)
    found = Found()
    report = Report("recovery")
    # In memory, because the time to create a file on a disk is not measured here.
    with report.measuring(), scratch_directory(in_memory()) as scratch:
        for load in loads(options.loads):
            if "return" in parts:
                measure_returns(load, options, scratch, found)
            if "rivals" in parts:
                measure_rivals(load, options, scratch, found)
        for load in loads(options.loads) if "reset" in parts else []:
            measure_resets(load, options, scratch, found)
    report.sections = [found.section(options)]
    report.figures = found.figures()
    return report.finish(options)


if __name__ == "__main__":
    sys.exit(main())
