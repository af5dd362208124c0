#!/usr/bin/env python3
"""`make bench-recovery`: how long a stream stands still after an outage, and what is sent twice for it.

Two kinds of outage. The server is killed and comes back: from the moment at which it listens again to the first byte
that it newly acknowledges, less the pause between attempts that was still to run at that moment: how long to pause is a
choice and not a cost. And the connection is reset while the server is up, over ways of several lengths: from the reset
to the first byte newly acknowledged, everything included. Beside it what people use instead, in the same run.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.common.feeder import FAST_PIECE, PACED_PIECE, Feeder, Pattern
from benchmarks.common.harness import BenchmarkError, end_on_signals, need, scratch_directory
from benchmarks.common.instruments import Relay
from benchmarks.common.recording import percentile
from benchmarks.common.report import machine, markdown_table, print_table, write_section
from benchmarks.common.sluice_server import SluiceServer, sluice_server
from benchmarks.live.beds import TestMicrophoneBed
from benchmarks.recovery import darkice, interrupted_rivals
from benchmarks.recovery.interrupted_rivals import Return, Rival
from benchmarks.recovery.sluice_stream import Event, SluiceStream

# From an outage until it counts as never ending.
PATIENCE = 60.0
# Above the pause that was left to run, after the server's return.
RETURN_LIMIT_MS = 150
# After a reset: so many round trips and so much more.
RESET_ROUND_TRIPS, RESET_LIMIT_MS = 3, 50
# A fast stream fills a memory file system: after so many outages it ends, is checked, and another begins.
OUTAGES_OF_A_FAST_STREAM = 5


@dataclass(frozen=True)
class Load:
    """How a stream is fed."""

    title: str
    is_paced: bool
    pattern: Pattern
    steady: tuple[float, float]  # seconds of undisturbed streaming before an outage: from, to


@dataclass
class Outages:
    """What the outages of one kind and load showed."""

    above_ms: list[float] = field(default_factory=list)  # from return, or reset, to the first new acknowledgement, less
    pause_ms: list[float] = field(default_factory=list)  # the pause that was left to run
    failures: list[int] = field(default_factory=list)  # attempts that failed after the return, in each
    starting_ms: list[float] = field(default_factory=list)  # of the server, from exec to listening
    resent: list[int] = field(default_factory=list)  # bytes, in each stream


def _is(kind: str, event: Event) -> bool:
    return event.kind == kind


class Session:
    """One stream and its server, for some outages."""

    def __init__(self, load: Load, directory: Path, choose: random.Random) -> None:
        self.load = load
        self._directory = directory
        self._choose = choose

    def through_returns(self, count: int, down: tuple[float, float], found: Outages) -> None:
        """The server is killed `count` times, and is away for a drawn time."""
        with ExitStack() as stack:
            server = stack.enter_context(sluice_server(self._directory))
            stream = self._stream(server.port, stack)
            for _ in range(count):
                self._run_steadily(stream)
                server.kill()
                time.sleep(self._choose.uniform(*down))  # how long it is away; not a wait for anything
                started, returned = server.start()
                found.starting_ms.append((returned - started) / 1e6)
                self._note_return(stream, returned, found)
            self._end(stream, server, found)

    def through_resets(self, count: int, round_trip: float, found: Outages) -> None:
        """The connection is reset `count` times, the server is up."""
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
                dropout = stream.wait_for("dropout", start, lambda event: _is("dropout", event), PATIENCE)
                recovered = self._recovered(stream, stream.events.index(dropout))
                found.above_ms.append((recovered.ns - reset) / 1e6)
                found.failures.append(self._dropouts(stream, dropout.ns + 1, recovered.ns))
            self._end(stream, server, found)

    def _stream(self, port: int, stack: ExitStack) -> SluiceStream:
        feeder = Feeder(self.load.pattern, self.load.is_paced)
        stream = SluiceStream(f"http://127.0.0.1:{port}/stream", feeder, self._directory / "stderr")
        stack.callback(stream.kill)
        return stream

    def _run_steadily(self, stream: SluiceStream) -> None:
        """Until bytes get through, and then for a drawn time: an outage comes at any moment of the stream's rhythm."""
        stream.wait_acknowledged(len(stream.events), stream.acknowledged(), PATIENCE)
        time.sleep(self._choose.uniform(*self.load.steady))

    def _note_return(self, stream: SluiceStream, returned: int, found: Outages) -> None:
        start = next((n for n, event in enumerate(stream.events) if event.ns >= returned), len(stream.events))
        recovered = self._recovered(stream, start)
        dropouts = [event for event in stream.events if _is("dropout", event) and event.ns < recovered.ns]
        # The pause that ran at the return; or, where an attempt had just begun and found nobody, the one that followed.
        due = [event.ns + event.number("retry_seconds") * 1e9 for event in dropouts]
        left = next((each - returned for each in due if each >= returned), 0.0)
        found.pause_ms.append(left / 1e6)
        found.above_ms.append((recovered.ns - returned - left) / 1e6)
        found.failures.append(self._dropouts(stream, returned + int(left), recovered.ns))

    @staticmethod
    def _recovered(stream: SluiceStream, start: int) -> Event:
        """The first acknowledgement of a byte that went out after event number `start`: not of one that the server had
        before, and only now tells of."""
        streaming = stream.wait_for("streaming", start, lambda event: _is("streaming", event), PATIENCE)
        return stream.wait_acknowledged(stream.events.index(streaming), streaming.number("offset"), PATIENCE)

    @staticmethod
    def _dropouts(stream: SluiceStream, start: int, end: int) -> int:
        return sum(1 for event in list(stream.events) if _is("dropout", event) and start <= event.ns < end)

    def _end(self, stream: SluiceStream, server: SluiceServer, found: Outages) -> None:
        """Lets the stream end, and compares all that was stored with all that was streamed."""
        summary = stream.finish(PATIENCE)
        found.resent.append(int(summary.number("resent")))
        if stream.feeder.lost:
            raise BenchmarkError(f"sluice pipe let {stream.feeder.lost} bytes of a live source wait too long")
        (path,) = server.stored()
        self.load.pattern.check(path, stream.feeder.written)
        server.clear()


def spread(values: Sequence[float], digits: int = 1) -> list[str]:
    """Median, 90th percentile (nearest rank), maximum."""
    ordered = sorted(values)
    return [f"{each:.{digits}f}" for each in (statistics.median(ordered), percentile(ordered, 0.9), ordered[-1])]


def loads(names: str) -> list[Load]:
    every = {
        "paced": Load("32 kB/s", True, Pattern.make(PACED_PIECE), (0.3, 1.3)),
        "fast": Load("as fast as it goes", False, Pattern.make(FAST_PIECE), (0.05, 0.15)),
    }
    if unknown := set(names.split(",")) - set(every):
        raise BenchmarkError(f"no load {', '.join(sorted(unknown))}; there are: {', '.join(every)}")
    return [every[name] for name in names.split(",")]


def outages(load: Load, options: argparse.Namespace, scratch: Path, round_trip: float | None) -> Outages:
    """All outages of one kind; `round_trip` in seconds for resets, None for a server that is killed."""
    found = Outages()
    kind = "server killed" if round_trip is None else f"reset, round trip of {round_trip * 1e3:g} ms"
    choose = random.Random(f"{options.seed} {load.title} {kind}")
    step = options.events if load.is_paced else OUTAGES_OF_A_FAST_STREAM
    for done in range(0, options.events, step):
        count = min(step, options.events - done)
        print(f"{kind}, {load.title}: {done + count} of {options.events}", file=sys.stderr)
        directory = scratch / f"{kind} {load.title} {done}".replace(" ", "-").replace("/", "-")
        directory.mkdir()
        session = Session(load, directory, choose)
        if round_trip is None:
            session.through_returns(count, (0.2, options.down), found)
        else:
            session.through_resets(count, round_trip, found)
    return found


def rival_returns(rival: Rival, load: Load, options: argparse.Namespace, scratch: Path, file: Path) -> list[Return]:
    """The same outages for a rival, each in a run of its own."""
    choose = random.Random(f"{options.seed} {rival.key}")
    before = interrupted_rivals.BEFORE if load.is_paced else statistics.mean(load.steady)
    found = []
    for number in range(options.events):
        print(f"server killed, {rival.title}: {number + 1} of {options.events}", file=sys.stderr)
        with scratch_directory(scratch) as directory:
            down = choose.uniform(0.2, options.down)
            found.append(interrupted_rivals.interrupted(rival, load.pattern, file, down, before, directory))
    return found


def darkice_returns(options: argparse.Namespace, scratch: Path) -> list[Return]:
    """The same outages for darkice, which captures by itself."""
    choose = random.Random(f"{options.seed} darkice")
    found = []
    with scratch_directory(scratch) as tools, TestMicrophoneBed(tools, 48_000, 2) as bed:
        for number in range(options.events):
            print(f"server killed, {darkice.TITLE}: {number + 1} of {options.events}", file=sys.stderr)
            with scratch_directory(scratch) as directory:
                found.append(darkice.interrupted(bed, choose.uniform(0.2, options.down), directory))
    return found


RETURN_HEADER = [
    *("server killed and back, ms", "outages", "above the pause left: median", "p90", "max"),
    *("pause left: median", "first new byte after: median", "p90", "max", "sent again, KiB", "lost, KiB"),
]


def return_row(title: str, found: Outages) -> list[str]:
    total = [above + pause for above, pause in zip(found.above_ms, found.pause_ms)]
    return [
        *(title, str(len(total)), *spread(found.above_ms), f"{statistics.median(found.pause_ms):.0f}"),
        *(*spread(total, 0), f"{sum(found.resent) / len(total) / 1024:.1f}", "0"),
    ]


def rival_row(title: str, found: list[Return]) -> list[str]:
    again, lost = (statistics.mean(values) / 1024 for values in zip(*((each.again, each.lost) for each in found)))
    new = spread([each.new_ms for each in found], 0)
    return [title, str(len(found)), *("–",) * 4, *new, f"{again:.1f}", f"{lost:.1f}"]


RESET_HEADER = ["connection reset, ms", "resets", "median", "p90", "max", "limit", "median is", "sent again, KiB"]


def reset_row(load: Load, round_trip: float, found: Outages) -> list[str]:
    limit = RESET_ROUND_TRIPS * round_trip * 1e3 + RESET_LIMIT_MS
    verdict = "met" if statistics.median(found.above_ms) <= limit else "MISSED"
    return [
        *(f"round trip of {round_trip * 1e3:g} ms, {load.title}", str(len(found.above_ms)), *spread(found.above_ms)),
        *(f"{limit:.0f}", verdict, f"{sum(found.resent) / len(found.above_ms) / 1024:.1f}"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure how long a stream stands still after an outage.")
    parser.add_argument("--events", type=int, default=30, help="outages of each kind (default: 30)")
    parser.add_argument("--down", type=float, default=4, help="seconds for which a server is away at most (default: 4)")
    parser.add_argument("--round-trips", default="0,10,50,100", help="of the resets, in ms (default: 0,10,50,100)")
    parser.add_argument("--loads", default="paced,fast", help="what is streamed (default: paced,fast)")
    parser.add_argument("--parts", default="return,reset,rivals", help="what to measure (default: return,reset,rivals)")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32), help="draws the times (default: random)")
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/benchmarks.md")
    options = parser.parse_args()
    end_on_signals()
    parts = options.parts.split(",")
    returns: list[list[str]] = []
    resets: list[list[str]] = []
    figures: dict[str, object] = {}
    verdicts: list[str] = []
    print(f"seed {options.seed}", file=sys.stderr)
    try:
        # In memory: what a disk needs to create a file is not what is compared.
        shared = Path("/dev/shm")
        with scratch_directory(shared if shared.is_dir() else None) as scratch:
            for load in loads(options.loads):
                if "return" in parts:
                    found = outages(load, options, scratch, None)
                    figures[f"return, {load.title}"] = asdict(found)
                    returns.append(return_row(f"sluice pipe, {load.title}", found))
                    middle = statistics.median(found.above_ms)
                    verdicts.append(
                        f"{load.title}: median {middle:.1f} ms above the pause left, at most {RETURN_LIMIT_MS} ms: "
                        f"{'met' if middle <= RETURN_LIMIT_MS else 'MISSED'}; {sum(found.failures)} attempts failed "
                        f"after the return; the server listens {statistics.median(found.starting_ms):.0f} ms after exec"
                    )
                if "rivals" in parts:
                    need("curl", "ffmpeg", "darkice")
                    file = scratch / "file"
                    load.pattern.write(file, 4 << 20 if load.is_paced else 2 << 30)
                    for rival in interrupted_rivals.PACED if load.is_paced else interrupted_rivals.FAST:
                        others = rival_returns(rival, load, options, scratch, file)
                        figures[f"return, {rival.title}"] = [asdict(each) for each in others]
                        returns.append(rival_row(rival.title, others))
                    file.unlink()
                    if load.is_paced:
                        others = darkice_returns(options, scratch)
                        figures[f"return, {darkice.TITLE}"] = [asdict(each) for each in others]
                        returns.append(rival_row(darkice.TITLE, others))
            for load in loads(options.loads) if "reset" in parts else []:
                for milliseconds in options.round_trips.split(","):
                    found = outages(load, options, scratch, float(milliseconds) / 1e3)
                    figures[f"reset, {milliseconds} ms, {load.title}"] = asdict(found)
                    resets.append(reset_row(load, float(milliseconds) / 1e3, found))
    except BenchmarkError as error:
        # What was measured until then is shown all the same.
        print(f"recovery: {error}", file=sys.stderr)
        failed = True
    else:
        failed = False
    tables = [(header, rows) for header, rows in ((RETURN_HEADER, returns), (RESET_HEADER, resets)) if rows]
    print(f"seed {options.seed}; " + "; ".join(f"{name} {value}" for name, value in machine().items() if value))
    for header, rows in tables:
        print_table(header, rows)
    print("\n".join(verdicts))
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), "figures": figures}, indent=2) + "\n")
    if options.write and not failed:
        note = (
            f"{options.events} outages of each kind. A server killed with SIGKILL is away for 0.2 to {options.down:g} "
            "s; times count from the moment at which it listens again to the first byte newly acknowledged, and the "
            "pause between attempts that was left to run then is given apart. Resets: through a relay that delays. "
            "After each run the stored stream was compared with the streamed one, byte for byte. The others stream to "
            "a neutral server: from its return to the first byte that it did not have. `make bench-recovery`."
        )
        body = "\n\n".join(markdown_table(header, rows) for header, rows in tables)
        write_section("Recovery", "\n\n".join(part for part in (note, body, "; ".join(verdicts)) if part))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
