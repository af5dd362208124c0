#!/usr/bin/env python3
"""`make bench-many`: 30,000 live streams of 32 kB/s from one machine, by two processes.

A process may have 20,000 descriptors, and a destination address has 28,232 local ports. So two processes of `sluice
load` each run one part of the same plan (`--part 1/2` and `2/2`) against receivers on two loopback addresses, and
`sluice report --merge` joins their reports. The receivers judge the streams, as in `make bench-load`: a stream is held
if it existed throughout the window and its bytes arrived at its rate, within 10 %. It is live if it was also never
silent for more than four of its periods.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.common.harness import SLUICE, BenchmarkError, Process, need_built, scratch_directory
from benchmarks.common.report import Report, Section, add_arguments
from benchmarks.common.tables import Table
from benchmarks.load.rate_receiver import RateReceiver, Window
from benchmarks.load.rivals import ENOUGH, proportional_memory
from benchmarks.load.testers import RATE

PARTS = 2
STARTED_PER_SECOND = 1500
SETTLING = 4.0
HEADER = [
    *("part", "streams", "held", "live", "body, MB/s", "CPU % of a core", "kB per stream"),
    *("longest silence ms, p99", "receiver's CPU %"),
]


def part_command(options: argparse.Namespace, urls: list[str], part: int, report: Path) -> list[str]:
    ramp = options.streams / STARTED_PER_SECOND
    duration = ramp + 2 * SETTLING + options.seconds + 5
    return [
        *(str(SLUICE), "load", *urls, "--streams", str(options.streams), "--part", f"{part}/{PARTS}"),
        *("--rate", str(RATE), "--chunk", f"{options.period * 1000:g}ms", "--duration", f"{duration:g}s"),
        *("--ramp", f"{ramp:g}s", "--resumable", "never", "--seed", "1", "--progress", "none", "--threads", "1"),
        *("--json", str(report)),
    ]


def merged(reports: list[Path]) -> str:
    """The first sentence of the report that joins the parts."""
    done = subprocess.run(
        [str(SLUICE), "report", *map(str, reports), "--merge"], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise BenchmarkError(f"sluice report --merge: {done.stderr}")
    lines = itertools.dropwhile(lambda line: "live streams" not in line, (done.stdout + done.stderr).splitlines())
    return " ".join(line.strip() for line in itertools.takewhile(bool, lines))


def run(options: argparse.Namespace, scratch: Path) -> tuple[list[list[str]], int, str, dict[str, object]]:
    """Returns the rows, the number of live streams, the merged report's sentence, and every figure."""
    reports = [scratch / f"part-{part}.json" for part in range(1, PARTS + 1)]
    with contextlib.ExitStack() as stack:
        receivers = [stack.enter_context(RateReceiver(f"127.0.0.{2 + number}")) for number in range(PARTS)]
        urls = [receiver.url for receiver in receivers]
        messages = stack.enter_context(open(scratch / "messages", "w+b"))
        processes = []
        for part, report in enumerate(reports, 1):
            command = part_command(options, urls, part, report)
            processes.append(Process(command, stdout=messages.fileno(), stderr=messages.fileno()))
            stack.callback(processes[-1].end, signal.SIGKILL)
        deadline = time.monotonic() + 2 * options.streams / STARTED_PER_SECOND + 30
        while sum(receiver.open() for receiver in receivers) < options.streams and time.monotonic() < deadline:
            time.sleep(0.25)  # the receivers do not report when the last one arrives
        time.sleep(SETTLING)  # the last ones reach their pace; this waits for no event
        for receiver in receivers:
            receiver.open()
        before, since = [process.cpu_ns() for process in processes], time.monotonic_ns()
        time.sleep(options.seconds)
        spent = [process.cpu_ns() - start for process, start in zip(processes, before, strict=True)]
        passed = time.monotonic_ns() - since
        memory = [proportional_memory([process]) for process in processes]
        windows: list[Window] = [receiver.close(RATE, 4 * options.period) for receiver in receivers]
        for process in processes:
            if not process.wait(options.seconds + 60):
                raise BenchmarkError("sluice load did not end")
        messages.seek(0)
        missing = [report for report in reports if not report.exists()]
        if missing:
            raise BenchmarkError(f"no report: {messages.read().decode(errors='replace')[-400:]}")
        sentence = merged(reports)
    rows = []
    for number, window in enumerate(windows):
        rows.append(
            [
                f"{number + 1} of {PARTS}", str(window.streams), str(window.held), str(window.live),
                f"{window.bytes / window.seconds / 1e6:.0f}", f"{spent[number] / passed * 100:.0f}",
                f"{memory[number] / 1000 / (options.streams / PARTS):.0f}", f"{window.silence_p99_ms:.0f}",
                f"{window.cpu_share * 100:.0f}",
            ]
        )  # fmt: skip
    figures = {
        "windows": windows,
        "reports": [json.loads(report.read_text())["totals"] for report in reports],
        "sentence": sentence,
    }
    return rows, sum(window.live for window in windows), sentence, figures


def main() -> int:
    parser = argparse.ArgumentParser(description="Hold 30,000 live streams with two processes on one machine.")
    add_arguments(parser)
    parser.add_argument("--streams", type=int, default=30_000, help="streams of all parts together (default: 30000)")
    parser.add_argument("--seconds", type=float, default=10, help="duration of the window (default: 10)")
    parser.add_argument("--period", type=float, default=1, help="seconds between two messages (default: 1)")
    options = parser.parse_args()
    report = Report("many")
    rows: list[list[str]] = []
    remarks: list[str] = []
    with report.measuring(), scratch_directory() as scratch:
        need_built(SLUICE, "build")
        rows, live, sentence, report.figures = run(options, scratch)
        verdict = "met" if live >= ENOUGH * options.streams else "MISSED"
        goal = f"target: at least {ENOUGH:.0%}"
        remarks = [f"Live: {live} of {options.streams} ({goal}): {verdict}", f"Merged report: {sentence}"]
        if verdict == "MISSED":
            report.fail(BenchmarkError(f"only {live} of {options.streams} streams were live"))
    note = (
        f"{options.streams} plain uploads of {RATE // 1000} kB/s, one message every {options.period:g} s, by {PARTS} "
        f"processes with one thread each, to two receivers on two loopback addresses of the same machine; a window of "
        f"{options.seconds:g} s. `make bench-many`."
    )
    report.sections = [Section("Thirty thousand live streams", note, [Table(HEADER, rows)], remarks)]
    return report.finish(options)


if __name__ == "__main__":
    sys.exit(main())
