"""Measures the delay of acknowledgements and the CPU time per message, for thousands of live streams to one server."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cluster.stores import Store, running
from benchmarks.common.harness import REPOSITORY, BenchmarkError, Process, scratch_directory
from benchmarks.common.nats import brokers

LIBCURL_LOAD = REPOSITORY / ".build" / "libcurl-load"
LEAST_PUBLISHER = REPOSITORY / ".build" / "least-publisher"
MESSAGE = 1000
STARTED_PER_SECOND = 500
# The time between the beginning of all streams and the window, in seconds.
SETTLING = 3.0


@dataclass
class Figures:
    """The results of one run."""

    cpu_us_per_message: float  # of the server, or of the publisher in C
    broker_cpu_us_per_message: float  # of all brokers together
    ack_p50_ms: float
    ack_p99_ms: float
    ack_max_ms: float
    incomplete: int  # due messages that were not sent or not acknowledged


def _run(
    command: Sequence[str], before: float, seconds: float, spent: Callable[[], list[int]], directory: Path
) -> tuple[list[int], dict]:
    """Runs a generator. Returns the CPU time, in ns, that each process has used in a window, and its report."""
    output, messages = directory / "output", directory / "messages"
    with open(output, "wb") as report, open(messages, "wb") as errors:
        process = Process(command, stdout=report.fileno(), stderr=errors.fileno())
    try:
        # All streams have begun by then. This waits for no event, so the window is the same for all stores.
        if process.wait(before):
            raise BenchmarkError(f"{process.name} has ended: {messages.read_text(errors='replace').strip()[-400:]}")
        start = [process.cpu_ns(), *spent()]
        time.sleep(seconds)
        used = [now - then for now, then in zip([process.cpu_ns(), *spent()], start)]
        if not process.wait(before + seconds + 60):
            raise BenchmarkError(f"{process.name} does not end")
    finally:
        process.end(signal.SIGKILL)
    text = output.read_text()
    if not text:
        raise BenchmarkError(f"{process.name}: {messages.read_text(errors='replace').strip()[-400:]}")
    return used, json.loads(text)


def _figures(cpu_ns: int, broker_cpu_ns: int, count: float, delays: dict[str, float], incomplete: int) -> Figures:
    """`count` messages were due in the window, and `delays` are the generator's, in ms."""
    return Figures(
        cpu_us_per_message=cpu_ns / 1e3 / count,
        broker_cpu_us_per_message=broker_cpu_ns / 1e3 / count,
        ack_p50_ms=delays["p50"],
        ack_p99_ms=delays["p99"],
        ack_max_ms=delays["max"],
        incomplete=incomplete,
    )


def serve(store: Store, streams: int, period: float, seconds: float) -> Figures:
    """Measures `sluice serve`. The streams are resumable uploads by libcurl alone."""
    with scratch_directory() as directory, running(store, 1, directory) as found:
        ramp = max(1.0, streams / STARTED_PER_SECOND)
        command = [
            *(str(LIBCURL_LOAD), f"http://127.0.0.1:{found.servers[0].port}/load", "--streams", str(streams)),
            *("--bytes", str(MESSAGE), "--every", f"{period * 1000:g}", "--ramp", f"{ramp:g}"),
            *("--duration", f"{seconds + SETTLING:g}"),
        ]
        used, report = _run(
            command,
            ramp + 2 * period + SETTLING / 2,
            seconds,
            lambda: [found.server_cpu_ns(), found.broker_cpu_ns()],
            directory,
        )
    incomplete = report["messages"]["due"] - report["messages"]["acknowledged"]
    return _figures(used[1], used[2], streams * seconds / period, report["acknowledged_ms"], incomplete)


def publish(store: Store, streams: int, period: float, seconds: float, has_headers: bool) -> Figures:
    """Measures the same messages from a program in C that only publishes them with libnats."""
    with scratch_directory() as directory, brokers(store.brokers, directory, store.syncs_always) as found:
        url = found.urls.split(",")[0]
        command = [
            *(str(LEAST_PUBLISHER), url, str(store.brokers), str(streams), str(MESSAGE), f"{period * 1000:g}"),
            *(f"{2 * period + SETTLING + seconds:g}", *(["--headers"] if has_headers else [])),
        ]
        used, report = _run(command, 2 * period + SETTLING / 2, seconds, lambda: [found.cpu_ns()], directory)
    incomplete = report["not_sent"] + report["sent"] - report["acknowledged"]
    return _figures(used[0], used[1], streams * seconds / period, report["acknowledged_ms"], incomplete)


def kept_up(figures: Figures, streams: int, period: float) -> bool:
    """Whether almost every acknowledgement came before the next message, so that the delay did not grow."""
    return figures.incomplete <= streams and figures.ack_p99_ms < period * 1000
