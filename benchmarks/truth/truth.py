#!/usr/bin/env python3
"""`make truth`: tests whether `sluice load` reports correctly.

It runs each kind of endpoint with each fault of a known size. Every figure of the report is compared with the
endpoint's own log: counts exactly, times within 2 % or 2 ms, whichever is more. The first sentence must name the fault.
README.md lists the combinations that are not possible.
"""

from __future__ import annotations

import argparse
import calendar
import itertools
import json
import math
import re
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
    #: The expected sentence if a proxy answers 502 in place of the endpoint.
    behind_proxy: str | None = None


FAULTS = [
    Fault("none", r"6 live streams held .* no error; the generator kept up"),
    Fault("response after 200 ms", r"responses take 20\d ms \(p50\)", {"response_delay": 0.2}),
    Fault("reading begins after 150 ms", r"responses take 15\d ms \(p50\)", {"read_delay": 0.15}, modes=("requests",)),
    Fault("every 4th request refused", r"http-503.* lost", {"refuse_every": 4}, modes=("requests",)),
    Fault("more than 40 requests per second refused", r"http-503.* lost", {"requests_per_second": 40},
          modes=("requests",)),
    Fault("every 5th request cut", r"connection-lost.* lost", {"cut_every": 5}, modes=("requests",),
          behind_proxy=r"http-502.* lost"),
    # The delay keeps the one connection busy, so that the streams cannot share it.
    Fault("1 connection at most", r"http-503", {"connections": 1, "response_delay": 0.15}, modes=("requests",)),
    # Of resumable streams: the server refuses the others.
    Fault("1 upload at most", r"http-503", {"uploads": 1}, modes=()),
    Fault("no valid token", r"not-permitted.* lost", {"other_token": 1}, modes=()),
    Fault("death", r"outage at [12]\.\d+ s for .*to the end \(6 interruptions", dies_at=2.0, behind_proxy=r"http-502.* lost"),
    Fault("death and return", r"outage at [12]\.\d+ s for \d", dies_at=1.5, returns_at=2.5,
          behind_proxy=r"http-502"),
    Fault(
        "reading at 20 kB/s per stream", r"no space for messages for up to|only [\d.]+ % of the offered bytes",
        {"read_rate": 20_000}, modes=("streams",),
        options=("--rate", "2MB", "--buffer", "64KiB", "--send-buffer", "16KiB"),
    ),
]  # fmt: skip

#: The faults that an endpoint supports.
ALL = {
    fault.name for fault in FAULTS if not {"requests_per_second", "uploads", "other_token"} & fault.settings.keys()
}
LIVES = {"none", "death", "death and return"}
KINDS: list[tuple[str, Callable, set[str], tuple[str, ...]]] = [
    ("aiohttp", endpoints.aiohttp, ALL, ("requests", "streams")),
    ("uvicorn", endpoints.uvicorn, ALL, ("requests", "streams")),
    ("Node.js", endpoints.node, ALL, ("requests", "streams")),
    ("nginx", endpoints.nginx,
     LIVES | {"more than 40 requests per second refused", "every 5th request cut"}, ("requests", "streams")),
    ("nginx, Node.js", endpoints.behind_nginx, ALL, ("requests", "streams")),
    ("Caddy, Node.js", endpoints.behind_caddy, ALL, ("requests", "streams")),
    ("sluice serve", endpoints.sluice("sluice serve"),
     LIVES | {"1 upload at most", "no valid token"}, ("resumable", "streams")),
    ("sluice serve --discard", endpoints.sluice("sluice serve --discard", "--discard"),
     LIVES | {"1 upload at most", "no valid token"}, ("resumable", "streams")),
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

    def between(self, name: str, ours: float, least: float, most: float) -> None:
        self.count += 1
        if not least <= ours <= most:
            self.differences.append(f"{name}: {ours} reported, {least} to {most} logged")

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
        "streams": ["--resumable", "never", "--retry-ceiling", "250ms"],
        "resumable": ["--resumable", "always", "--roll-over-after", "1s", "--retry-ceiling", "250ms"],
    }[mode]
    # Long enough that no request is in flight at the end, whose response the endpoint would log and nobody receive.
    grace = "10s" if fault.dies_at is None and not fault.options else "2s"
    shape = fault.options or ("--rate", str(round(BYTES / CHUNK)))
    command = [
        *(str(SLUICE), "load", endpoint.url, "-n", str(STREAMS), "-d", f"{SECONDS}s", "--chunk", f"{CHUNK}s"),
        *(*shape, *how, "--json", str(report), "--progress", "none", "--grace", grace),
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
    # The sentence has several lines, up to an empty one.
    words = itertools.takewhile(bool, done.stdout.splitlines())
    return json.loads(report.read_text()), " ".join(words), moments


def compare(
    report: dict, log: list[Request], fault: Fault, mode: str, endpoint: Endpoint, moments: dict[str, int]
) -> Comparison:
    found = Comparison()
    totals = report["totals"]
    due = STREAMS * round(SECONDS / CHUNK)
    # A stream that the server refuses for good ends early.
    if not fault.options and "other_token" not in fault.settings:
        found.exactly("messages due", totals["messages"]["due"], due)
        found.exactly("bytes offered", totals["bytes"]["offered"], due * BYTES)
    if fault.dies_at is None:
        compare_bytes(found, totals, log, mode, endpoint)
        if not isinstance(endpoint, SluiceEndpoint):
            compare_responses(found, report, log, fault, mode, endpoint)
    else:
        compare_losses(found, totals, log, fault, mode, endpoint)
        if endpoint.front_port is None:
            compare_outage(found, report, log, mode, moments)
    return found


def compare_responses(
    found: Comparison, report: dict, log: list[Request], fault: Fault, mode: str, endpoint: Endpoint
) -> None:
    totals = report["totals"]
    answered = [request for request in log if request.status is not None]
    statuses: dict[str, int] = {}
    for request in answered:
        statuses[str(request.status)] = statuses.get(str(request.status), 0) + 1
    if endpoint.front_port is not None and (cut := sum(request.cut for request in log)):
        # The proxy answers these.
        statuses["502"] = cut
    for status, count in statuses.items():
        found.exactly(f"responses with {status}", totals["responses"].get(status, 0), count)
    if endpoint.front_port is None:
        found.exactly("connections", totals["connects"], len({request.connection for request in log}))
    if "read_rate" in fault.settings or "connections" in fault.settings:
        return
    delays = [r.response_ns - r.end_ns for r in answered if r.end_ns and r.response_ns and r.status == 200]
    if "refuse_every" in fault.settings:
        # A refusal is a response, too.
        delays = [r.response_ns - r.end_ns for r in answered if r.end_ns and r.response_ns]
    if "read_delay" in fault.settings:
        # All of a message is in the socket before it is read.
        delays = [r.response_ns - r.head_ns for r in answered if r.head_ns and r.response_ns]
    # The responses of the proxy itself are not in the log.
    if delays and "502" not in statuses:
        # The log of the endpoint does not have the time that a proxy adds, so only the median is compared.
        all_quantiles = mode == "requests" and endpoint.front_port is None
        compare_delays(found, report["histograms"]["response_ns"], delays, all_quantiles)


def compare_delays(found: Comparison, reported: dict, delays: list[int], all_quantiles: bool) -> None:
    """Compares the median, which is all that the few final responses of streams have, or all quantiles."""
    ordered = sorted(delays)
    quantiles = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0} if all_quantiles else {"p50": 0.5}
    for name, quantile in quantiles.items():
        logged = ordered[max(1, math.ceil(quantile * len(ordered))) - 1]
        found.nearly(f"response {name}", reported.get(name), logged)


def compare_losses(
    found: Comparison, totals: dict, log: list[Request], fault: Fault, mode: str, endpoint: Endpoint
) -> None:
    """The bytes that are lost with a server. A response or an acknowledgement may be lost with it, too."""
    count = totals["bytes"]
    if mode == "requests":
        lost = count["offered"] - sum(request.bytes for request in log if request.status == 200)
        found.between("bytes lost", count["lost"], lost, lost + STREAMS * BYTES)
    elif mode == "resumable" and fault.returns_at is not None and endpoint.name == "sluice serve":
        found.exactly("bytes lost", count["lost"], 0)
        found.exactly("bytes acknowledged", count["acknowledged"], count["offered"])
    elif mode == "resumable" and isinstance(endpoint, SluiceEndpoint) and endpoint.name == "sluice serve":
        # Up to a second of each stream is stored and not acknowledged yet.
        stored = endpoint.stored_bytes()
        least = stored - STREAMS * round(BYTES / CHUNK)
        found.between("bytes acknowledged", count["acknowledged"], max(0, least), stored)
        found.exactly("bytes lost", count["lost"], count["offered"] - count["acknowledged"])


def compare_outage(found: Comparison, report: dict, log: list[Request], mode: str, moments: dict[str, int]) -> None:
    outages = report["totals"]["outages"]
    found.exactly("outages", len(outages), 1)
    if not outages:
        return
    began = parse_time(report["started_at"])
    found.nearly("start of the outage", outages[0]["start_ns"], moments["killed"] - began)
    back = sorted(r.response_ns for r in log if r.status is not None and r.response_ns)
    back = [moment for moment in back if "returned" in moments and moment - moments["killed"] > RETURNING]
    if len(back) >= STREAMS and mode == "requests":
        # Each stream sends one message per period, so the first responses are one for each stream.
        found.nearly("end of the outage", outages[0]["end_ns"], back[STREAMS - 1] - began)


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
                expected = fault.sentence
                if endpoint.front_port is not None and fault.behind_proxy is not None:
                    expected = fault.behind_proxy
                if not re.search(expected, sentence):
                    found.differences.append(f"the sentence does not name the fault: {sentence}")
                runs, figures, failed = runs + 1, figures + found.count, failed + bool(found.differences)
                print(f"{'FALSE' if found.differences else 'true '}  {name}: {found.count} figures")
                for difference in found.differences:
                    print(f"       {difference}")
    print(f"{runs} runs, {figures} figures, {failed} runs with a difference")
    return 1 if failed or not runs else 0


if __name__ == "__main__":
    sys.exit(main())
