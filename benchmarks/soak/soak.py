#!/usr/bin/env python3
"""`make soak`: a simulated week of `sluice mic`, and whether it or its server grows meanwhile.

The program `soak` (Tests/Soak) does it: the real command and the real server, whose clocks run many times as fast as ours,
the test microphone, and a fault in every hour. It fails when one frame is stored that should not be, is missing without a
report, or when one of the figures below grows.
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
SETTINGS = ("event", "seed", "hours", "factor", "clock_steps")
MEBIBYTE = 1 << 20


def run(options: argparse.Namespace) -> list[dict[str, object]]:
    """What the program found: the run, its figures, and a trend for each figure of each process."""
    command = [str(PROGRAM), "--hours", str(options.hours), "--factor", str(options.factor)]
    if options.seed is not None:
        command += ["--seed", str(options.seed)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise BenchmarkError("the run failed; what it found is above")
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
    note = (
        f"{hours} simulated hours of `sluice mic` (8 kHz, mono) into `sluice serve` through a relay, {factor} times as fast "
        "as real time: both programs are the real ones, and a preloaded library shortens their clocks and waits "
        "(`Tests/ScaledClock`). The microphone is the test device, whose samples tell their place. Every hour has a fault, and "
        "every day the wall clocks of both machines are set, forwards and backwards in turn. Samples are taken each hour, two minutes after the fault's end. "
        "Growth is the slope of Theil and Sen over all samples of a process but those of its first twelve hours, times the longest "
        "time that one process lived. `make soak`."
    )
    summary = (
        f"{captured / 1e9:.2f} GB captured, {int(str(found['acknowledged'])) / 1e9:.2f} GB acknowledged, {lost / 1e6:.1f} MB lost "
        f"in outages longer than the buffer, none unsent; {found['source_lost_frames']} frames lost by the device; "
        f"{found['outages']} outages; {int(str(found['resent'])) / 1e6:.1f} MB sent again"
    )
    stored = (
        f"{int(str(found['stored'])) / 1e9:.2f} GB stored in {found['recordings']} recordings, each frame at its place; "
        f"{found['silences']} silences, each where a loss was reported; {found['dropped_lines']} lines of output dropped"
    )
    header = ["process, figure", "first", "last", "least", "most", "growth", "limit", ""]
    return Section(
        "Soak",
        note,
        [Table(header, [trend_row(trend) for trend in trends]), Table(["fault", "times"], faults)],
        remarks=[summary, stored, f"{found['samples']} samples, {seconds:.0f} s of real time, seed {settings['seed']}"],
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Stream a microphone for a simulated week, with faults.")
    parser.add_argument("--hours", type=int, default=168, help="simulated hours (default: 168)")
    parser.add_argument("--factor", type=int, default=1000, help="simulated seconds in a real one (default: 1000)")
    parser.add_argument("--seed", type=int, help="draws the faults (default: random)")
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
