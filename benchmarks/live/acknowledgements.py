#!/usr/bin/env python3
"""`make bench-acknowledgements`: the cost of the server's acknowledgements for a microphone's stream.

`sluice mic` streams to `sluice serve`, alternately as a resumable upload, as one without its digest, and as one plain
request. For comparison, LeastMicrophone (C) shows the minimum cost of a stream. In all cases a relay in between stores
the bytes and stamps their arrival.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks.common.harness import SLUICE, BenchmarkError, need_built, scratch_directory
from benchmarks.common.instruments import Relay
from benchmarks.common.report import Report, add_arguments
from benchmarks.common.sluice_server import SluiceServer, sluice_server
from benchmarks.live.beds import TestMicrophoneBed
from benchmarks.live.comparison import Comparison, Rounds, Target
from benchmarks.live.contenders import (
    LEAST_ARECORD,
    LEAST_MICROPHONE,
    LEAST_QUICK,
    SLUICE_ARECORD,
    SLUICE_QUICK,
    Capture,
    Contender,
)
from benchmarks.live.live import CHANNELS, RATE
from benchmarks.live.live_path import measure

#: A few percent. A larger ratio would require an explanation.
AIM = 1.05
#: The maximum ratio to the cost of LeastMicrophone.
LEAST_AIM = 1.4

COLUMNS = (
    ("CPU s/min", "cpu_s_per_min", 3),
    ("server, CPU s/min", "server_cpu_s_per_min", 3),
    ("PSS MiB", "pss_mib", 1),
    ("wake-ups/s", "wakeups_per_s", 1),
    ("delay ms, median", "delay_median_ms", 1),
    ("delay ms, p99", "delay_p99_ms", 1),
)


def _with(base: Contender, key: str, title: str, *options: str) -> Contender:
    def commands(capture: Capture) -> list[Sequence[str]]:
        (command,) = base.commands(capture)
        # Events for programs are turned off, because no program reads them here.
        return [[*command[: command.index("--progress")], "--progress", "none", *options]]

    return Contender(f"{base.key}-{key}", f"{base.title}, {title}", base.period_ms, commands, ours=True)


def _variants(base: Contender) -> tuple[Contender, Contender, Contender]:
    return (
        _with(base, "resumable", "resumable", "--resumable", "always"),
        _with(base, "no-digest", "resumable, no digest", "--resumable", "always", "--digest", "none"),
        _with(base, "plain", "plain", "--resumable", "never"),
    )


#: Our contender and LeastMicrophone, by the microphone's period in ms.
BASES = {"10": (SLUICE_QUICK, LEAST_QUICK), "125": (SLUICE_ARECORD, LEAST_ARECORD)}


def measure_variants(
    chosen: Sequence[Contender],
    bed: TestMicrophoneBed,
    server: SluiceServer,
    options: argparse.Namespace,
    scratch: Path,
    rounds: Rounds,
) -> None:
    """Runs the variants alternately, every other round in reverse order."""
    relay: Callable[[Path], Relay] = partial(Relay, server.port, 0.0)
    for turn in range(options.rounds):
        for contender in chosen if turn % 2 == 0 else reversed(chosen):
            print(f"round {turn + 1} of {options.rounds}: {contender.title}", file=sys.stderr)
            directory = scratch / f"{turn}-{contender.key}"
            figures = measure(contender, bed, directory, options.seconds, RATE, CHANNELS, relay, server.process)
            if figures.missing_ms:
                print(f"  {figures.missing_ms:.1f} ms of audio missing: this machine was too busy", file=sys.stderr)
            rounds.setdefault(contender.key, []).append(figures.json())
            server.clear()


def measure_period(period: str, options: argparse.Namespace, found: list[Comparison]) -> None:
    """Measures all variants of the microphone with this period, with a separate server."""
    if period not in BASES:
        raise BenchmarkError(f"no period of {period} ms; there are: {', '.join(BASES)}")
    ours, least = BASES[period]
    variants = _variants(ours)
    note = (
        f"Test microphone, periods of {period} ms, {RATE // 1000} kHz mono, to `sluice serve` through a relay "
        f"that records arrival times; {options.rounds} rounds of {options.seconds:g} s. "
        "`make bench-acknowledgements`."
    )
    resumable, _, plain = variants
    chosen = (*variants, least)
    targets = (
        Target("cpu_s_per_min", resumable.key, least.key, LEAST_AIM),
        *(
            Target(what, resumable.key, plain.key, AIM)
            for what in ("server_cpu_s_per_min", "pss_mib", "wakeups_per_s", "delay_p99_ms")
        ),
    )
    titles = {contender.key: contender.title for contender in chosen}
    found.append(Comparison(f"acknowledgements, {period} ms", note, {}, titles, COLUMNS, targets))
    with scratch_directory() as scratch, sluice_server(scratch / "server", "--durability", "none") as server:
        tools = scratch / "tools"
        tools.mkdir()
        with TestMicrophoneBed(tools, RATE, CHANNELS) as bed:
            measure_variants(chosen, bed, server, options, scratch, found[-1].rounds)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the cost of acknowledgements for a microphone's stream.")
    add_arguments(parser, rounds=5, of="turns of each variant")
    parser.add_argument("--seconds", type=float, default=20, help="duration of steady streaming per run (default: 20)")
    parser.add_argument("--periods", default="10,125", help="periods of the microphone, in ms (default: 10,125)")
    options = parser.parse_args()
    report = Report("acknowledgements")
    found: list[Comparison] = []
    with report.measuring():
        need_built(SLUICE, "build")
        need_built(LEAST_MICROPHONE, ".build/least-microphone")
        for period in options.periods.split(","):
            measure_period(period, options, found)
    report.sections = [each.section() for each in found]
    report.figures = {each.title: each.rounds for each in found}
    return report.finish(options)


if __name__ == "__main__":
    sys.exit(main())
