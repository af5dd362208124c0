#!/usr/bin/env python3
"""`make bench-spool`: the cost of a spool in processor time and disk writes, and the speed of catching up.

The processor time of `sluice mic --spool` is compared with that of `sluice mic`, with a connection and without one.
Writes during an outage are counted at the device of a separate file system. Catching up is compared with `curl -T` of
the same bytes to the same server.
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

#: The maximum ratio of the cost of `sluice mic --spool` to that of `sluice mic`.
COST_AIM = 1.25
#: The maximum number of bytes at the device per captured byte.
WRITES_AIM = 1.1
#: The minimum share of curl's throughput.
CATCH_UP_AIM = 0.9


def cost_section(found: dict[str, list[Outage]], options: argparse.Namespace) -> Section:
    note = (
        f"`sluice mic` (48 kHz stereo, periods of 125 ms) with and without `--spool`, in {options.rounds} alternating "
        f"rounds of {options.seconds:g} s. Connected: it streams to `sluice serve`. Outage: no server listens, and the "
        "bytes go to the disk or stay in memory. `make bench-spool`."
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
            remarks.append(f"target with a connection: at most {COST_AIM} times the cost, {verdict}")
    header = ["", "with --spool, CPU s/min", "without --spool, CPU s/min", "ratio"]
    return Section("Spool: cost", note, [Table(header, rows)], remarks=remarks)


def writes_section(found: list[Outage], options: argparse.Namespace) -> Section:
    note = (
        f"Bytes written per captured byte during an outage of {options.seconds:g} s, on a separate ext4 file system. "
        "The first column counts Sluice's write calls. The second counts the device's writes, which include the file "
        "system's journal. `make bench-spool`."
    )
    rows = [[one.title, f"{one.called:.3f}", f"{one.at_device:.3f}"] for one in found]
    missed = [one.title for one in found if one.at_device > WRITES_AIM]
    verdict = "missed by " + "; by ".join(missed) if missed else "met"
    remarks = [
        f"target: at most {WRITES_AIM} at the device, {verdict}",
        "each sync writes three blocks of the file system to the journal, so --sync-interval and the size of these "
        "blocks determine the ratio of a slow stream",
    ]
    return Section("Spool: bytes written", note, [Table(["", "by Sluice", "at the device"], rows)], remarks=remarks)


def catch_up_section(found: list[CatchUp], options: argparse.Namespace) -> Section:
    note = (
        f"`sluice spool drain` sends {options.size} MB that an outage has left in a spool, and `curl -T` sends a file "
        "with the same bytes, alternately to the same `sluice serve`. All files are in memory. The stored bytes are "
        "compared after each upload. `make bench-spool`."
    )
    ratios = [one.curl_seconds / one.drain_seconds for one in found]
    rates = ([options.size / one.drain_seconds for one in found], [options.size / one.curl_seconds for one in found])
    rows = [["MB/s", *(median_and_spread(rate, 0) for rate in rates), median_and_spread(ratios)]] if found else []
    remarks = []
    if ratios:
        verdict = "met" if statistics.median(ratios) >= CATCH_UP_AIM else "missed"
        remarks.append(f"target: at least {CATCH_UP_AIM} of curl's throughput, {verdict}")
    table = Table(["", "sluice spool drain", "curl -T", "ratio"], rows)
    return Section("Spool: catching up", note, [table], remarks=remarks)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the cost, the writes, and the catching up of a spool.")
    add_arguments(parser, rounds=5, of="how many times each is measured")
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
