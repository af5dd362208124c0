#!/usr/bin/env python3
"""`make bench-spool`: what a spool costs a microphone's stream and its disk, and how fast it catches up.

The processor time of `sluice mic --spool` is compared with that of `sluice mic`, with a connection and without one. What
is written during an outage is counted at the device of a file system of our own. Catching up is compared with
`curl -T` of the same bytes to the same server.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

from benchmarks.common.harness import SLUICE, in_memory, need, need_built, scratch_directory
from benchmarks.common.report import Report, Section, add_arguments
from benchmarks.common.tables import Table, median_and_spread
from benchmarks.spool.catching_up import CatchUp, catch_up
from benchmarks.spool.outage import Outage, measure_cost, measure_writes

#: `sluice mic --spool` may cost so many times what `sluice mic` costs.
COST_AIM = 1.25
#: Bytes at the device for each byte captured.
WRITES_AIM = 1.1
#: Of curl's throughput.
CATCH_UP_AIM = 0.9


def cost_section(found: dict[str, list[Outage]], options: argparse.Namespace) -> Section:
    note = (
        f"`sluice mic` (48 kHz stereo, periods of 125 ms) with `--spool` beside `sluice mic` without it, "
        f"{options.rounds} rounds of {options.seconds:g} s in turn. Connected: to `sluice serve`. Outage: nobody listens, "
        "and all goes to the disk or stays in memory. `make bench-spool`."
    )
    rows = []
    remarks = []
    for state in ("connected", "outage"):
        with_spool, without = (
            [one.cpu_s_per_min for one in found.get(f"{state}, {which}", [])] for which in ("spool", "memory")
        )
        if not with_spool or len(with_spool) != len(without):
            continue
        ratios = [ours / theirs for ours, theirs in zip(with_spool, without)]
        rows.append([state, *(median_and_spread(each, 3) for each in (with_spool, without)), median_and_spread(ratios)])
        if state == "connected":
            verdict = "met" if statistics.median(ratios) <= COST_AIM else "missed"
            remarks.append(f"aim with a connection: at most {COST_AIM} times the cost, {verdict}")
    header = ["", "with --spool, CPU s/min", "without, CPU s/min", "ratio"]
    return Section("Spool: what it costs", note, [Table(header, rows)], remarks=remarks)


def writes_section(found: list[Outage], options: argparse.Namespace) -> Section:
    note = (
        f"Bytes written for each byte captured in an outage of {options.seconds:g} s, on an ext4 file system of its own: by "
        "Sluice (write calls), and at the device, which includes the file system's journal. `make bench-spool`."
    )
    rows = [[one.title, f"{one.called:.3f}", f"{one.at_device:.3f}"] for one in found]
    missed = [one.title for one in found if one.at_device > WRITES_AIM]
    remarks = [f"aim: at most {WRITES_AIM} at the device, {'missed by ' + '; by '.join(missed) if missed else 'met'}"]
    remarks.append(
        "each synchronization costs the journal three blocks of the file system, so for a slow stream --sync-interval and "
        "the size of these blocks decide"
    )
    return Section("Spool: what is written", note, [Table(["", "by Sluice", "at the device"], rows)], remarks=remarks)


def catch_up_section(found: list[CatchUp], options: argparse.Namespace) -> Section:
    note = (
        f"{options.size} MB that an outage has left in a spool, sent by `sluice spool drain`, beside `curl -T` of a file "
        "with the same bytes, to the same `sluice serve`, in turn; all files in memory. Each time, the stored bytes "
        "are compared. `make bench-spool`."
    )
    ratios = [one.curl_seconds / one.drain_seconds for one in found]
    rates = ([options.size / one.drain_seconds for one in found], [options.size / one.curl_seconds for one in found])
    rows = [["MB/s", *(median_and_spread(rate, 0) for rate in rates), median_and_spread(ratios)]] if found else []
    remarks = []
    if ratios:
        verdict = "met" if statistics.median(ratios) >= CATCH_UP_AIM else "missed"
        remarks.append(f"aim: at least {CATCH_UP_AIM} of curl's throughput, {verdict}")
    table = Table(["", "sluice spool drain", "curl -T", "ratio"], rows)
    return Section("Spool: catching up", note, [table], remarks=remarks)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure what a spool costs, writes, and catches up.")
    add_arguments(parser, rounds=5, of="how often each is measured")
    parser.add_argument("--seconds", type=float, default=30, help="how long each stream runs (default: 30)")
    parser.add_argument("--size", type=int, default=512, help="of the backlog, in MB (default: 512)")
    parser.add_argument("--only", choices=("cost", "writes", "catch-up"), help="one of the three measurements")
    options = parser.parse_args()
    costs: dict[str, list[Outage]] = {}
    writes: list[Outage] = []
    catching_up: list[CatchUp] = []
    report = Report("bench-spool")
    with report.measuring():
        need("cc", "curl")
        need_built(SLUICE, "build")
        size = options.size * 1_000_000
        with scratch_directory() as disk, scratch_directory(in_memory(4 * size)) as memory:
            if options.only in (None, "catch-up"):
                catch_up(memory, size, options.rounds, catching_up)
            if options.only in (None, "writes"):
                measure_writes(disk, options.seconds, writes)
            if options.only in (None, "cost"):
                measure_cost(disk, options.seconds, options.rounds, costs)
    sections = []
    if costs:
        sections.append(cost_section(costs, options))
    if writes:
        sections.append(writes_section(writes, options))
    if catching_up:
        sections.append(catch_up_section(catching_up, options))
    report.sections = sections
    report.figures = {"cost": costs, "writes": writes, "catching_up": catching_up}
    return report.finish(options)


if __name__ == "__main__":
    sys.exit(main())
