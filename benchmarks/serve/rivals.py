"""`make bench-serve`: what it costs to store uploads, by `sluice serve`, nginx, and Python's ASGI servers, in turn.

The same bodies by PUT into the same directory in memory, each server one process with one thread. Long uploads: bytes
for a CPU second of the server. Live ones: how many are held at 1 kB a second, what memory and CPU one takes, and how
long a byte takes to be in a file that somebody else can read. Caddy is asked, and has no way to store.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.common.file_servers import Serve, hypercorn, nginx, sluice_serve, uvicorn
from benchmarks.common.harness import BenchmarkError, Process, end_on_signals, free_port, need, scratch_directory
from benchmarks.common.plots import Curve, write_plot
from benchmarks.common.report import machine, markdown_table, median_and_spread, print_table, write_section
from benchmarks.serve.bulk import BulkFigures, upload
from benchmarks.serve.held import HeldFigures, hold
from benchmarks.serve.visible import VisibleFigures, watch


@dataclass(frozen=True)
class Contender:
    key: str
    title: str
    serve: Serve
    is_live: bool = True  # else only for the long uploads


OURS, NGINX = "sluice", "nginx"
CONTENDERS = (
    Contender(OURS, "sluice serve", sluice_serve),
    Contender(NGINX, "nginx (WebDAV)", nginx),
    Contender("nginx-1m", "nginx, body buffer of 1 MiB", functools.partial(nginx, body_buffer="1m"), is_live=False),
    Contender("uvicorn", "uvicorn (uvloop, httptools)", uvicorn),
    Contender("hypercorn", "hypercorn (uvloop)", hypercorn),
)


def bulk_part(chosen: Sequence[Contender], options: argparse.Namespace, memory: Path) -> dict[str, list[BulkFigures]]:
    """Rounds of each number of parallel uploads, by "server, N at once"."""
    found: dict[str, list[BulkFigures]] = {}
    file = memory / "file"
    with open(file, "wb") as whole:
        for _ in range(options.mebibytes):
            whole.write(bytes(1 << 20))
    for parallel in (int(word) for word in options.parallel.split(",")):
        # One that is not counted: memory that was never used costs who uses it first.
        for turn in range(-1, options.rounds):
            for contender in chosen if turn % 2 == 0 else reversed(chosen):
                print(f"bulk, {parallel} at once, round {turn + 1}: {contender.title}", file=sys.stderr)
                with scratch_directory(memory) as directory, contender.serve(directory / "server") as server:
                    figures = upload(server, file, parallel, directory)
                if turn >= 0:
                    found.setdefault(f"{contender.key}/{parallel}", []).append(figures)
    file.unlink()
    return found


def held_part(chosen: Sequence[Contender], options: argparse.Namespace, memory: Path) -> dict[str, list[HeldFigures]]:
    """Growing numbers of live streams, for each server until it does not hold them."""
    found: dict[str, list[HeldFigures]] = {}
    for contender in (each for each in chosen if each.is_live):
        for streams in (int(word) for word in options.streams.split(",")):
            print(f"held, {streams} streams: {contender.title}", file=sys.stderr)
            with scratch_directory(memory) as directory, contender.serve(directory / "server") as server:
                figures = hold(server, streams, options.seconds, directory)
            found.setdefault(contender.key, []).append(figures)
            if not figures.is_held:
                break
    return found


def visible_part(chosen: Sequence[Contender], options: argparse.Namespace, memory: Path) -> dict[str, VisibleFigures]:
    """One live stream to each server."""
    found = {}
    for contender in (each for each in chosen if each.is_live):
        print(f"visible: {contender.title}", file=sys.stderr)
        with scratch_directory(memory) as directory, contender.serve(directory / "server") as server:
            found[contender.key] = watch(server, options.pieces)
    return found


def caddy_says(scratch: Path) -> str:
    """What Caddy answers to a PUT: its file server is for reading."""
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
        f"Caddy (Debian's) has no handler that stores: its file server answers a PUT with {answer}, WebDAV is a plug-in"
        " that the package lacks, and as a proxy it needs one of the others behind it."
    )


def titles() -> dict[str, str]:
    return {contender.key: contender.title for contender in CONTENDERS}


def bulk_table(found: dict[str, list[BulkFigures]]) -> tuple[list[str], list[list[str]]]:
    rows = []
    for name, rounds in found.items():
        key, parallel = name.split("/")
        ratio = "–"
        if key != OURS and (ours := found.get(f"{OURS}/{parallel}")):
            # Bytes for a CPU second, ours to theirs: the inverse of CPU for bytes.
            ratios = [theirs.cpu_s_per_gib / mine.cpu_s_per_gib for mine, theirs in zip(ours, rounds)]
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
    return ["long uploads", "MiB/s", "CPU s/GiB", "GiB for a CPU second", "ours to theirs"], rows


def held_table(found: dict[str, list[HeldFigures]]) -> tuple[list[str], list[list[str]]]:
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
    return ["live streams of 1 kB a second", "held", "kB a stream", "CPU µs a message", "memory, ours to theirs"], rows


def visible_table(found: dict[str, VisibleFigures]) -> tuple[list[str], list[list[str]]]:
    rows = []
    for key, figures in found.items():
        delays = sorted(figures.delays_ms)
        shown = [f"{statistics.median(delays):.1f}", f"{delays[-1]:.0f}"] if delays else ["–", "–"]
        rows.append([titles()[key], *shown, str(figures.never)])
    return ["from sent to in a file, 10 kB a second", "ms, median", "ms, most", "pieces not before the end"], rows


def main() -> int:
    parser = argparse.ArgumentParser(description="Store uploads with several servers.")
    parser.add_argument("--parts", default="bulk,held,visible", help="what to measure (default: bulk,held,visible)")
    parser.add_argument("--only", default="", help="servers: " + ", ".join(each.key for each in CONTENDERS))
    parser.add_argument("--rounds", type=int, default=5, help="of the long uploads (default: 5)")
    parser.add_argument("--mebibytes", type=int, default=1024, help="of a long upload (default: 1024)")
    parser.add_argument("--parallel", default="1,4", help="long uploads at once (default: 1,4)")
    parser.add_argument("--streams", default="100,1000,5000", help="live ones (default: 100,1000,5000)")
    parser.add_argument("--seconds", type=float, default=25, help="of live streaming (default: 25)")
    parser.add_argument("--pieces", type=int, default=100, help="of the stream that is watched (default: 100)")
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/benchmarks.md")
    options = parser.parse_args()
    end_on_signals()
    chosen = [each for each in CONTENDERS if not options.only or each.key in options.only.split(",")]
    tables: list[tuple[list[str], list[list[str]]]] = []
    figures: dict[str, object] = {}
    pictures: list[str] = []
    caddy = failure = ""
    # In memory: the disk's mood is not what is compared.
    shared = Path("/dev/shm")
    with scratch_directory(shared if shared.is_dir() else None) as memory:
        try:
            if "bulk" in options.parts:
                bulk = bulk_part(chosen, options, memory)
                figures["bulk"] = {name: [asdict(each) for each in rounds] for name, rounds in bulk.items()}
                tables.append(bulk_table(bulk))
            if "held" in options.parts:
                held = held_part(chosen, options, memory)
                figures["held"] = {key: [asdict(each) for each in points] for key, points in held.items()}
                tables.append(held_table(held))
                if options.write:
                    curves = [
                        Curve(titles()[key], [each.streams for each in points], [each.kb_per_stream for each in points])
                        for key, points in held.items()
                    ]
                    pictures.append(write_plot("serve-memory", "live streams of 1 kB a second", "kB a stream", curves))
            if "visible" in options.parts:
                visible = visible_part(chosen, options, memory)
                figures["visible"] = {key: asdict(each) for key, each in visible.items()}
                tables.append(visible_table(visible))
            caddy = caddy_says(memory)
        except BenchmarkError as error:
            # What was measured until then is shown all the same.
            failure = str(error)
    for header, rows in tables:
        print_table(header, rows)
    print(caddy)
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), "figures": figures}, indent=2) + "\n")
    if options.write and not failure:
        note = (
            "The same PUTs into the same directory in memory; each server is one process with one thread. Long "
            f"uploads: {options.mebibytes} MiB by curl, {options.rounds} rounds in turn. Live ones: chunked, from "
            f"libcurl alone, for {options.seconds:g} s; memory is the server's own (anonymous), above what it had "
            "before. `make bench-serve`, `benchmarks/serve/rivals.py`."
        )
        body = "\n\n".join([note, *(markdown_table(header, rows) for header, rows in tables), caddy, *pictures])
        write_section("Servers that store uploads", body)
    if failure:
        print(f"rivals: {failure}", file=sys.stderr)
    return 1 if failure else 0


if __name__ == "__main__":
    sys.exit(main())
