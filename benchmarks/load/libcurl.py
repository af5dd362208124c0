"""`make bench-load`, second half: `sluice load` compared with a C program that uses only libcurl.

Both hold N resumable uploads (an empty POST, one PATCH, 104s as acknowledgements), each to its own `sluice serve
--discard`, and send messages on the same absolute schedule. CPU time and memory of both are measured from outside in
the same way, during a window in which all streams are open and no request begins: the server counts the requests. Each
program reports its own delays. Those of `sluice load` cover the whole run, and those of the C program exclude the time
in which the streams begin.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.harness import (
    REPOSITORY,
    SLUICE,
    BenchmarkError,
    Process,
    free_port,
    need_built,
    scratch_directory,
)
from benchmarks.common.plots import Curve, Plot
from benchmarks.common.report import Report, Section, add_arguments
from benchmarks.common.sluice_server import sluice_server
from benchmarks.common.tables import Table, median_and_spread

LIBCURL_LOAD = REPOSITORY / ".build" / "libcurl-load"
#: The maximum ratio to libcurl's own CPU time per message.
AIM = 1.3
#: The maximum memory per stream in the client, in kB, with so many streams that the program itself hardly counts.
CLIENT_AIM, MANY = 40, 5000
#: The time between the opening of the last stream and the window, in seconds.
SETTLING = 2.0
STARTED_PER_SECOND = 1500
#: `sluice load` begins a new request after about 35 messages of a stream, and the C program never does.
MESSAGES_PER_REQUEST = 33


@dataclass(frozen=True)
class Load:
    """A number of streams, the size of their messages, and the time between two of them."""

    streams: int
    message: int
    period: float

    @property
    def title(self) -> str:
        return f"{self.streams} × {self.message} B / {self.period:g} s"

    @property
    def ramp(self) -> float:
        return max(1.0, self.streams / STARTED_PER_SECOND)

    def window(self, seconds: float) -> float:
        """The duration of the window, at most `seconds`. It ends before the first stream begins its next request."""
        return min(seconds, MESSAGES_PER_REQUEST * self.period - self.ramp - SETTLING)


@dataclass
class Figures:
    """The results of one run."""

    cpu_us_per_message: float
    kb_per_stream: float  # resident memory of the whole process
    server_cpu_us_per_message: float
    server_kb_per_stream: float  # growth of the resident memory since before the first stream
    ack_p50_ms: float  # from due to acknowledged
    ack_p99_ms: float
    ack_max_ms: float


def _sluice(load: Load, url: str, seconds: float) -> list[str]:
    return [
        *(str(SLUICE), "load", url, "--streams", str(load.streams), "--resumable", "always"),
        *("--progress", "none", "--json", "-"),
        *("--rate", str(round(load.message / load.period)), "--chunk", f"{load.period * 1000:g}ms"),
        *("--ramp", f"{load.ramp:g}s", "--duration", f"{seconds:g}s"),
    ]


def _libcurl(load: Load, url: str, seconds: float) -> list[str]:
    # Its --duration is that of its window, which begins after the ramp and two messages.
    window = seconds - load.ramp - max(1.0, 2 * load.period)
    return [
        *(str(LIBCURL_LOAD), url, "--streams", str(load.streams), "--bytes", str(load.message)),
        *("--every", f"{load.period * 1000:g}", "--ramp", f"{load.ramp:g}", "--duration", f"{window:g}"),
    ]


def _sluice_delays(report: dict) -> list[float]:
    found = report["histograms"]["acknowledged_ns"]
    return [found[name] / 1e6 for name in ("p50", "p99", "max")]


def _libcurl_delays(report: dict) -> list[float]:
    found = report["acknowledged_ms"]
    return [found[name] for name in ("p50", "p99", "max")]


@dataclass(frozen=True)
class Generator:
    title: str
    command: Callable[[Load, str, float], list[str]]
    delays: Callable[[dict], list[float]]  # p50, p99 and maximum, in ms


PAIR = (Generator("sluice load", _sluice, _sluice_delays), Generator("libcurl alone", _libcurl, _libcurl_delays))


def resident(process: Process) -> int:
    """The resident memory in bytes, from the second number of statm (proc(5))."""
    return int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _await_streams(process: Process, streams: int, seconds: float) -> None:
    """Waits until the process has a socket for each stream."""
    deadline = time.monotonic() + seconds
    while len(os.listdir(f"/proc/{process.pid}/fd")) < streams:
        if process.wait(0.1) or time.monotonic() > deadline:
            raise BenchmarkError(f"{process.name} does not open {streams} streams within {seconds:g} s")


def _requests(metrics: int) -> int:
    """The number of requests that the server has received so far."""
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return sum(int(line.rpartition(" ")[2]) for line in lines if line.startswith("sluice_server_requests_total{"))


def measure(generator: Generator, load: Load, seconds: float, scratch: Path) -> Figures:
    """One run with its own server. The window is at most `seconds` long."""
    metrics, seconds = free_port(), load.window(seconds)
    options = ("--discard", "--max-uploads", "100000", "--metrics", f"127.0.0.1:{metrics}")
    with scratch_directory(scratch) as directory, sluice_server(directory, *options) as server:
        assert server.process
        total = load.ramp + SETTLING + seconds + 3
        command = generator.command(load, f"http://127.0.0.1:{server.port}/load", total)
        server_base = resident(server.process)
        messages, output = directory / "messages", directory / "output"
        with open(messages, "wb") as errors, open(output, "wb") as report:
            process = Process(command, stdout=report.fileno(), stderr=errors.fileno())
        try:
            _await_streams(process, load.streams, load.ramp + 20)
            # All streams have sent a message by then. This waits for no event, so the window is the same for both.
            time.sleep(SETTLING)
            requests = _requests(metrics)
            cpu, server_cpu, since = process.cpu_ns(), server.cpu_ns(), time.monotonic_ns()
            time.sleep(seconds)
            cpu, server_cpu = process.cpu_ns() - cpu, server.cpu_ns() - server_cpu
            count = (time.monotonic_ns() - since) / 1e9 / load.period * load.streams
            memory, server_grown = resident(process), resident(server.process) - server_base
            if began := _requests(metrics) - requests:
                raise BenchmarkError(f"{generator.title}, {load.title}: {began} requests began in the window")
            if not process.wait(total + 30):
                raise BenchmarkError(f"{generator.title} does not end")
        finally:
            process.end(signal.SIGKILL)
        if process.exit is None or process.exit.code != 0:
            said = messages.read_text(errors="replace").strip()[-400:]
            raise BenchmarkError(f"{generator.title}, {load.title}: exit {process.exit}; it said: {said}")
        p50, p99, most = generator.delays(json.loads(output.read_text()))
    return Figures(
        cpu_us_per_message=cpu / 1e3 / count,
        kb_per_stream=memory / 1e3 / load.streams,
        server_cpu_us_per_message=server_cpu / 1e3 / count,
        server_kb_per_stream=server_grown / 1e3 / load.streams,
        ack_p50_ms=p50,
        ack_p99_ms=p99,
        ack_max_ms=most,
    )


COLUMNS = (
    ("CPU µs per message", "cpu_us_per_message", 1),
    ("kB per stream", "kb_per_stream", 1),
    ("server: CPU µs per message", "server_cpu_us_per_message", 1),
    ("server: kB per stream", "server_kb_per_stream", 1),
    ("due to acknowledged, ms: p50", "ack_p50_ms", 1),
    ("p99", "ack_p99_ms", 1),
    ("max", "ack_max_ms", 0),
)
Rounds = dict[str, list[Figures]]


def rows(load: Load, rounds: Rounds) -> list[list[str]]:
    return [
        [
            f"{load.title}, {title}",
            *(median_and_spread([getattr(each, what) for each in found], digits) for _, what, digits in COLUMNS),
        ]
        for title, found in rounds.items()
        if found
    ]


def ratio_row(load: Load, rounds: Rounds) -> list[str]:
    """The ratios of ours to libcurl's, pair by pair. At least one pair exists."""
    pairs = list(zip(*(rounds[each.title] for each in PAIR)))
    cpu = [ours.cpu_us_per_message / other.cpu_us_per_message for ours, other in pairs]
    memory = [ours.kb_per_stream / other.kb_per_stream for ours, other in pairs]
    # Noise only increases a run's CPU time, so the ratio of both minimums is shown too.
    least = min(ours.cpu_us_per_message for ours, _ in pairs) / min(other.cpu_us_per_message for _, other in pairs)
    middle = statistics.median(cpu)
    kilobytes = statistics.median(ours.kb_per_stream for ours, _ in pairs)
    memory_aim = f"≤ {CLIENT_AIM} kB {'met' if kilobytes <= CLIENT_AIM else 'MISSED'}"
    return [
        *(load.title, median_and_spread(cpu), f"{least:.2f}", f"≤ {AIM} {'met' if middle <= AIM else 'MISSED'}"),
        *(median_and_spread(memory), memory_aim if load.streams >= MANY else "–"),
    ]


def tables(found: dict[Load, Rounds]) -> list[Table]:
    header = ["streams × message / period", *(name for name, _, _ in COLUMNS)]
    ratio_header = ["ratio to libcurl alone", "CPU", "of the minimums", "target", "memory", "target (sluice load)"]
    return [
        Table(header, [row for load, rounds in found.items() for row in rows(load, rounds)]),
        Table(ratio_header, [ratio_row(load, rounds) for load, rounds in found.items() if all(rounds.values())]),
    ]


def plots(found: dict[Load, Rounds]) -> list[Plot]:
    """How CPU, memory and delay grow with the number of streams of one message per second."""
    loads = [load for load, rounds in found.items() if load.period == 1 and all(rounds.values())]

    def plot(file: str, what: str, axis: str) -> Plot:
        curves = []
        for each in PAIR:
            middles = [statistics.median(getattr(one, what) for one in found[load][each.title]) for load in loads]
            curves.append(Curve(each.title, [load.streams for load in loads], middles))
        return Plot(file, "streams of one message per second", axis, curves)

    return [
        plot("libcurl-cpu", "cpu_us_per_message", "CPU µs per message"),
        plot("libcurl-memory", "kb_per_stream", "kB per stream, resident"),
        plot("libcurl-delay", "ack_p99_ms", "ms from due to acknowledged, p99"),
    ]


def parse_loads(words: str) -> list[Load]:
    """STREAMSxBYTES/SECONDS, separated by commas."""
    loads = []
    for text in words.split(","):
        streams, rest = text.split("x")
        message, period = rest.split("/")
        loads.append(Load(int(streams), int(message), float(period)))
    return loads


def measure_pairs(load: Load, options: argparse.Namespace, scratch: Path, rounds: Rounds) -> None:
    """Runs both generators alternately, every other round in reverse order."""
    for turn in range(options.rounds):
        for generator in PAIR if turn % 2 == 0 else reversed(PAIR):
            print(f"{load.title}, round {turn + 1} of {options.rounds}: {generator.title}", file=sys.stderr)
            rounds[generator.title].append(measure(generator, load, options.seconds, scratch))


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare sluice load with libcurl alone, pair by pair.")
    add_arguments(parser, rounds=3, of="pairs of each load")
    parser.add_argument("--loads", default="1000x1000/1,4000x1000/1,8000x1000/1,15000x1000/1,5000x1000/0.25")
    parser.add_argument("--seconds", type=float, default=10, help="duration of a window (default: 10)")
    options = parser.parse_args()
    loads = parse_loads(options.loads)
    found: dict[Load, Rounds] = {}
    report = Report("libcurl")
    with report.measuring(), scratch_directory() as scratch:
        need_built(SLUICE, "build")
        need_built(LIBCURL_LOAD, "libcurl-load")
        for load in loads:
            found[load] = {each.title: [] for each in PAIR}
            measure_pairs(load, options, scratch, found[load])
    note = (
        "`sluice load` and a C program that uses only libcurl (`benchmarks/LibcurlLoad`), one process with one thread "
        "each. Both send resumable uploads to `sluice serve --discard` on the same machine, in "
        f"{options.rounds} alternating rounds. The windows have at most {options.seconds:g} s, and no request begins "
        "in them, because only `sluice load` begins new ones. The tables show the median (minimum–maximum). `make bench-load`, `benchmarks/load/libcurl.py`."
    )
    report.sections = [Section("sluice load compared with libcurl alone", note, tables(found), plots=plots(found))]
    report.figures = {load.title: rounds for load, rounds in found.items()}
    return report.finish(options)


if __name__ == "__main__":
    sys.exit(main())
