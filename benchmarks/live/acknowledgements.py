#!/usr/bin/env python3
"""`make bench-acknowledgements`: what it costs a microphone's stream that the server acknowledges what it has kept.

`sluice mic` to `sluice serve`, in turn as a resumable upload and as one plain request, and resumable without the digest
that only such an upload has. A relay in between stamps and stores what arrives, in all three alike.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks.common.harness import SLUICE, BenchmarkError, end_on_signals, scratch_directory
from benchmarks.common.instruments import Relay
from benchmarks.common.report import machine, write_section
from benchmarks.common.sluice_server import SluiceServer, sluice_server
from benchmarks.live.beds import TestMicrophoneBed
from benchmarks.live.contenders import SLUICE_ARECORD, SLUICE_QUICK, Capture, Contender
from benchmarks.live.live import CHANNELS, RATE, Rounds, Section, Target
from benchmarks.live.live_path import measure

#: A few percent: more would have to be explained.
AIM = 1.05

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
        # Events for programs are not what is compared: nobody reads them here.
        return [[*command[: command.index("--progress")], "--progress", "none", *options]]

    return Contender(f"{base.key}-{key}", f"{base.title}, {title}", base.period_ms, commands, ours=True)


def _variants(base: Contender) -> tuple[Contender, Contender, Contender]:
    return (
        _with(base, "resumable", "resumable", "--resumable", "always"),
        _with(base, "no-digest", "resumable, no digest", "--resumable", "always", "--digest", "none"),
        _with(base, "plain", "plain", "--resumable", "never"),
    )


def rounds_of(
    chosen: Sequence[Contender],
    bed: TestMicrophoneBed,
    server: SluiceServer,
    options: argparse.Namespace,
    scratch: Path,
) -> Rounds:
    """Turn by turn, every other round backwards."""
    rounds: Rounds = {contender.key: [] for contender in chosen}
    relay: Callable[[Path], Relay] = partial(Relay, server.port, 0.0)
    for turn in range(options.rounds):
        for contender in chosen if turn % 2 == 0 else reversed(chosen):
            print(f"round {turn + 1} of {options.rounds}: {contender.title}", file=sys.stderr)
            directory = scratch / f"{turn}-{contender.key}"
            figures = measure(contender, bed, directory, options.seconds, RATE, CHANNELS, relay, server.process)
            if figures.missing_ms:
                print(f"  {figures.missing_ms:.1f} ms of audio missing: this machine was too busy", file=sys.stderr)
            rounds[contender.key].append(figures.json())
            server.clear()
    return rounds


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure what acknowledgements cost a microphone's stream.")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each variant (default: 5)")
    parser.add_argument("--seconds", type=float, default=20, help="of steady streaming in each (default: 20)")
    parser.add_argument("--periods", default="10,125", help="of the microphone, in ms (default: 10,125)")
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/benchmarks.md")
    options = parser.parse_args()
    end_on_signals()
    bases = {"10": SLUICE_QUICK, "125": SLUICE_ARECORD}
    sections: list[Section] = []
    failed = False
    try:
        if not SLUICE.exists():
            raise BenchmarkError(f"{SLUICE} is not there: make build")
        for period in options.periods.split(","):
            if period not in bases:
                raise BenchmarkError(f"no period of {period} ms; there are: {', '.join(bases)}")
            chosen = _variants(bases[period])
            with scratch_directory() as scratch, sluice_server(scratch / "server", "--durability", "none") as server:
                tools = scratch / "tools"
                tools.mkdir()
                with TestMicrophoneBed(tools, RATE, CHANNELS) as bed:
                    rounds = rounds_of(chosen, bed, server, options, scratch)
            note = (
                f"Test microphone, periods of {period} ms, {RATE // 1000} kHz mono, to `sluice serve` through a relay "
                f"that stamps arrivals; {options.rounds} rounds of {options.seconds:g} s. "
                "`make bench-acknowledgements`."
            )
            resumable, _, plain = chosen
            targets = tuple(
                Target(what, resumable.key, plain.key, AIM)
                for what in ("cpu_s_per_min", "server_cpu_s_per_min", "pss_mib", "wakeups_per_s", "delay_p99_ms")
            )
            titles = {contender.key: contender.title for contender in chosen}
            sections.append(Section(f"acknowledgements, {period} ms", note, rounds, titles, COLUMNS, targets))
    except BenchmarkError as error:
        # What was measured until then is shown all the same.
        print(f"acknowledgements: {error}", file=sys.stderr)
        failed = True
    print("; ".join(f"{name} {value}" for name, value in machine().items() if value), end="\n\n")
    for section in sections:
        section.show()
    if options.json:
        figures = {section.title: section.rounds for section in sections}
        options.json.write_text(json.dumps({"machine": machine(), "figures": figures}, indent=2) + "\n")
    if options.write and not failed:
        for section in sections:
            write_section(section.title[0].upper() + section.title[1:], section.markdown())
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
