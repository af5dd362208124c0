"""`make bench-cluster`: the cost of storing uploads in NATS JetStream, compared with a directory.

Live streams and large uploads go to `sluice serve` with each store in turn. A program in C that only publishes the same
messages with libnats (`LeastPublisher`) shows the minimum. Everything runs on one machine, so the generator, the
servers and the brokers share its processors.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys

from benchmarks.cluster import bulk, held
from benchmarks.cluster.stores import STORES, Store
from benchmarks.common import nats
from benchmarks.common.harness import SLUICE, BenchmarkError, need_built, scratch_directory
from benchmarks.common.report import Report, Section, add_arguments
from benchmarks.common.tables import Table, median_and_spread
from benchmarks.live.pipe_path import make_file

#: The maximum ratio of the server's CPU time per message to that of the program in C.
AIM = 1.5
#: The title of the program in C, and whether its messages have an upload's headers.
PUBLISHERS = {"libnats alone": False, "libnats alone, with headers": True}
COLUMNS = (
    ("due to acknowledged, ms: p50", "ack_p50_ms", 1),
    ("p99", "ack_p99_ms", 1),
    ("max", "ack_max_ms", 0),
    ("CPU µs per message", "cpu_us_per_message", 1),
    ("brokers: CPU µs per message", "broker_cpu_us_per_message", 1),
)
Held = dict[str, list[held.Figures]]


def measure_held(streams: int, options: argparse.Namespace, found: dict[tuple[int, Store], Held]) -> None:
    """Measures each store and each program in turn."""
    for turn in range(options.rounds):
        for store in STORES if turn % 2 == 0 else reversed(STORES):
            rounds = found.setdefault((streams, store), {})
            print(f"{streams} streams, round {turn + 1} of {options.rounds}: {store.title}", file=sys.stderr)
            figures = held.serve(store, streams, options.period, options.seconds)
            rounds.setdefault("sluice serve", []).append(figures)
            for title, has_headers in PUBLISHERS.items() if store.brokers else ():
                figures = held.publish(store, streams, options.period, options.seconds, has_headers)
                rounds.setdefault(title, []).append(figures)


def held_rows(found: dict[tuple[int, Store], Held], period: float) -> list[list[str]]:
    rows = []
    for (streams, store), rounds in found.items():
        for title, figures in rounds.items():
            cells = [
                median_and_spread([getattr(each, what) for each in figures], digits) for _, what, digits in COLUMNS
            ]
            if not store.brokers:
                cells[-1] = "–"
            kept_up = all(held.kept_up(each, streams, period) for each in figures)
            rows.append([f"{streams}, {store.title}, {title}", *cells, "yes" if kept_up else "no"])
    return rows


def ratio_rows(found: dict[tuple[int, Store], Held]) -> list[list[str]]:
    """The server's CPU time divided by that of the programs in C, round by round."""
    rows = []
    for (streams, store), rounds in found.items():
        if len(rounds) <= len(PUBLISHERS):
            continue
        cells = []
        for title in PUBLISHERS:
            ratios = [
                ours.cpu_us_per_message / least.cpu_us_per_message
                for ours, least in zip(rounds["sluice serve"], rounds[title])
            ]
            verdict = "met" if statistics.median(ratios) <= AIM else "MISSED"
            cells += [median_and_spread(ratios), verdict]
        rows.append([f"{streams}, {store.title}", *cells])
    return rows


def measure_bulk(options: argparse.Namespace, found: dict[tuple[Store, int], list[bulk.Figures]]) -> None:
    with scratch_directory() as directory:
        file = directory / "file"
        make_file(file, options.mebibytes << 20)
        for turn in range(options.rounds):
            for store in STORES:
                for servers in (1, 2, 3) if store.brokers else (1,):
                    print(f"{store.title}, {servers} servers, round {turn + 1}", file=sys.stderr)
                    found.setdefault((store, servers), []).append(bulk.upload(store, servers, file))


def bulk_rows(found: dict[tuple[Store, int], list[bulk.Figures]]) -> list[list[str]]:
    names = ("mib_per_s", "mib_per_server_cpu_s", "mib_per_cpu_s")
    return [
        [store.title, str(servers), *(median_and_spread([getattr(one, name) for one in rounds], 0) for name in names)]
        for (store, servers), rounds in found.items()
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare sluice serve --store with --directory and libnats alone.")
    add_arguments(parser, rounds=2, of="turns of each store")
    parser.add_argument("--streams", default="200,1000,5000", help="numbers of live streams (default: 200,1000,5000)")
    parser.add_argument("--period", type=float, default=1, help="seconds between two messages of a stream (default: 1)")
    parser.add_argument("--seconds", type=float, default=10, help="duration of a window (default: 10)")
    parser.add_argument("--mebibytes", type=int, default=64, help="size of each large upload (default: 64)")
    options = parser.parse_args()
    live: dict[tuple[int, Store], Held] = {}
    large: dict[tuple[Store, int], list[bulk.Figures]] = {}
    report = Report("cluster")
    with report.measuring():
        need_built(SLUICE, "build")
        need_built(held.LIBCURL_LOAD, "libcurl-load")
        need_built(held.LEAST_PUBLISHER, ".build/least-publisher")
        for streams in map(int, options.streams.split(",")):
            try:
                measure_held(streams, options, live)
            except BenchmarkError as error:
                report.fail(error)
        measure_bulk(options, large)
    brokers = f"nats-server {nats.version()}, stores on disk, all on one machine with {os.cpu_count()} processors"
    live_note = (
        f"Resumable uploads of {held.MESSAGE} B every {options.period:g} s by libcurl alone (`benchmarks/LibcurlLoad`) "
        "to one `sluice serve`, and the same messages by libnats alone (`benchmarks/LeastPublisher`). Each message "
        "names the one before it, so each stream has one in flight. A server with a directory that is synced before "
        f"each acknowledgement acknowledges five times per second. {brokers}. Windows of {options.seconds:g} s. Median "
        f"of {options.rounds} rounds (minimum–maximum). `make bench-cluster`."
    )
    large_note = (
        f"{bulk.UPLOADS} uploads of {options.mebibytes} MiB at the same time by `sluice put --resumable always`, "
        f"in turn to the servers. {brokers}. The uploaders use them too. Median of {options.rounds} rounds "
        "(minimum–maximum). `make bench-cluster`."
    )
    report.sections = [
        Section(
            "Servers with a log: live streams",
            live_note,
            [
                Table(
                    ["streams, store, program", *(name for name, _, _ in COLUMNS), "kept up"],
                    held_rows(live, options.period),
                ),
                Table(
                    [
                        "CPU of sluice serve ÷ libnats alone",
                        *("without headers", f"≤ {AIM}", "with an upload's headers", f"≤ {AIM}"),
                    ],
                    ratio_rows(live),
                ),
            ],
        ),
        Section(
            "Servers with a log: large uploads",
            large_note,
            [
                Table(
                    ["store", "servers", "MiB/s", "MiB per CPU second of the servers", "of servers and brokers"],
                    bulk_rows(large),
                )
            ],
        ),
    ]
    report.figures = {
        "live": {f"{streams}, {store.title}": rounds for (streams, store), rounds in live.items()},
        "large": {f"{store.title}, {servers}": rounds for (store, servers), rounds in large.items()},
    }
    return report.finish(options)


if __name__ == "__main__":
    sys.exit(main())
