#!/usr/bin/env python3
"""Runs each test suite of the named targets alone, and prints what it takes: where does the time of the tests go?

The time that `swift test` prints for a test that runs beside others includes the wait for its turn.
"""

import os
import re
import resource
import subprocess
import sys
import time
from pathlib import Path

from run import default_signals

ROOT = Path(__file__).parent.parent
RUNNER = ROOT / ".build/debug/sluicePackageTests.xctest"
LIMIT = 120


def suites(target):
    """The names of a target's suites."""
    for file in sorted((ROOT / "Tests" / target).glob("**/*.swift")):
        yield from re.findall(r"^(?:struct|final class) (\w+Tests)\b", file.read_text(), re.MULTILINE)


def processor_time():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main():
    targets = sys.argv[1:] or sorted(path.name for path in (ROOT / "Tests").glob("*Tests"))
    measured = []
    for target in targets:
        for suite in suites(target):
            start, used = time.monotonic(), processor_time()
            try:
                status = subprocess.run(
                    [RUNNER, "--testing-library", "swift-testing", "--filter", rf"^{target}\.{suite}/"], cwd=ROOT,
                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=LIMIT,
                    preexec_fn=default_signals,
                ).returncode
            except subprocess.TimeoutExpired:
                status = -1
            measured.append((time.monotonic() - start, processor_time() - used, f"{target}.{suite}", status))
            print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    print(f"{'seconds':>8} {'CPU':>8}")
    for seconds, used, name, status in sorted(measured, reverse=True):
        print(f"{seconds:8.1f} {used:8.1f} {name}{'' if status == 0 else ' failed'}")
    print(f"{sum(entry[0] for entry in measured):8.1f} {sum(entry[1] for entry in measured):8.1f} all")


if __name__ == "__main__":
    os.environ.setdefault("SLUICE_SEEDS_OF", "durations")
    main()
