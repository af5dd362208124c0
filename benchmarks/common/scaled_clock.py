"""A clock that runs many times as fast as the real one, for processes that are started with its environment.

It also shortens their waits by the same factor. See Tests/ScaledClock/include/scaled_clock.h.
"""

from __future__ import annotations

import struct
import subprocess
import time
from pathlib import Path

from benchmarks.common.harness import REPOSITORY, BenchmarkError

MAGIC = 0x74696D65
STEPS = 256


class ScaledClock:
    """Simulated time begins when an instance is created."""

    def __init__(self, directory: Path, factor: int) -> None:
        """`directory` receives the library and the clock's page."""
        library = directory / "libScaledClockPreload.so"
        tests = REPOSITORY / "Tests"
        sources = [*(tests / "ScaledClockPreload").glob("*.c"), *(tests / "ScaledClock").glob("*.c")]
        include = f"-I{tests / 'ScaledClock' / 'include'}"
        # Built here without the Swift runtime, which the package manager links into every library.
        command = ["cc", "-std=gnu11", "-O2", "-fPIC", "-shared", include, "-o", str(library), *map(str, sources)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise BenchmarkError(f"cannot build {library.name}: {done.stderr.strip()}")
        page = directory / "clock"
        now = time.monotonic_ns()
        clocks = (now, now, time.clock_gettime_ns(time.CLOCK_BOOTTIME), time.time_ns(), 0)
        # struct scaled_clock_page: magic, factor, start of each clock, no sleep, and no steps of the wall clock.
        page.write_bytes(struct.pack("<II5qI4x", MAGIC, factor, *clocks, 0) + bytes(16 * STEPS))
        self.environment = {"SCALED_CLOCK": str(page), "LD_PRELOAD": str(library)}
