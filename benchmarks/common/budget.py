"""A control group (cgroups(7)), which limits the processor time and memory of the processes in it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Self

from benchmarks.common.harness import BenchmarkError

ROOT = Path("/sys/fs/cgroup")
PERIOD_US = 100_000


class Budget:
    """A separate control group during a `with` block. Its processes must have ended by the end of the block."""

    def __init__(self, cores: float, memory: int) -> None:
        """`cores` may be a fraction. `memory` is in bytes, including the page cache."""
        self._cores = cores
        self._memory = memory
        self._is_unified = (ROOT / "cgroup.controllers").exists()
        name = f"sluice-benchmark-{os.getpid()}"
        self._processor = ROOT / name if self._is_unified else ROOT / "cpu" / name
        self._store = ROOT / name if self._is_unified else ROOT / "memory" / name
        #: The beginning of a command line that runs the rest of it in the group.
        self.prefix = [
            "sh",
            "-c",
            'for group; do shift; [ "$group" = -- ] && break; echo $$ > "$group"; done; exec "$@"',
            "sh",
        ]
        self.prefix += [str(group / "cgroup.procs") for group in self._groups()] + ["--"]

    def _groups(self) -> list[Path]:
        return [self._processor] if self._is_unified else [self._processor, self._store]

    def __enter__(self) -> Self:
        quota = round(self._cores * PERIOD_US)
        settings = (
            [(self._processor / "cpu.max", f"{quota} {PERIOD_US}"), (self._store / "memory.max", str(self._memory))]
            if self._is_unified
            else [
                (self._processor / "cpu.cfs_period_us", str(PERIOD_US)),
                (self._processor / "cpu.cfs_quota_us", str(quota)),
                (self._store / "memory.limit_in_bytes", str(self._memory)),
            ]
        )
        try:
            for group in self._groups():
                group.mkdir()
            for file, value in settings:
                file.write_text(value)
        except OSError as error:
            self.__exit__()
            raise BenchmarkError(
                f"cannot make a control group: {error}. Run it as root, where cgroups can be written."
            ) from None
        return self

    def __exit__(self, *_: object) -> None:
        for group in self._groups():
            with contextlib.suppress(OSError):
                group.rmdir()

    def throttled_periods(self) -> tuple[int, int]:
        """The number of throttled periods of 0.1 s, and the number of periods in which the group ran."""
        figures = self._read(self._processor / "cpu.stat")
        return int(figures["nr_throttled"]), int(figures["nr_periods"])

    def peak_memory(self) -> int:
        """The peak memory in bytes."""
        return int((self._store / ("memory.peak" if self._is_unified else "memory.max_usage_in_bytes")).read_text())

    @staticmethod
    def _read(file: Path) -> dict[str, str]:
        return dict(line.split(maxsplit=1) for line in file.read_text().splitlines())
