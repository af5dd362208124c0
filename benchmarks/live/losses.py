"""Measures how much audio a fault destroyed, by the microphone's noise, and reads what the contender reported."""

from __future__ import annotations

import contextlib
import json
import re
import time
from dataclasses import dataclass

from benchmarks.common.recording import Request, read_requests
from benchmarks.live import testmic_signal
from benchmarks.live.contenders import Contender
from benchmarks.live.scenes import CHANNELS, RATE, Scene

# Steady streaming after the fault: enough for every contender to catch up.
AFTER = 9.0
# The first moments are not counted, because ffmpeg discards a packet while it probes the format, even without a fault.
BEGINNING = 0.1
# Audio from the last moment before the stop may still be on its way, so it does not count as lost.
UNFINISHED = 1.0


@dataclass
class Outcome:
    """What a fault did to one contender."""

    missing_ms: float  # captured, but not stored
    repeated_ms: float  # stored twice, except where Stream-Offset marks bytes as the same
    died: bool  # ended by itself
    told: str  # "amount", "error" or "nothing": the most precise report of the contender
    message: str  # the line with that report
    requests: int

    def cell(self) -> str:
        """For the table."""
        told = {"amount": "reports the amount", "error": "reports an error", "nothing": "reports nothing"}[self.told]
        said = "" if self.missing_ms == 0 and self.told == "nothing" else f", {told}"
        return f"{self.missing_ms:.0f} ms{', ended' if self.died else ''}{said}"


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
    """The stored stream. Each body is at its `Stream-Offset`, or after all bodies before it."""
    stream = bytearray()
    for request in requests:
        offset = request.stream_offset
        start = len(stream) if offset is None else offset
        # Fills a hole that the client left with silence, as a server would.
        stream.extend(bytes(max(0, start - len(stream))))
        stream[start : start + len(request.body)] = request.body
    return bytes(stream)


# A number with its unit in a line about a loss: "overrun!!! (at least 2490.123 ms long)", "dropped 38 samples".
# (On the device of a plugin, arecord reports the reading of the clock as the length. On a sound card it is right.)
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
        # In an event every number has a name: `"lost": 0` reports that nothing was lost.
        lost = [value for name, value in event.items() if _LOSS.search(name) and isinstance(value, int)]
        return event.get("event") == "gap" or any(value > 0 for value in lost if not isinstance(value, bool))
    return False


def _tells_error(line: str, contender: Contender) -> bool:
    if not line.startswith("{"):
        return any(word in line.lower() for word in contender.complaints)
    with contextlib.suppress(ValueError):
        event = json.loads(line)
        return event.get("event") == "outage" or event.get("error") is not None
    return False


def what_was_told(before_stop: str, at_end: str, contender: Contender, died: bool) -> tuple[str, str]:
    """The most precise report: an amount (which may be in a summary at the end), an error, or nothing.

    Errors count only before the stop, because some contenders report an error when they are interrupted."""
    # The last such line, because a summary is more complete than the first error.
    for line in reversed(at_end.splitlines()):
        if _tells_amount(line):
            return "amount", line.strip()
    for line in before_stop.splitlines():
        if _tells_error(line, contender):
            return "error", line.strip()
    return ("error", "exit code") if died else ("nothing", "")


def conclude(scene: Scene) -> Outcome:
    """Lets the contender recover, stops it, and examines the bytes that its server has stored."""
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
    # If the microphone was never started, everything since the start of the contender is missing.
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
