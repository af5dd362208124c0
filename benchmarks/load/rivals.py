"""`make bench-load`, first half: how many live streams of 32 kB/s load testers hold, and how much each stream costs.

The number of streams grows until a tester fails. A stream is held if it existed throughout a window of time and its
bytes arrived at a neutral receiver at its rate, within 10 %. It is live if it was also never silent for more than a
second, which is four of its periods. CPU time and memory are those of all processes of the tester, divided by the
number of streams. The receiver's own share of a processor is shown, so that it cannot be the hidden limit of a tester.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.common.harness import SLUICE, BenchmarkError, Process, need, need_built, scratch_directory
from benchmarks.common.plots import Curve, Plot
from benchmarks.common.report import Report, Section, add_arguments
from benchmarks.common.tables import Table
from benchmarks.load.rate_receiver import RateReceiver, Window
from benchmarks.load.testers import RATE, TESTERS, Task, Tester

#: The share of the requested streams that must be held.
ENOUGH = 0.99
#: The receiver's limit: it needs a descriptor for each stream and a few others.
MOST_STREAMS = 15_000
SETTLING = 2.0
#: A tester that needs a longer ramp is not run.
LONGEST_RAMP = 60.0
#: The share of the available memory that a tester may use.
SHARE_OF_MEMORY = 0.5


@dataclass
class Point:
    """One tester at one number of streams."""

    streams: int
    window: Window
    cpu_ms_per_stream_second: float
    pss_kb_per_stream: float
    processes: int
    complaint: str = ""

    @property
    def is_held(self) -> bool:
        return self.window.held >= ENOUGH * self.streams


def proportional_memory(processes: list[Process]) -> int:
    """Memory in bytes. Shared memory is divided among the processes that share it (Pss in proc(5))."""
    total = 0
    for process in processes:
        with contextlib.suppress(OSError):
            found = re.search(r"^Pss:\s+(\d+)", Path(f"/proc/{process.pid}/smaps_rollup").read_text(), re.MULTILINE)
            total += int(found[1]) * 1024 if found else 0
    return total


def available_memory() -> int:
    found = re.search(r"MemAvailable:\s+(\d+)", Path("/proc/meminfo").read_text())
    return int(found[1]) * 1024 if found else 0


def measure(tester: Tester, streams: int, seconds: float, scratch: Path) -> Point:
    """Starts the tester, waits until its streams exist, and measures for `seconds`."""
    ramp = max(1.0, streams / tester.started_per_second)
    patience = ramp + 20 if tester.paces else 4
    task_seconds = patience + SETTLING + seconds + 30
    with RateReceiver() as receiver, scratch_directory(scratch) as directory, contextlib.ExitStack() as stack:
        task = Task(streams, receiver.url, ramp, task_seconds, directory)
        messages = stack.enter_context(open(directory / "messages", "wb"))
        processes: list[Process] = []
        stack.callback(_end, processes)
        for number, command in enumerate(tester.commands(task)):
            # Many processes start one after another, so that each gets its share of the processors while it starts.
            if number and number % 8 == 0:
                time.sleep(8 / tester.started_per_second)
            quiet = messages.fileno()
            processes.append(Process(command, tester.environment(task), stdout=quiet, stderr=quiet))
        deadline = time.monotonic() + patience
        while receiver.open() < streams and time.monotonic() < deadline:
            time.sleep(0.25)  # poll, because the receiver does not report the arrival of the last one
        time.sleep(SETTLING)  # the testers reach their pace; this waits for no event
        receiver.open()
        before, since = sum(process.cpu_ns() for process in processes), time.monotonic_ns()
        time.sleep(seconds)
        after, until = sum(process.cpu_ns() for process in processes), time.monotonic_ns()
        memory = proportional_memory(processes)
        window = receiver.close(RATE)
        gone = sum(1 for process in processes if process.wait(0))
        _end(processes)
        said = (directory / "messages").read_text(errors="replace").strip().split("\n")[-1]
        return Point(
            streams=streams,
            window=window,
            cpu_ms_per_stream_second=(after - before) / 1e6 / ((until - since) / 1e9) / streams,
            pss_kb_per_stream=memory / 1000 / streams,
            processes=len(processes),
            complaint=f"{gone} of {len(processes)} processes ended early: {said[:160]}" if gone else "",
        )


def _end(processes: list[Process]) -> None:
    for process in processes:
        process.send(signal.SIGKILL)
    for process in processes:
        process.end(signal.SIGKILL)


def grow(tester: Tester, sizes: list[int], seconds: float, scratch: Path, points: list[Point]) -> str:
    """Appends the points up to the first that fails. Returns why it ended there."""
    for streams in sizes:
        if not tester.paces and points:
            break
        if streams / tester.started_per_second > LONGEST_RAMP:
            return f"{streams} would take {streams / tester.started_per_second:.0f} s to start"
        if points:
            needed = points[-1].pss_kb_per_stream * 1000 * streams
            if needed > SHARE_OF_MEMORY * available_memory():
                return f"{streams} would take {needed / 2**30:.1f} GiB of memory"
        print(f"{tester.title}: {streams} streams", file=sys.stderr)
        point = measure(tester, streams, seconds, scratch)
        if tester.paces and not point.is_held:
            # Try again, because other work may have used the processors.
            print(f"{tester.title}: {streams} streams, again", file=sys.stderr)
            point = max(point, measure(tester, streams, seconds, scratch), key=lambda each: each.window.held)
        points.append(point)
        if not point.is_held:
            return _why(tester, point)
    return "the largest number tried" if tester.paces else _why(tester, points[-1])


def _why(tester: Tester, point: Point) -> str:
    window = point.window
    if not tester.paces:
        return (
            f"{window.streams} of {point.streams} requests lasted; {window.requests / window.seconds:.0f} new ones and "
            f"{window.bytes / window.seconds / 1e6:.1f} MB arrived per second"
        )
    if point.complaint:
        return f"at {point.streams}: {point.complaint}"
    return (
        f"at {point.streams}: {window.streams} lasted, {window.held} of them at their rate; "
        f"median {window.rate_median / 1000:.1f} kB/s"
    )


HEADER = [
    *("load tester, streams of 32 kB/s", "held", "live", "CPU ms per stream and second", "kB per stream"),
    *("longest silence ms, p99", "receiver's CPU %", "why it stopped here"),
]


def rows(tester: Tester, points: list[Point], why: str) -> list[list[str]]:
    found = []
    for number, point in enumerate(points):
        window = point.window
        found.append(
            [
                f"{tester.title}, {point.streams}",
                f"{window.held} of {point.streams}" if not point.is_held else str(window.held),
                f"{window.live}",
                f"{point.cpu_ms_per_stream_second:.3f}",
                f"{point.pss_kb_per_stream:.0f}",
                f"{window.silence_p99_ms:.0f}" if window.streams else "–",
                f"{window.cpu_share * 100:.0f}",
                why if number == len(points) - 1 else "",
            ]
        )
    return found or [[tester.title, *("–",) * 6, why]]


def most(found: dict[str, list[Point]], what: str) -> str:
    """A sentence with the largest number of streams, held or live, of `sluice load` and of the best other tester."""
    counts = {
        key: max((each.streams for each in points if getattr(each.window, what) >= ENOUGH * each.streams), default=0)
        for key, points in found.items()
    }
    rival, best = max(((count, key) for key, count in counts.items() if key != "sluice"), default=(0, ""))
    if not counts.get("sluice"):
        return ""
    if not rival:
        return f"Most streams {what}: sluice load {counts['sluice']}, no other tester held any."
    ratio = counts["sluice"] / rival
    text = f"Most streams {what}: sluice load {counts['sluice']}, the best other tester ({best}) {rival}"
    if len(found["sluice"]) == len(found[best]):
        return text + ". Neither failed at the largest number tried."
    return text + f", ratio {ratio:.1f} (target: at least 10): {'met' if ratio >= 10 else 'MISSED'}."


def plots(found: dict[str, list[Point]]) -> list[Plot]:
    """The cost per stream, by the number of streams."""
    titles = {tester.key: tester.title for tester in TESTERS if tester.paces}
    held = {titles[key]: [each for each in points if each.is_held] for key, points in found.items() if key in titles}
    curves = [Curve(name, [each.streams for each in points], []) for name, points in held.items() if points]
    growths = []
    for file, axis, read in (
        ("load-cpu", "CPU ms per stream and second", lambda each: each.cpu_ms_per_stream_second),
        ("load-memory", "kB per stream (PSS)", lambda each: each.pss_kb_per_stream),
    ):
        drawn = [Curve(curve.name, curve.x, [read(each) for each in held[curve.name]]) for curve in curves]
        growths.append(Plot(file, "streams of 32 kB/s held", axis, drawn))
    return growths


@dataclass
class Growths:
    """The results of the testers, one after another."""

    points: dict[str, list[Point]] = field(default_factory=dict)  # by the tester's key
    rows: list[list[str]] = field(default_factory=list)
    are_whole: bool = True  # each tester was measured until it failed by itself

    def measure(self, tester: Tester, sizes: list[int], seconds: float, scratch: Path, report: Report) -> None:
        """Measures one tester. If that fails, its row shows the error, and the other testers are still measured."""
        points = self.points[tester.key] = []
        try:
            why = grow(tester, sizes, seconds, scratch, points)
        except BenchmarkError as error:
            report.fail(error)
            why = str(error)
            self.are_whole = False
        self.rows += rows(tester, points, why)

    def verdict(self) -> str:
        """The sentences of `most`; empty if a tester might have held more streams than were measured."""
        texts = (most(self.points, what) for what in ("held", "live")) if self.are_whole else ()
        return " ".join(text for text in texts if text)


def main() -> int:
    parser = argparse.ArgumentParser(description="Hold growing numbers of live streams with load testers.")
    add_arguments(parser)
    parser.add_argument("--sizes", default="10,100,300,1000,3000,10000,15000", help="numbers of streams")
    parser.add_argument("--seconds", type=float, default=10, help="duration of a window (default: 10)")
    parser.add_argument("--only", default="", help="testers: " + ", ".join(tester.key for tester in TESTERS))
    options = parser.parse_args()
    sizes = [min(int(size), MOST_STREAMS) for size in options.sizes.split(",")]
    chosen = [tester for tester in TESTERS if not options.only or tester.key in options.only.split(",")]
    found = Growths()
    report = Report("rivals")
    with report.measuring(), scratch_directory() as scratch:
        need("curl", "ffmpeg", "h2load", "wrk", "hey")
        for tester in chosen:
            if tester.key == "sluice":
                need_built(SLUICE, "build")
            found.measure(tester, sizes, options.seconds, scratch, report)
    note = (
        f"Growing numbers of plain uploads of {RATE // 1000} kB/s each to one neutral receiver on the same machine, "
        f"with windows of {options.seconds:g} s. A stream is held if it exists throughout the window and its bytes "
        "arrive at its rate within 10 %. It is live if it is also never silent for more than a second. `make "
        "bench-load`, `benchmarks/load/rivals.py`."
    )
    table = Table(HEADER, found.rows)
    section = Section("Load testers: live streams held", note, [table], [found.verdict()], plots=plots(found.points))
    report.sections = [section]
    report.figures = found.points
    return report.finish(options)


if __name__ == "__main__":
    sys.exit(main())
