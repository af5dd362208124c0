#!/usr/bin/env python3
"""`make truth`: tests whether `sluice load` reports correctly.

It runs each kind of endpoint with each fault of a known size. Every figure of the report is compared with the
endpoint's own log: counts exactly, times within 2 % or 2 ms, whichever is more. The first sentence must name the fault.
"""

from __future__ import annotations

import argparse
import calendar
import itertools
import json
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.common.harness import MEMORY_FILE_SYSTEM, SLUICE, BenchmarkError
from benchmarks.truth import endpoints
from benchmarks.truth.endpoints import Endpoint, Request, SluiceEndpoint

STREAMS = 6
SECONDS = 4
CHUNK = 0.1
BYTES = 500
MILLISECOND = 1_000_000
#: The minimum time from an endpoint's death to its return, in ns.
RETURNING = 500 * MILLISECOND


@dataclass(frozen=True)
class Fault:
    """A fault of an endpoint, and the expected first sentence of the report."""

    name: str
    sentence: str
    settings: dict[str, float] = field(default_factory=dict)
    #: Seconds after the load's start.
    dies_at: float | None = None
    returns_at: float | None = None
    #: Further options of the load, for example more bytes, so that a slow reader has an effect.
    options: tuple[str, ...] = ()
    modes: tuple[str, ...] = ("requests", "streams")


FAULTS = [
    Fault("none", r"6 live streams held .* no error; the generator kept up"),
    Fault("response after 200 ms", r"responses take 20\d ms \(p50\)", {"response_delay": 0.2}),
    Fault("reading begins after 150 ms", r"responses take 15\d ms \(p50\)", {"read_delay": 0.15}, modes=("requests",)),
    Fault("every 4th request refused", r"http-503.* lost", {"refuse_every": 4}, modes=("requests",)),
    Fault("more than 40 requests per second refused", r"http-503.* lost", {"requests_per_second": 40},
          modes=("requests",)),
    Fault("every 5th request cut", r"connection-lost.* lost", {"cut_every": 5}, modes=("requests",)),
    # The delay keeps the one connection busy, so that the streams cannot share it.
    Fault("1 connection at most", r"http-503", {"connections": 1, "response_delay": 0.15}, modes=("requests",)),
    Fault("death", r"outage at [12]\.\d+ s for .*to the end \(6 streams", dies_at=2.0),
    Fault("death and return", r"outage at [12]\.\d+ s for \d", dies_at=1.5, returns_at=2.5),
    Fault(
        "reading at 20 kB/s per stream", r"no space for messages for up to|only [\d.]+ % of the offered bytes",
        {"read_rate": 20_000}, modes=("streams",),
        options=("--rate", "2MB", "--buffer", "64KiB", "--send-buffer", "16KiB"),
    ),
]  # fmt: skip

#: The faults that an endpoint supports.
ALL = {fault.name for fault in FAULTS if "requests_per_second" not in fault.settings}
OWN = {"none", "death", "death and return", "1 connection at most"}
KINDS: list[tuple[str, Callable, set[str], tuple[str, ...]]] = [
    ("aiohttp", endpoints.aiohttp, ALL, ("requests", "streams")),
    ("uvicorn", endpoints.uvicorn, ALL - {"every 5th request cut"}, ("requests", "streams")),
    ("Node.js", endpoints.node, ALL, ("requests", "streams")),
    ("nginx", endpoints.nginx,
     {"none", "more than 40 requests per second refused", "death", "death and return"}, ("requests", "streams")),
    # Connections to the proxy are not connections to the endpoint, and a proxy hides the death of its endpoint.
    ("Caddy, Node.js", endpoints.behind_caddy,
     {"none", "response after 200 ms", "every 4th request refused"}, ("requests", "streams")),
    ("sluice serve", endpoints.sluice("sluice serve"), OWN - {"1 connection at most"}, ("resumable", "streams")),
    ("sluice serve --discard", endpoints.sluice("sluice serve --discard", "--discard"),
     {"none"}, ("resumable", "streams")),
]  # fmt: skip


class Comparison:
    """Compares the figures of one run with the log's."""

    def __init__(self) -> None:
        self.differences: list[str] = []
        self.count = 0

    def exactly(self, name: str, ours: float, theirs: float) -> None:
        self.count += 1
        if ours != theirs:
            self.differences.append(f"{name}: {ours} reported, {theirs} logged")

    def nearly(self, name: str, ours_ns: float | None, theirs_ns: float) -> None:
        """Within 2 % or 2 ms, whichever is more."""
        self.count += 1
        allowed = max(2 * MILLISECOND, theirs_ns * 0.02)
        if ours_ns is None or abs(ours_ns - theirs_ns) > allowed:
            shown = "nothing" if ours_ns is None else f"{ours_ns / 1e6:.2f} ms"
            self.differences.append(f"{name}: {shown} reported, {theirs_ns / 1e6:.2f} ms logged")


def load(endpoint: Endpoint, fault: Fault, mode: str, directory: Path) -> tuple[dict, str, dict[str, int]]:
    """Returns the report, its first sentence, and when the server was killed and restarted (wall clock, in ns)."""
    report = directory / "report.json"
    how = {
        "requests": ["--request-per-message"],
        "streams": ["--resumable", "never"],
        "resumable": ["--resumable", "always", "--roll-over-after", "1s"],
    }[mode]
    shape = fault.options or ("--rate", str(round(BYTES / CHUNK)))
    command = [
        *(str(SLUICE), "load", endpoint.url, "-n", str(STREAMS), "-d", f"{SECONDS}s", "--chunk", f"{CHUNK}s"),
        *(*shape, *how, "--json", str(report), "--progress", "none", "--grace", "2s", "--retry-ceiling", "250ms"),
    ]
    moments: dict[str, int] = {}

    def act() -> None:
        if fault.dies_at is not None:
            time.sleep(fault.dies_at)
            moments["killed"] = time.time_ns()
            endpoint.kill()
        if fault.returns_at is not None and fault.dies_at is not None:
            time.sleep(fault.returns_at - fault.dies_at)
            endpoint.start()
            moments["returned"] = time.time_ns()

    actor = threading.Thread(target=act)
    actor.start()
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    actor.join()
    if not report.exists():
        raise BenchmarkError(f"{' '.join(command)} wrote no report: {done.stderr}")
    said = done.stderr.splitlines()
    # After the announcement, up to the empty line.
    words = itertools.takewhile(bool, itertools.dropwhile(lambda line: line.startswith(("loading", "ended")), said))
    return json.loads(report.read_text()), " ".join(words), moments


def compare(
    report: dict, log: list[Request], fault: Fault, mode: str, endpoint: Endpoint, moments: dict[str, int]
) -> Comparison:
    found = Comparison()
    totals = report["totals"]
    due = STREAMS * round(SECONDS / CHUNK)
    if not fault.options:
        found.exactly("messages due", totals["messages"]["due"], due)
        found.exactly("bytes offered", totals["bytes"]["offered"], due * BYTES)
    if fault.dies_at is None:
        compare_bytes(found, totals, log, mode, endpoint)
    if isinstance(endpoint, SluiceEndpoint):
        return found
    answered = [request for request in log if request.status is not None]
    if fault.dies_at is None:
        statuses: dict[str, int] = {}
        for request in answered:
            statuses[str(request.status)] = statuses.get(str(request.status), 0) + 1
        for status, count in statuses.items():
            found.exactly(f"responses with {status}", totals["responses"].get(status, 0), count)
        delays = [r.response_ns - r.end_ns for r in answered if r.end_ns and r.response_ns and r.status == 200]
        if "read_delay" in fault.settings:
            # All of a message is in the socket before it is read.
            delays = [r.response_ns - r.head_ns for r in answered if r.head_ns and r.response_ns]
        if delays and "read_rate" not in fault.settings and "connections" not in fault.settings:
            found.nearly("response p50", report["histograms"]["response_ns"].get("p50"), statistics.median(delays))
        if endpoint.front_port is None:
            found.exactly("connections", totals["connects"], len({request.connection for request in log}))
    else:
        outages = totals["outages"]
        found.exactly("outages", len(outages), 1)
        if outages:
            began = parse_time(report["started_at"])
            found.nearly("start of the outage", outages[0]["start_ns"], moments["killed"] - began)
            back = sorted(r.response_ns for r in answered if r.response_ns and r.response_ns > moments["killed"])
            back = [moment for moment in back if "returned" in moments and moment - moments["killed"] > RETURNING]
            if len(back) >= STREAMS and mode == "requests":
                # Each stream sends one message per period, so the first responses are one for each stream.
                found.nearly("end of the outage", outages[0]["end_ns"], back[STREAMS - 1] - began)
    return found


def compare_bytes(found: Comparison, totals: dict, log: list[Request], mode: str, endpoint: Endpoint) -> None:
    if isinstance(endpoint, SluiceEndpoint):
        found.exactly("bytes acknowledged", totals["bytes"]["acknowledged"], sum(request.bytes for request in log))
        return
    accepted = sum(request.bytes for request in log if request.status == 200)
    found.exactly("bytes acknowledged", totals["bytes"]["acknowledged"], accepted)
    if mode == "requests":
        found.exactly("bytes lost", totals["bytes"]["lost"], totals["bytes"]["offered"] - accepted)


def parse_time(text: str) -> int:
    """Nanoseconds since 1970 of a time in the format of `started_at`."""
    whole, fraction = text.rstrip("Z").split(".")
    return calendar.timegm(time.strptime(whole, "%Y-%m-%dT%H:%M:%S")) * 10**9 + int(fraction.ljust(9, "0"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="only runs whose name contains this")
    options = parser.parse_args()
    failed, runs, figures = 0, 0, 0
    for kind, start, faults, modes in KINDS:
        for fault in FAULTS:
            for mode in modes:
                if fault.name not in faults or mode not in (*fault.modes, "resumable"):
                    continue
                name = f"{kind}, {mode}, {fault.name}"
                if options.only not in name:
                    continue
                with (
                    tempfile.TemporaryDirectory(dir=MEMORY_FILE_SYSTEM, prefix="truth-") as scratch,
                    start(Path(scratch) / "endpoint", fault.settings) as endpoint,
                ):
                    report, sentence, moments = load(endpoint, fault, mode, Path(scratch))
                    found = compare(report, endpoint.requests(), fault, mode, endpoint, moments)
                if not re.search(fault.sentence, sentence):
                    found.differences.append(f"the sentence does not name the fault: {sentence}")
                runs, figures, failed = runs + 1, figures + found.count, failed + bool(found.differences)
                print(f"{'FALSE' if found.differences else 'true '}  {name}: {found.count} figures")
                for difference in found.differences:
                    print(f"       {difference}")
    print(f"{runs} runs, {figures} figures, {failed} runs with a difference")
    return 1 if failed or not runs else 0


if __name__ == "__main__":
    sys.exit(main())
