#!/usr/bin/env python3
"""The fault table: the same faults for us and for them, and how much audio is then missing from what the server stored.

All contenders meet a fault at the same moment, each with a microphone and a server of its own. Socket buffers are those
of a real path (64 KiB at both ends, segments of 1448 bytes; the sender's by a network namespace): loopback's own
swallow seconds of audio and hide every stall. What is missing is counted in frames by the microphone's noise, over all
bodies that the server stored.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.common.harness import BenchmarkError, Pipeline, end_on_signals, need, scratch_directory
from benchmarks.common.instruments import Receiver
from benchmarks.common.network import enter_bounded_network
from benchmarks.common.recording import Request, read_requests
from benchmarks.common.report import machine, markdown_table, print_table, write_section
from benchmarks.live import contenders, testmic_signal
from benchmarks.live.beds import TestMicrophoneBed
from benchmarks.live.contenders import Capture, Contender

RATE, CHANNELS = 48_000, 1
# Steady streaming before the fault, and after it: enough for every contender to find its pace, and to catch up.
BEFORE, AFTER = 3.0, 9.0
# The first moments are left out: ffmpeg throws a packet away while it looks what it is, fault or no fault.
BEGINNING = 0.1
# What was captured in the last moment before the stop may still be on its way, which is no loss.
UNFINISHED = 1.0


class Scene:
    """One contender with its microphone and its server, to which a fault happens."""

    def __init__(self, contender: Contender, bed: TestMicrophoneBed, directory: Path) -> None:
        self.contender = contender
        self.bed = bed
        self.store = directory / "store"
        self.store.mkdir(parents=True)
        self._directory = directory
        bed.prepare_run(directory, contender.period_ms)
        self.receiver = Receiver(self.store, bounded=True)
        self._pipeline: Pipeline | None = None

    @property
    def pipeline(self) -> Pipeline:
        if self._pipeline is None:
            raise BenchmarkError("the contender has not been started")
        return self._pipeline

    def start_contender(self) -> None:
        url = f"http://127.0.0.1:{self.receiver.port}/stream"
        capture = Capture(self.bed.device, url, RATE, CHANNELS, 2 * CHANNELS)
        self._pipeline = Pipeline(self.contender.commands(capture), self.bed.environment, self._directory)

    def start_streaming(self) -> None:
        """The server, then the contender, then some seconds in which all is well."""
        self.receiver.start()
        self.start_contender()
        self.receiver.wait_for("first byte", 20)
        self.pass_time(BEFORE)

    def pass_time(self, seconds: float) -> None:
        """The world goes on, whether the contender lives or not. Not a wait for anything."""
        time.sleep(seconds)

    def close(self) -> None:
        if self._pipeline:
            self._pipeline.kill()
        self.receiver.stop()


def server_killed(scene: Scene) -> None:
    scene.start_streaming()
    scene.receiver.kill()
    scene.pass_time(3)
    scene.receiver.start()


def server_stalls(scene: Scene) -> None:
    scene.start_streaming()
    scene.receiver.order("stall 5")
    scene.pass_time(5)


def stalled_server_killed(scene: Scene) -> None:
    scene.start_streaming()
    scene.receiver.order("stall 60")
    scene.pass_time(5)
    scene.receiver.kill()
    scene.pass_time(3)
    scene.receiver.start()


def streamer_stopped(scene: Scene) -> None:
    scene.start_streaming()
    scene.pipeline.send(signal.SIGSTOP)
    scene.pass_time(3)
    scene.pipeline.send(signal.SIGCONT)


def server_late(scene: Scene) -> None:
    scene.start_contender()
    scene.pass_time(5)
    scene.receiver.start()


def connection_reset(scene: Scene) -> None:
    scene.start_streaming()
    scene.receiver.order("reset")


def server_refuses(scene: Scene) -> None:
    scene.start_streaming()
    scene.receiver.order("refuse 5")
    scene.pass_time(5)


FAULTS: dict[str, tuple[str, Callable[[Scene], None]]] = {
    "kill": ("server killed (SIGKILL), back after 3 s", server_killed),
    "stall": ("server reads nothing for 5 s", server_stalls),
    "stall-kill": ("server reads nothing for 5 s, is then killed, back after 3 s", stalled_server_killed),
    "stop": ("streaming process stopped (SIGSTOP) for 3 s", streamer_stopped),
    "late": ("server 5 s late", server_late),
    "reset": ("TCP connection reset", connection_reset),
    "refuse": ("503 for 5 s", server_refuses),
}


@dataclass
class Outcome:
    """What a fault did to one contender."""

    missing_ms: float  # captured, and nowhere in what the server stored
    repeated_ms: float  # stored twice, beyond what Stream-Offset says is the same
    died: bool  # ended by itself
    told: str  # "amount", "error" or "nothing": the most that the contender said about it
    message: str  # the line in which it said so
    requests: int

    def cell(self) -> str:
        """For the table."""
        told = {"amount": "says how much", "error": "says an error", "nothing": "says nothing"}[self.told]
        said = "" if self.missing_ms == 0 and self.told == "nothing" else f", {told}"
        return f"{self.missing_ms:.0f} ms{', dead' if self.died else ''}{said}"


def merged(runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Half-open ranges of frames, joined where they touch or overlap."""
    joined: list[tuple[int, int]] = []
    for first, end in sorted(runs):
        if joined and first <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((first, end))
    return joined


def placed(requests: list[Request]) -> bytes:
    """The stored stream: each body where its `Stream-Offset` says, or after all that came before."""
    stream = bytearray()
    for request in requests:
        offset = request.stream_offset
        start = len(stream) if offset is None else offset
        # A hole that the client left, as a server would: silence.
        stream.extend(bytes(max(0, start - len(stream))))
        stream[start : start + len(request.body)] = request.body
    return bytes(stream)


# A number with its unit in a line that speaks of loss: "overrun!!! (at least 2490.123 ms long)", "dropped 38 samples".
# (On a plugin's device arecord takes the clock's whole reading for the length; on a sound card the length is right.)
_LOSS = re.compile(r"overrun|lost|missing|dropped|gap|hole|silence|overwritten", re.IGNORECASE)
_AMOUNT = re.compile(
    r"[1-9][\d.]*\s*(ms|s|seconds|samples|frames|bytes|kB|KiB|MiB)\b|(frames|bytes|ms|seconds)\"?:\s*[1-9]",
    re.IGNORECASE,
)


def _tells_amount(line: str) -> bool:
    if not line.startswith("{"):
        return bool(_LOSS.search(line) and _AMOUNT.search(line))
    with contextlib.suppress(ValueError):
        event = json.loads(line)
        # In an event every number has a name: `"lost": 0` tells that nothing was.
        lost = [value for name, value in event.items() if _LOSS.search(name) and isinstance(value, int)]
        return event.get("event") == "gap" or any(value > 0 for value in lost if not isinstance(value, bool))
    return False


def _tells_error(line: str, contender: Contender) -> bool:
    if not line.startswith("{"):
        return any(word in line.lower() for word in contender.complaints)
    with contextlib.suppress(ValueError):
        event = json.loads(line)
        return event.get("event") == "dropout" or event.get("error") is not None
    return False


def what_was_told(before_stop: str, at_end: str, contender: Contender, died: bool) -> tuple[str, str]:
    """The most that was said: an amount (a summary at the end counts), an error, or nothing.

    Errors count only from before the stop: being interrupted makes some complain."""
    # The last such line: a summary says more than the first thing that went wrong.
    for line in reversed(at_end.splitlines()):
        if _tells_amount(line):
            return "amount", line.strip()
    for line in before_stop.splitlines():
        if _tells_error(line, contender):
            return "error", line.strip()
    return ("error", "exit code") if died else ("nothing", "")


def conclude(scene: Scene) -> Outcome:
    """Lets the contender recover, stops it, and looks at what the server has."""
    scene.pass_time(AFTER)
    died = scene.pipeline.ended_by_itself()
    said = scene.pipeline.said()
    stopped = time.monotonic_ns()
    scene.pipeline.interrupt()
    scene.receiver.stop()
    codes = [member.exit.code for member in scene.pipeline.members if member.exit]
    told, message = what_was_told(said, scene.pipeline.said(), scene.contender, died and any(codes))
    requests = read_requests(scene.store)
    stream = placed(requests)
    found = testmic_signal.read_runs(stream, CHANNELS)
    runs = [(run.first_frame, run.first_frame + run.frames) for run in found.runs]
    # A microphone that was never started has no time of its own: then everything since the start is missing.
    started = scene.bed.capture_start_ns() or scene.pipeline.started_ns
    begin, end = int(BEGINNING * RATE), int(((stopped - started) / 1e9 - UNFINISHED) * RATE)
    there = sum(max(0, min(last, end) - max(first, begin)) for first, last in merged(runs))
    return Outcome(
        missing_ms=(end - begin - there) * 1e3 / RATE,
        repeated_ms=found.repeated_frames * 1e3 / RATE,
        died=died,
        told=told,
        message=message,
        requests=len(requests),
    )


def play(fault: str, chosen: list[Contender], tools: Path, directory: Path) -> dict[str, Outcome]:
    """One fault, all contenders at once: nothing here measures time, and audio is a small load."""
    outcomes: dict[str, Outcome] = {}
    failures: list[str] = []

    def act(contender: Contender) -> None:
        scene = Scene(contender, TestMicrophoneBed(tools, RATE, CHANNELS), directory / contender.key)
        try:
            FAULTS[fault][1](scene)
            outcomes[contender.key] = conclude(scene)
        except BenchmarkError as error:
            failures.append(f"{contender.title}, {fault}: {error}; it said: {scene.pipeline.said()}")
        finally:
            scene.close()

    threads = [threading.Thread(target=act, args=(contender,)) for contender in chosen]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise BenchmarkError("\n".join(failures))
    return outcomes


def typical(outcomes: list[Outcome]) -> Outcome:
    """The round with the median loss."""
    middle = statistics.median_low([outcome.missing_ms for outcome in outcomes])
    return next(outcome for outcome in outcomes if outcome.missing_ms == middle)


def main() -> int:
    parser = argparse.ArgumentParser(description="Break things around contenders and count the missing audio.")
    parser.add_argument("--rounds", type=int, default=3, help="how often each fault happens (default: 3)")
    parser.add_argument("--only", default="", help="contenders, comma-separated: " + ", ".join(contenders.KEYS))
    parser.add_argument("--faults", default="", help="faults, comma-separated: " + ", ".join(FAULTS))
    parser.add_argument("--json", type=Path, help="write all outcomes to this file")
    parser.add_argument("--write", action="store_true", help="write the table into docs/benchmarks.md")
    options = parser.parse_args()
    end_on_signals()
    bounded = enter_bounded_network()
    faults = [name for name in FAULTS if not options.faults or name in options.faults.split(",")]
    try:
        chosen = contenders.choose(options.only, default=contenders.FAULT_TABLE)
        need(*{program for contender in chosen for program in contender.programs})
        results: dict[str, dict[str, list[Outcome]]] = {fault: {} for fault in faults}
        with scratch_directory() as scratch, TestMicrophoneBed(_made(scratch / "tools"), RATE, CHANNELS):
            for turn in range(options.rounds):
                for fault in faults:
                    print(f"round {turn + 1} of {options.rounds}: {FAULTS[fault][0]}", file=sys.stderr)
                    outcomes = play(fault, chosen, scratch / "tools", scratch / f"{turn}-{fault}")
                    for key, outcome in outcomes.items():
                        results[fault].setdefault(key, []).append(outcome)
    except BenchmarkError as error:
        print(f"faults: {error}", file=sys.stderr)
        return 1
    header = ["fault", *(contender.title for contender in chosen)]
    rows = [
        [FAULTS[fault][0], *(typical(results[fault][contender.key]).cell() for contender in chosen)] for fault in faults
    ]
    print_table(header, rows)
    for fault in faults:
        for contender in chosen:
            outcome = typical(results[fault][contender.key])
            spread = [round(each.missing_ms) for each in results[fault][contender.key]]
            if outcome.missing_ms or outcome.repeated_ms:
                print(f"{fault}, {contender.key}: {spread} ms, {outcome.repeated_ms:.0f} ms twice; {outcome.message}")
    if options.json:
        found = {"machine": machine(), "outcomes": results}
        options.json.write_text(json.dumps(found, indent=2, default=asdict) + "\n")
    if options.write:
        buffers = "64 KiB at both ends" if bounded else "64 KiB at the server only"
        note = (
            f"Audio missing from what the server stored, the median of {options.rounds} rounds, and what the contender "
            f"said about it. {RATE // 1000} kHz mono, socket buffers of {buffers}. `make bench-faults`."
        )
        write_section("Faults", f"{note}\n\n{markdown_table(header, rows)}")
    return 0


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory


if __name__ == "__main__":
    sys.exit(main())
