"""Runs `sluice pipe` during faults, and records its output lines with their times."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.feeder import Feeder
from benchmarks.common.harness import SLUICE, BenchmarkError, Process


@dataclass(frozen=True)
class Event:
    """A JSON line, and the time when it was read (CLOCK_MONOTONIC, ns)."""

    ns: int
    values: dict[str, object]

    @property
    def kind(self) -> object:
        return self.values["event"]

    def number(self, name: str) -> float:
        value = self.values.get(name)
        return float(value) if isinstance(value, (int, float)) else 0.0


class SluiceStream:
    """A stream from a feeder to a URL."""

    def __init__(self, url: str, feeder: Feeder, messages: Path) -> None:
        self.feeder = feeder
        self._messages = messages
        command = [str(SLUICE), "pipe", url, "--progress", "json"]
        with open(messages, "wb") as errors:
            self._process = Process(command, {}, stdin=feeder.reader, stdout=subprocess.PIPE, stderr=errors.fileno())
        self.events: list[Event] = []
        self._condition = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        feeder.start()

    def _read(self) -> None:
        assert self._process.pipes.stdout
        with self._process.pipes.stdout as lines:
            for line in lines:
                event = Event(time.monotonic_ns(), json.loads(line))
                with self._condition:
                    self.events.append(event)
                    self._condition.notify_all()

    def wait_for(self, what: str, start: int, matches: Callable[[Event], bool], seconds: float) -> Event:
        """Waits for the first event from number `start` on for which `matches` returns true."""
        deadline = time.monotonic() + seconds
        at = start
        with self._condition:
            while True:
                for event in self.events[at:]:
                    if matches(event):
                        return event
                at = len(self.events)
                if not self._condition.wait(max(0.0, deadline - time.monotonic())):
                    said = self._messages.read_text(errors="replace")
                    last = [event.values for event in self.events[-5:]]
                    raise BenchmarkError(f"sluice pipe: no {what} within {seconds:g} s; it said: {last} {said}")

    def acknowledged(self) -> float:
        """The largest acknowledged offset so far."""
        return max((event.number("offset") for event in list(self.events) if event.kind == "acknowledged"), default=0.0)

    def wait_acknowledged(self, start: int, beyond: float, seconds: float) -> Event:
        """Waits for the first event from number `start` on that acknowledges more than `beyond` bytes."""
        return self.wait_for(
            f"acknowledgement beyond {beyond:.0f}",
            start,
            lambda event: event.kind == "acknowledged" and event.number("offset") > beyond,
            seconds,
        )

    def finish(self, seconds: float) -> Event:
        """Ends the input, waits for the end, and returns the summary. Checks that a resumable upload lost nothing."""
        self.feeder.finish()
        ended = self.wait_for("end", 0, lambda event: event.kind == "ended", seconds)
        self._process.wait(5)
        self._reader.join(5)
        if ended.values.get("error") or ended.values.get("resumable") is not True or ended.number("lost"):
            raise BenchmarkError(f"sluice pipe did not end as expected: {ended.values}")
        return ended

    def kill(self) -> None:
        self._process.end(seconds=1)
        self.feeder.finish()
