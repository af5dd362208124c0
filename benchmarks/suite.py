"""`make bench` and `make bench-quick`: runs all parts of the suite one after another, even if one fails.

Each part is a separate program with its own measurement. This file contains only their options, and reports durations.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from dataclasses import dataclass

from benchmarks.common.harness import REPOSITORY, end_on_signals


@dataclass(frozen=True)
class Part:
    key: str
    command: tuple[str, ...]  # a module, or a program below the repository
    full: tuple[str, ...] = ()
    quick: tuple[str, ...] = ()
    writes: bool = True


PARTS = (
    Part("buffer", (".build/bench/release/circular-buffer-benchmark",), writes=False),
    Part(
        "live",
        ("benchmarks.live.live",),
        ("--rounds", "3", "--seconds", "10"),
        (*("--rounds", "1", "--seconds", "4", "--beds", "testmic"), *("--only", "sluice-125,arecord"), "--parts=live"),
    ),
    Part(
        "throughput",
        ("benchmarks.resumable.throughput",),
        (),
        ("--rounds", "1", "--mebibytes", "256", "--places", "memory"),
    ),
    Part(
        "load",
        ("benchmarks.load.rivals",),
        (),
        ("--sizes", "10,200", "--seconds", "4", "--only", "sluice,curl,h2load"),
    ),
    Part(
        "libcurl",
        ("benchmarks.load.libcurl",),
        ("--loads", "1000x1000/1,5000x1000/1,15000x1000/1,5000x1000/0.25"),
        ("--loads", "1000x1000/1", "--rounds", "1", "--seconds", "4"),
    ),
    Part(
        "serve",
        ("benchmarks.serve.rivals",),
        ("--streams", "1000,5000", "--rounds", "4"),
        (
            *("--only", "sluice,nginx,uvicorn", "--rounds", "1", "--mebibytes", "256", "--parallel", "1"),
            *("--streams", "200", "--seconds", "5", "--pieces", "10"),
        ),
    ),
    Part(
        "recovery",
        ("benchmarks.recovery.recovery",),
        ("--events", "8", "--loads", "paced"),
        ("--events", "1", "--loads", "paced", "--round-trips", "0", "--down", "1"),
    ),
)


def command(part: Part, options: argparse.Namespace) -> list[str]:
    program = part.command[0]
    start = [program] if "/" in program else [sys.executable, "-m", program]
    words = [*start, *part.command[1:], *(part.quick if options.quick else part.full)]
    return [*words, "--write"] if options.write and part.writes else words


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the whole suite of benchmarks.")
    parser.add_argument("--quick", action="store_true", help="a small selection, in three minutes")
    parser.add_argument("--parts", default="", help="only these: " + ", ".join(part.key for part in PARTS))
    parser.add_argument("--write", action="store_true", help="write the tables into docs/benchmarks.md")
    options = parser.parse_args()
    if options.quick and options.write:
        parser.error("--quick and --write cannot be combined, because quick results do not belong in the document")
    end_on_signals()
    took: list[str] = []
    failed: list[str] = []
    for part in PARTS:
        if options.parts and part.key not in options.parts.split(","):
            continue
        words = command(part, options)
        print(f"=== {part.key}: {' '.join(words[2:] if words[1:2] == ['-m'] else words)}", flush=True)
        started = time.monotonic()
        try:
            code = subprocess.run(words, cwd=REPOSITORY, check=False).returncode
        except FileNotFoundError:
            code = 127
        took.append(f"{part.key} {time.monotonic() - started:.0f} s")
        if code:
            failed.append(f"{part.key} (exit {code})")
    print(f"=== took: {', '.join(took)}")
    if failed:
        print(f"=== failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
