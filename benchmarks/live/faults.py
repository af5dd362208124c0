#!/usr/bin/env python3
"""The fault table: how much audio the stored stream of each contender lacks after the same faults.

All contenders experience a fault at the same moment, each with its own microphone and server. Socket buffers have the
sizes of a real path (64 KiB at both ends, segments of 1448 bytes). A network namespace limits those of the sender. The
buffers of loopback would hold seconds of audio and hide every stall. The microphone's noise identifies each frame, so
missing frames are counted over all bodies that the server stored.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.common.harness import BenchmarkError, need, scratch_directory
from benchmarks.common.network import enter_bounded_network
from benchmarks.common.report import Report, Section, add_arguments
from benchmarks.common.tables import Table
from benchmarks.live import contenders
from benchmarks.live.beds import TestMicrophoneBed
from benchmarks.live.contenders import Contender
from benchmarks.live.losses import Outcome, conclude
from benchmarks.live.scenes import CHANNELS, FAULTS, RATE, Scene

#: For each fault, by each contender's key, its rounds.
Outcomes = dict[str, dict[str, list[Outcome]]]


def play(
    fault: str, chosen: Sequence[Contender], tools: Path, directory: Path, found: dict[str, list[Outcome]]
) -> None:
    """Plays one fault for all contenders at once, because nothing here measures time and audio is a small load. If one
    fails, the outcomes of the others are kept."""

    def act(contender: Contender) -> Outcome:
        bed = TestMicrophoneBed(tools, RATE, CHANNELS)
        with contextlib.closing(Scene(contender, bed, directory / contender.key)) as scene:
            try:
                FAULTS[fault][1](scene)
                return conclude(scene)
            except BenchmarkError as error:
                raise BenchmarkError(f"{contender.title}, {fault}: {error}; it said: {scene.said()}") from None

    failures: list[str] = []
    with ThreadPoolExecutor(len(chosen) or 1) as threads:
        acts = {contender.key: threads.submit(act, contender) for contender in chosen}
        for key, outcome in acts.items():
            try:
                shown = outcome.result()
                found.setdefault(key, []).append(shown)
            except BenchmarkError as error:
                failures.append(str(error))
    if failures:
        raise BenchmarkError("\n".join(failures))


def play_all(faults: Sequence[str], chosen: Sequence[Contender], rounds: int, outcomes: Outcomes) -> None:
    """Plays all faults in each round."""
    need(*{program for contender in chosen for program in contender.programs})
    with scratch_directory() as scratch:
        tools = scratch / "tools"
        tools.mkdir()
        with TestMicrophoneBed(tools, RATE, CHANNELS):
            for turn in range(rounds):
                for fault in faults:
                    print(f"round {turn + 1} of {rounds}: {FAULTS[fault][0]}", file=sys.stderr)
                    play(fault, chosen, tools, scratch / f"{turn}-{fault}", outcomes.setdefault(fault, {}))


def typical(outcomes: list[Outcome]) -> Outcome:
    """The round with the median loss."""
    middle = statistics.median_low([outcome.missing_ms for outcome in outcomes])
    return next(outcome for outcome in outcomes if outcome.missing_ms == middle)


def table(outcomes: Outcomes, chosen: Sequence[Contender]) -> Table:
    rows = [
        [
            FAULTS[fault][0],
            *(typical(found[each.key]).cell() if each.key in found else "–" for each in chosen),
        ]
        for fault, found in outcomes.items()
        if found
    ]
    return Table(["fault", *(contender.title for contender in chosen)], rows)


def details(outcomes: Outcomes) -> list[str]:
    """All rounds and the contender's message, if any audio was missing or repeated."""
    lines = []
    for fault, found in outcomes.items():
        for key, rounds in found.items():
            outcome = typical(rounds)
            spread = [round(each.missing_ms) for each in rounds]
            if outcome.missing_ms or outcome.repeated_ms:
                lines.append(f"{fault}, {key}: {spread} ms, {outcome.repeated_ms:.0f} ms twice; {outcome.message}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description="Cause faults for each contender, and count the missing audio.")
    add_arguments(parser, rounds=3, of="how many times each fault happens")
    parser.add_argument("--only", default="", help="contenders, comma-separated: " + ", ".join(contenders.KEYS))
    parser.add_argument("--faults", default="", help="faults, comma-separated: " + ", ".join(FAULTS))
    options = parser.parse_args()
    bounded = enter_bounded_network()
    faults = [name for name in FAULTS if not options.faults or name in options.faults.split(",")]
    outcomes: Outcomes = {}
    chosen: list[Contender] = []
    report = Report("faults", figures_name="outcomes")
    with report.measuring():
        chosen = contenders.choose(options.only, default=contenders.FAULT_TABLE)
        play_all(faults, chosen, options.rounds, outcomes)
    buffers = "64 KiB at both ends" if bounded else "64 KiB at the server only"
    note = (
        f"Audio that the stored stream lacks, the median of {options.rounds} rounds, and the contender's report of it. "
        f"{RATE // 1000} kHz mono, with socket buffers of {buffers}. `make bench-faults`."
    )
    report.sections = [Section("Faults", note, [table(outcomes, chosen)], details=details(outcomes))]
    report.figures = outcomes
    return report.finish(options)


if __name__ == "__main__":
    sys.exit(main())
