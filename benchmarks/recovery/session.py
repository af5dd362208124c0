"""Measures the outages of one stream. recovery.py repeats this measurement."""

from __future__ import annotations

import random
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.common.feeder import Feeder, Pattern
from benchmarks.common.harness import BenchmarkError
from benchmarks.common.instruments import Relay
from benchmarks.common.sluice_server import SluiceServer, sluice_server
from benchmarks.recovery.sluice_stream import Event, SluiceStream

# The time limit for the end of an outage.
PATIENCE = 60.0


@dataclass(frozen=True)
class Load:
    """How a stream is fed."""

    title: str
    is_paced: bool
    pattern: Pattern
    steady: tuple[float, float]  # seconds of undisturbed streaming before an outage: from, to


@dataclass
class Outages:
    """The measurements of the outages of one kind and load."""

    above_ms: list[float] = field(default_factory=list)  # from return or reset to the first new acknowledgement, less
    pause_ms: list[float] = field(default_factory=list)  # the pause between attempts that remained at the return
    failures: list[int] = field(default_factory=list)  # attempts that failed after the return
    starting_ms: list[float] = field(default_factory=list)  # of the server, from exec to the moment when it listens
    resent: list[int] = field(default_factory=list)  # bytes sent again by each stream

    @property
    def total_ms(self) -> list[float]:
        """From the return to the first new acknowledgement."""
        return [above + pause for above, pause in zip(self.above_ms, self.pause_ms)]

    def add(self, others: Outages) -> None:
        self.above_ms += others.above_ms
        self.pause_ms += others.pause_ms
        self.failures += others.failures
        self.starting_ms += others.starting_ms
        self.resent += others.resent


def _is(kind: str, event: Event) -> bool:
    return event.kind == kind


def _failed(event: Event) -> bool:
    """Whether the event reports a failed attempt, either the first of an outage or a later one."""
    return event.kind in ("outage", "attempt-failed")


class Session:
    """One stream and its server, for some outages."""

    def __init__(self, load: Load, directory: Path, choose: random.Random) -> None:
        self.load = load
        self._directory = directory
        self._choose = choose

    def through_returns(self, count: int, down: tuple[float, float]) -> Outages:
        """The server is killed `count` times, and restarted after a random time."""
        found = Outages()
        with ExitStack() as stack:
            server = stack.enter_context(sluice_server(self._directory))
            stream = self._stream(server.port, stack)
            for _ in range(count):
                self._run_steadily(stream)
                server.kill()
                time.sleep(self._choose.uniform(*down))  # the duration of the outage; this waits for no event
                started, returned = server.start()
                found.starting_ms.append((returned - started) / 1e6)
                self._note_return(stream, returned, found)
            self._end(stream, server, found)
        return found

    def through_resets(self, count: int, round_trip: float) -> Outages:
        """The connection is reset `count` times while the server runs."""
        found = Outages()
        with ExitStack() as stack:
            server = stack.enter_context(sluice_server(self._directory))
            relay = Relay(server.port, round_trip)
            stack.callback(relay.stop)
            relay.start()
            stream = self._stream(relay.port, stack)
            for _ in range(count):
                self._run_steadily(stream)
                start = len(stream.events)
                relay.order("reset")
                reset = int(str(relay.wait_for("reset", 10)["at_ns"]))
                outage = stream.wait_for("outage", start, lambda event: _is("outage", event), PATIENCE)
                recovered = self._recovered(stream, stream.events.index(outage))
                found.above_ms.append((recovered.ns - reset) / 1e6)
                found.failures.append(self._failed_attempts(stream, outage.ns + 1, recovered.ns))
            self._end(stream, server, found)
        return found

    def _stream(self, port: int, stack: ExitStack) -> SluiceStream:
        feeder = Feeder(self.load.pattern, self.load.is_paced)
        stream = SluiceStream(f"http://127.0.0.1:{port}/stream", feeder, self._directory / "stderr")
        stack.callback(stream.kill)
        return stream

    def _run_steadily(self, stream: SluiceStream) -> None:
        """Waits until bytes arrive, and then for a random time, so that an outage occurs at any phase of the stream."""
        stream.wait_acknowledged(len(stream.events), stream.acknowledged(), PATIENCE)
        time.sleep(self._choose.uniform(*self.load.steady))

    def _note_return(self, stream: SluiceStream, returned: int, found: Outages) -> None:
        start = next((n for n, event in enumerate(stream.events) if event.ns >= returned), len(stream.events))
        recovered = self._recovered(stream, start)
        outages = [event for event in stream.events if _failed(event) and event.ns < recovered.ns]
        # The pause under way at the restart, or the next one if an attempt had just begun and failed.
        due = [event.ns + event.number("retry_seconds") * 1e9 for event in outages]
        left = next((each - returned for each in due if each >= returned), 0.0)
        found.pause_ms.append(left / 1e6)
        found.above_ms.append((recovered.ns - returned - left) / 1e6)
        found.failures.append(self._failed_attempts(stream, returned + int(left), recovered.ns))

    @staticmethod
    def _recovered(stream: SluiceStream, start: int) -> Event:
        """The first acknowledgement of a byte that was sent after event number `start`. Bytes that the server had
        before, and reports only now, do not count."""
        streaming = stream.wait_for("streaming", start, lambda event: _is("streaming", event), PATIENCE)
        return stream.wait_acknowledged(stream.events.index(streaming), streaming.number("offset"), PATIENCE)

    @staticmethod
    def _failed_attempts(stream: SluiceStream, start: int, end: int) -> int:
        return sum(1 for event in list(stream.events) if _failed(event) and start <= event.ns < end)

    def _end(self, stream: SluiceStream, server: SluiceServer, found: Outages) -> None:
        """Lets the stream end, and compares all stored bytes with all streamed ones."""
        summary = stream.finish(PATIENCE)
        found.resent.append(int(summary.number("resent")))
        if stream.feeder.lost:
            raise BenchmarkError(f"sluice pipe did not read {stream.feeder.lost} bytes of a live source in time")
        (path,) = server.stored()
        self.load.pattern.check(path, stream.feeder.written)
        server.clear()
