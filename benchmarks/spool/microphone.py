"""`sluice mic` as a process whose events are read while it runs, and a check of the server's bytes at the end."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.common.harness import SLUICE, BenchmarkError, Process
from benchmarks.live import testmic_signal
from benchmarks.live.beds import TestMicrophoneBed

Event = dict[str, Any]
#: The time limit for events on a slow machine.
PATIENCE = 60.0


class SpooledMicrophone:
    """Bare samples of the test microphone, kept in a spool. Its standard error goes to `directory`."""

    def __init__(
        self, bed: TestMicrophoneBed, directory: Path, url: str, rate: int, channels: int, *options: str
    ) -> None:
        self._said = directory / "mic.stderr"
        command = [str(SLUICE), "mic", url, "--device", bed.device, "--rate", str(rate), "--channels", str(channels)]
        command += ["--container", "raw", "--progress", "json", *options]
        with open(self._said, "wb") as said:
            self.process = Process(command, bed.environment, stdout=subprocess.PIPE, stderr=said.fileno())
        self._changed = threading.Condition()
        self._events: list[Event] = []
        self._is_over = False
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.pipes.stdout
        with self.process.pipes.stdout as lines:
            for line in lines:
                with self._changed:
                    self._events.append(json.loads(line))
                    self._changed.notify_all()
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def events(self, *kinds: str) -> list[Event]:
        """The events of these kinds so far, the oldest first."""
        with self._changed:
            return [event for event in self._events if event["event"] in kinds]

    def last(self, kind: str) -> Event | None:
        """The latest event of that kind so far."""
        with self._changed:
            return next((event for event in reversed(self._events) if event["event"] == kind), None)

    def wait_for(self, what: str, kind: str, holds: Callable[[Event], bool], patience: float = PATIENCE) -> Event:
        """Waits for the next event of that kind for which `holds` returns true."""
        deadline = time.monotonic() + patience
        with self._changed:
            seen = len(self._events)
            while True:
                for event in self._events[seen:]:
                    if event["event"] == kind and holds(event):
                        return event
                seen = len(self._events)
                if self._is_over or not self._changed.wait(deadline - time.monotonic()):
                    raise BenchmarkError(f"{what} did not come; sluice mic said: {self.said()}; {self._events[-5:]}")

    def finish(self, patience: float = PATIENCE, code: int = 0) -> Event:
        """Ends the capture, and returns the last event once the server has all kept bytes.

        `code` is the expected exit code: 0, or 4 if bytes were lost.
        """
        self.process.send(signal.SIGTERM)
        if not self.process.wait(patience):
            raise BenchmarkError(f"sluice mic does not end; it said: {self.said()}")
        with self._changed:
            self._changed.wait_for(lambda: self._is_over, PATIENCE)
        ended = self.events("ended")
        if not ended or self.process.exit is None or self.process.exit.code != code:
            raise BenchmarkError(f"sluice mic ended with {self.process.exit}; it said: {self.said()}; {ended}")
        return ended[0]

    def said(self) -> str:
        return self._said.read_text(errors="replace").strip()


def judge(bed: TestMicrophoneBed, stored: list[Path], ended: Event, channels: int) -> list[str]:
    """The errors in the recordings of one stream whose device delivered successive frames. Empty if each frame is
    stored once and no loss is reported."""
    truth = bed.truth()
    wrong = [f"{name} of the device: {truth[name]}" for name in ("xruns", "frames_lost") if truth[name] != 0]
    reported = ("lost", "unsent", "gaps", "source_lost_frames", "missing_at_server")
    wrong += [f"{name} in the report: {ended[name]}" for name in reported if ended[name] != 0]
    if len(stored) != 1:
        return [*wrong, f"one recording should be stored, not {[path.name for path in stored]}"]
    found = testmic_signal.read_runs(stored[0].read_bytes(), channels)
    frames = [(run.first_frame, run.frames) for run in found.runs]
    first = truth["next_frame"] - truth["frames_delivered"]
    if frames != [(first, truth["frames_delivered"])] or found.foreign_bytes or found.silent_frames:
        wrong.append(f"the device has delivered {truth['frames_delivered']} frames from {first} on, stored are {found}")
    return wrong
