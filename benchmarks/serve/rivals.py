"""`make bench-serve`: the cost of storing uploads with `sluice serve`, nginx, and Python's ASGI servers, alternately.

All servers receive the same bodies by PUT into the same directory in memory, and each is one process with one thread.
For long uploads, the result is the number of bytes per CPU second of the server. For live streams of 1 kB/s, it is how
many are held, the memory and CPU time of each, and the time until another program can read a byte from the file. Caddy
is tested too, but cannot store uploads.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.common.file_servers import Serve, hypercorn, nginx, sluice_serve, uvicorn
from benchmarks.common.harness import Process, free_port, in_memory, need, scratch_directory
from benchmarks.common.plots import Curve, Plot
from benchmarks.common.report import Report, Section, add_arguments
from benchmarks.common.tables import Table, median_and_spread
from benchmarks.serve.bulk import BulkFigures, upload
from benchmarks.serve.held import HeldFigures, hold
from benchmarks.serve.visible import VisibleFigures, watch


@dataclass(frozen=True)
class Contender:
    key: str
    title: str
    serve: Serve
    is_live: bool = True  # whether it takes part in the tests of live streams


OURS, NGINX = "sluice", "nginx"
CONTENDERS = (
    Contender(OURS, "sluice serve", sluice_serve),
    Contender(NGINX, "nginx (WebDAV)", nginx),
    Contender("nginx-1m", "nginx, body buffer of 1 MiB", functools.partial(nginx, body_buffer="1m"), is_live=False),
    Contender("uvicorn", "uvicorn (uvloop, httptools)", uvicorn),
    Contender("hypercorn", "hypercorn (uvloop)", hypercorn),
)


@dataclass
class Found:
    """Everything that was measured."""

    bulk: dict[str, list[BulkFigures]] = field(default_factory=dict)  # by "server/N", N at once
    held: dict[str, list[HeldFigures]] = field(default_factory=dict)  # by server
    visible: dict[str, VisibleFigures] = field(default_factory=dict)  # by server
    caddy: str = ""  # a sentence with its answer


def bulk_part(chosen: Sequence[Contender], options: argparse.Namespace, memory: Path, found: Found) -> None:
    """Measures rounds of each number of simultaneous uploads."""
    file = memory / "file"
    with open(file, "wb") as whole:
        for _ in range(options.mebibytes):
            whole.write(bytes(1 << 20))
    for parallel in (int(word) for word in options.parallel.split(",")):
        # One uncounted round comes first, because the first use of memory costs extra time.
        for turn in range(-1, options.rounds):
            for contender in chosen if turn % 2 == 0 else reversed(chosen):
                print(f"bulk, {parallel} at once, round {turn + 1}: {contender.title}", file=sys.stderr)
                with scratch_directory(memory) as directory, contender.serve(directory / "server") as server:
                    figures = upload(server, file, parallel, directory)
                if turn >= 0:
                    found.bulk.setdefault(f"{contender.key}/{parallel}", []).append(figures)
    file.unlink()


def held_part(chosen: Sequence[Contender], options: argparse.Namespace, memory: Path, found: Found) -> None:
    """Measures growing numbers of live streams for each server, until it does not hold them."""
    for contender in (each for each in chosen if each.is_live):
        for streams in (int(word) for word in options.streams.split(",")):
            print(f"held, {streams} streams: {contender.title}", file=sys.stderr)
            with scratch_directory(memory) as directory, contender.serve(directory / "server") as server:
                figures = hold(server, streams, options.seconds, directory)
            found.held.setdefault(contender.key, []).append(figures)
            if not figures.is_held:
                break


def visible_part(chosen: Sequence[Contender], options: argparse.Namespace, memory: Path, found: Found) -> None:
    """Measures one live stream to each server."""
    for contender in (each for each in chosen if each.is_live):
        print(f"visible: {contender.title}", file=sys.stderr)
        with scratch_directory(memory) as directory, contender.serve(directory / "server") as server:
            found.visible[contender.key] = watch(server, options.pieces)


def caddy_says(scratch: Path) -> str:
    """A sentence with Caddy's answer to a PUT. Its file server can only read."""
    need("caddy", "curl")
    port = free_port()
    with open(scratch / "caddy", "wb") as log:
        command = ["caddy", "file-server", "--listen", f"127.0.0.1:{port}", "--root", str(scratch)]
        process = Process(command, stdout=log.fileno(), stderr=log.fileno())
    try:
        ask = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "-T", "/proc/self/status"]
        deadline = time.monotonic() + 10
        answer = "000"
        # Only an answer shows that it listens.
        while answer == "000" and time.monotonic() < deadline:
            asked = subprocess.run([*ask, f"http://127.0.0.1:{port}/file"], capture_output=True, text=True, timeout=10)
            answer = asked.stdout.strip()
    finally:
        process.end()
    return (
        f"Debian's Caddy cannot store uploads: its file server answers a PUT with {answer}, the package lacks the "
        "WebDAV plug-in, and as a proxy it would require one of the other servers."
    )


def titles() -> dict[str, str]:
    return {contender.key: contender.title for contender in CONTENDERS}


def bulk_table(found: dict[str, list[BulkFigures]]) -> Table:
    rows = []
    for name, rounds in found.items():
        key, parallel = name.split("/")
        ratio = "–"
        # The ratio of bytes per CPU second is the inverse of the ratio of CPU time per byte.
        ours = found.get(f"{OURS}/{parallel}", [])
        if key != OURS and (
            ratios := [theirs.cpu_s_per_gib / mine.cpu_s_per_gib for mine, theirs in zip(ours, rounds)]
        ):
            ratio = median_and_spread(ratios)
            if key == NGINX:
                ratio += f"; ≥ 1.0 {'met' if statistics.median(ratios) >= 1 else 'MISSED'}"
        rows.append(
            [
                f"{parallel} at once, {titles()[key]}",
                median_and_spread([each.mib_per_s for each in rounds], 0),
                median_and_spread([each.cpu_s_per_gib for each in rounds], 3),
                median_and_spread([1 / each.cpu_s_per_gib for each in rounds], 2),
                ratio,
            ]
        )
    return Table(["long uploads", "MiB/s", "CPU s/GiB", "GiB per CPU second", "ratio of sluice serve to it"], rows)


def held_table(found: dict[str, list[HeldFigures]]) -> Table:
    rows = []
    for key, points in found.items():
        for number, point in enumerate(points):
            ratio = "–"
            ours = found.get(OURS, [])
            if key != OURS and number < len(ours) and point.kb_per_stream > 0:
                value = ours[number].kb_per_stream / point.kb_per_stream
                ratio = f"{value:.2f}"
                if key == NGINX:
                    ratio += f"; ≤ 0.5 {'met' if value <= 0.5 else 'MISSED'}"
            rows.append(
                [
                    f"{point.streams} streams, {titles()[key]}",
                    "yes" if point.is_held else f"no: {point.complaint}",
                    f"{point.kb_per_stream:.1f}",
                    f"{point.cpu_us_per_message:.1f}",
                    ratio,
                ]
            )
    header = ["live streams of 1 kB/s", "held", "kB per stream", "CPU µs per message"]
    return Table([*header, "memory ratio of sluice serve to it"], rows)


def visible_table(found: dict[str, VisibleFigures]) -> Table:
    rows = []
    for key, figures in found.items():
        delays = sorted(figures.delays_ms)
        shown = [f"{statistics.median(delays):.1f}", f"{delays[-1]:.0f}"] if delays else ["–", "–"]
        rows.append([titles()[key], *shown, str(figures.never)])
    return Table(["from sending to the file, 10 kB/s", "median, ms", "maximum, ms", "pieces only at the end"], rows)


def memory_plot(found: dict[str, list[HeldFigures]]) -> Plot:
    curves = [
        Curve(titles()[key], [each.streams for each in points], [each.kb_per_stream for each in points])
        for key, points in found.items()
    ]
    return Plot("serve-memory", "live streams of 1 kB/s", "kB per stream", curves)


def section(found: Found, options: argparse.Namespace) -> Section:
    note = (
        "All servers receive the same PUTs into the same directory in memory, and each is one process with one "
        f"thread. Long uploads: {options.mebibytes} MiB by curl, {options.rounds} alternating rounds. Live streams: "
        f"chunked, from the libcurl program, for {options.seconds:g} s. The memory is the growth of the server's "
        "anonymous memory. `make bench-serve`, `benchmarks/serve/rivals.py`."
    )
    tables = [bulk_table(found.bulk), held_table(found.held), visible_table(found.visible)]
    return Section("Servers that store uploads", note, tables, [found.caddy], plots=[memory_plot(found.held)])


PARTS = {"bulk": bulk_part, "held": held_part, "visible": visible_part}


def main() -> int:
    parser = argparse.ArgumentParser(description="Store uploads with several servers.")
    parser.add_argument("--parts", default="bulk,held,visible", help="what to measure (default: bulk,held,visible)")
    parser.add_argument("--only", default="", help="servers: " + ", ".join(each.key for each in CONTENDERS))
    add_arguments(parser, rounds=5, of="of the long uploads")
    parser.add_argument("--mebibytes", type=int, default=1024, help="size of a long upload (default: 1024)")
    parser.add_argument("--parallel", default="1,4", help="numbers of simultaneous long uploads (default: 1,4)")
    parser.add_argument("--streams", default="100,1000,5000", help="numbers of live streams (default: 100,1000,5000)")
    parser.add_argument("--seconds", type=float, default=25, help="duration of live streaming (default: 25)")
    parser.add_argument("--pieces", type=int, default=100, help="pieces of the stream that is watched (default: 100)")
    options = parser.parse_args()
    chosen = [each for each in CONTENDERS if not options.only or each.key in options.only.split(",")]
    found = Found()
    report = Report("rivals")
    # In memory, because the disk is not measured here.
    with report.measuring(), scratch_directory(in_memory()) as memory:
        for part, measure in PARTS.items():
            if part in options.parts:
                measure(chosen, options, memory, found)
        found.caddy = caddy_says(memory)
    report.sections = [section(found, options)]
    measured = {"bulk": found.bulk, "held": found.held, "visible": found.visible}
    report.figures = {part: figures for part, figures in measured.items() if figures}
    return report.finish(options)


if __name__ == "__main__":
    sys.exit(main())
