"""Measures the processor time of `sluice mic` with and without a spool, and its disk writes while no server answers."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.harness import SLUICE, BenchmarkError, Pipeline, free_port
from benchmarks.common.loop_disk import LoopDisk
from benchmarks.common.sluice_server import sluice_server
from benchmarks.live.beds import TestMicrophoneBed
from benchmarks.live.live_path import SETTLING

PERIOD_MS = 125
SAMPLE = 2  # bytes
#: The number of seconds after which a sync that has begun to write is over.
QUIET = 0.3
#: The minimum size of writes to the disk. Smaller writes only wake other threads.
BLOCK = 4096
#: The time limit for the next sync.
PATIENCE = 60.0
#: The size of the disk, for the spools of all runs and the journal.
DISK = 1 << 30
#: The captured formats (48 kHz stereo, and speech), the intervals of syncs, and options for mkfs.ext4(8).
WRITES: tuple[tuple[int, int, str, tuple[str, ...]], ...] = (
    (48_000, 2, "1s", ()),
    (48_000, 2, "10s", ()),
    (16_000, 1, "1s", ()),
    (16_000, 1, "10s", ()),
    (16_000, 1, "1s", ("-O", "fast_commit")),
    (16_000, 1, "1s", ("-b", "1024")),
)
#: The time until a slow stream has reserved space, in seconds: see docs/spool-format.md, "The file".
ROOM = 12.0


@dataclass
class Outage:
    """The measurements of one stream, beginning when it has settled."""

    title: str
    cpu_s_per_min: float
    called: float  # bytes passed to write calls, per captured byte
    at_device: float  # bytes written to the device, per captured byte; 0 without a device


@contextlib.contextmanager
def _microphone(tools: Path, rate: int, channels: int) -> Iterator[TestMicrophoneBed]:
    tools.mkdir()
    with TestMicrophoneBed(tools, rate, channels) as bed:
        yield bed


def _stream(
    bed: TestMicrophoneBed,
    directory: Path,
    rate: int,
    channels: int,
    url: str,
    options: list[str],
    seconds: float,
    title: str,
    disk: LoopDisk | None = None,
    settling: float = SETTLING,
) -> Outage:
    directory.mkdir()
    bed.prepare_run(directory, PERIOD_MS)
    command = [str(SLUICE), "mic", url, "--device", bed.device, "--rate", str(rate), "--channels", str(channels)]
    command += ["--period", f"{PERIOD_MS}ms", "--progress", "none", *options]
    pipeline = Pipeline([command], bed.environment, directory)
    try:
        _run(pipeline, settling)
        begun = _look(pipeline, disk)
        _run(pipeline, seconds)
        ended = _look(pipeline, disk)
    finally:
        pipeline.kill()
    passed, cpu, called, written = (after - before for before, after in zip(begun, ended))
    captured = passed * rate * channels * SAMPLE
    return Outage(title, cpu / 1e9 / passed * 60, called / captured, written / captured)


def _look(pipeline: Pipeline, disk: LoopDisk | None) -> tuple[float, int, int, int]:
    """The time, the processor time, the bytes of write calls, and the bytes at the device so far. With a disk, the
    values are taken directly after the next sync, including the file system's pending writes."""
    if disk:
        _await_writes(pipeline)
    now, cpu, called = time.monotonic(), pipeline.cpu_ns(), _called(pipeline)
    if disk:
        disk.synchronize()
    return now, cpu, called, disk.written() if disk else 0


def _await_writes(pipeline: Pipeline) -> None:
    """Polls until the process has written, because no event reports this."""
    deadline = time.monotonic() + PATIENCE
    before = _called(pipeline)
    while _called(pipeline) < before + BLOCK:
        _run(pipeline, 0.01)
        if time.monotonic() > deadline:
            raise BenchmarkError(f"nothing is written for {PATIENCE:g} s; sluice mic said: {pipeline.said()}")
    # The checkpoint follows the bytes.
    _run(pipeline, QUIET)


def _run(pipeline: Pipeline, seconds: float) -> None:
    if pipeline.members[0].wait(seconds):
        raise BenchmarkError(f"sluice mic ended by itself; it said: {pipeline.said()}")


def _called(pipeline: Pipeline) -> int:
    """The bytes passed to write(2) and similar calls so far (proc(5), `wchar`)."""
    figures = Path(f"/proc/{pipeline.members[0].pid}/io").read_text()
    return int(dict(line.split(": ") for line in figures.splitlines())["wchar"])


def measure_writes(directory: Path, seconds: float, found: list[Outage]) -> None:
    """Measures disk writes. No server listens, so all bytes go to the disk. Each stream has its own file system."""
    for rate, channels, interval, making in WRITES:
        title = f"{rate // 1000} kHz, {'stereo' if channels == 2 else 'mono'}, --sync-interval {interval}"
        if making:
            title += f", mkfs.ext4 {' '.join(making)}"
        print(f"writes: {title}", file=sys.stderr)
        place = directory / f"{rate}-{channels}-{interval}{''.join(making)}"
        place.mkdir()
        with LoopDisk(place, DISK, *making) as disk, _microphone(place / "tools", rate, channels) as bed:
            options = ["--spool", str(disk.path / "spool"), "--sync-interval", interval]
            url = f"http://127.0.0.1:{free_port()}/{place.name}"
            found.append(_stream(bed, place / "run", rate, channels, url, options, seconds, title, disk, ROOM))


def measure_cost(directory: Path, seconds: float, rounds: int, found: dict[str, list[Outage]]) -> None:
    """Measures alternately with and without a connection and a spool, every other round in reverse order."""
    rate, channels = 48_000, 2
    scratch = directory / "cost"
    scratch.mkdir()
    with _microphone(scratch / "tools", rate, channels) as bed, sluice_server(scratch / "server") as server:
        urls = {"connected": f"http://127.0.0.1:{server.port}", "outage": f"http://127.0.0.1:{free_port()}"}
        runs = [(state, which) for state in urls for which in ("spool", "memory")]
        for turn in range(rounds):
            for state, which in runs if turn % 2 == 0 else reversed(runs):
                title = f"{state}, {which}"
                print(f"round {turn + 1} of {rounds}: {title}", file=sys.stderr)
                name = f"{turn}-{state}-{which}"
                options = ["--spool", str(scratch / f"{name}.spool")] if which == "spool" else []
                url = f"{urls[state]}/{name}"
                one = _stream(bed, scratch / name, rate, channels, url, options, seconds, title)
                found.setdefault(title, []).append(one)
