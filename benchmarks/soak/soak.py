#!/usr/bin/env python3
"""`make soak`: tests whether `sluice mic` or its server grows during a simulated week.

The program `soak` (Tests/Soak) runs the real command and the real server with the test microphone and a fault in every
hour. Their clocks run many times as fast as ours. It fails if a frame is stored that should not be, if a frame is
missing without a report, or if one of the values below grows.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time

from benchmarks.common.harness import REPOSITORY, BenchmarkError
from benchmarks.common.report import Report, Section, add_arguments
from benchmarks.common.tables import Table

PROGRAM = REPOSITORY / ".build" / "chaos" / "release" / "soak"
#: These are not kinds of faults.
SETTINGS = ("event", "seed", "hours", "factor", "clock_steps", "split")
MEBIBYTE = 1 << 20


def run(options: argparse.Namespace) -> list[dict[str, object]]:
    """The results of the program: the run, its figures, and a trend for each figure of each process."""
    command = [str(PROGRAM), "--hours", str(options.hours), "--factor", str(options.factor)]
    if options.split is not None:
        command += ["--split", options.split]
    if options.seed is not None:
        command += ["--seed", str(options.seed)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise BenchmarkError("the run failed; see its output above")
    return [json.loads(line) for line in done.stdout.splitlines()]


def trend_row(trend: dict[str, object]) -> list[str]:
    def cell(name: str, sign: str = "") -> str:
        value = float(str(trend[name]))
        return f"{value / MEBIBYTE:{sign}.2f} MiB" if "memory" in str(trend["figure"]) else f"{value:{sign}g}"

    figures = [cell("first"), cell("last"), cell("least"), cell("most"), cell("growth", "+"), f"< {cell('limit')}"]
    return [f"{trend['process']}, {trend['figure']}", *figures, "flat"]


def section(lines: list[dict[str, object]], seconds: float) -> Section:
    settings, found, *trends = lines
    hours, factor = settings["hours"], settings["factor"]
    captured, lost = int(str(found["captured"])), int(str(found["lost"]))
    faults = [[kind, str(count)] for kind, count in settings.items() if kind not in SETTINGS]
    faults.append(["wall clock set, by minutes to hours", str(settings["clock_steps"])])
    split = f"with `--split {settings['split']}` " if "split" in settings else ""
    command = f'make soak SOAK="--hours {hours} --split {settings["split"]}"' if split else "make soak"
    note = (
        f"{hours} simulated hours of `sluice mic` {split}(8 kHz, mono), which streams to `sluice serve` through "
        f"a relay, {factor} times as fast as real time. Both programs are the real ones, and a preloaded library speeds "
        "up their clocks and shortens their waits (`Tests/ScaledClock`). The samples of the test microphone identify "
        "their position. A fault happens every hour, and the wall clocks of both machines are set every day, "
        "alternately forwards and backwards. Values are measured each hour, two minutes after the fault's end. Growth "
        "is the Theil–Sen slope over all values of a process except those of its first twelve hours, times the "
        f"longest life of one process. `{command}`."
    )
    summary = (
        f"{captured / 1e9:.2f} GB captured, {int(str(found['acknowledged'])) / 1e9:.2f} GB acknowledged, "
        f"{lost / 1e6:.1f} MB lost in outages longer than the buffer, none unsent; {found['source_lost_frames']} "
        f"frames lost by the device; {found['outages']} outages; {int(str(found['resent'])) / 1e6:.1f} MB sent again"
    )
    stored = (
        f"{int(str(found['stored'])) / 1e9:.2f} GB stored in {found['recordings']} recordings after {found['splits']} "
        f"splits, each frame at its position; {found['silences']} silences, each where a loss was reported; "
        f"{found['dropped_lines']} lines of output dropped"
    )
    header = ["process, value", "first", "last", "minimum", "maximum", "growth", "limit", ""]
    return Section(
        "Soak with splits" if split else "Soak",
        note,
        [Table(header, [trend_row(trend) for trend in trends]), Table(["fault", "times"], faults)],
        remarks=[summary, stored, f"{found['samples']} samples, {seconds:.0f} s of real time, seed {settings['seed']}"],
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Stream a microphone for a simulated week, with faults.")
    parser.add_argument("--hours", type=int, default=168, help="simulated hours (default: 168)")
    parser.add_argument("--factor", type=int, default=1000, help="simulated seconds in a real one (default: 1000)")
    parser.add_argument("--split", help="the microphone's --split, such as 1h (default: one recording)")
    parser.add_argument("--seed", type=int, help="seed of the faults (default: random)")
    add_arguments(parser)
    options = parser.parse_args()
    report = Report("soak")
    start = time.monotonic()
    with report.measuring():
        report.figures = lines = run(options)
        report.sections = [section(lines, time.monotonic() - start)]
    return report.finish(options)


if __name__ == "__main__":
    sys.exit(main())
