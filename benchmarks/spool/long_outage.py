#!/usr/bin/env python3
"""`make long-outage`: 72 hours without a server, captured, spooled, and then drained.

Time is compressed: the clock of `sluice mic` and the test microphone run 1000 times as fast as real time
(Tests/ScaledClock). The disk is not accelerated, so --sync-interval and --buffer are minutes of simulated time. There
are two runs. In `kept`, the spool keeps all 72 hours of 8 kHz mono, 4.1 GB, and the stored bytes must have the SHA-256
of the device's bytes. In `ring`, 48 kHz stereo fills a spool of 1 GB about 50 times. The loss must be reported to the
byte, and the remaining bytes, at offsets beyond 2^35, must equal the device's bytes at their positions. Memory is
measured once per second.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.harness import SLUICE, BenchmarkError, end_on_signals, need, need_built, scratch_directory
from benchmarks.common.scaled_clock import ScaledClock
from benchmarks.common.sluice_server import SluiceServer
from benchmarks.live.beds import TestMicrophoneBed
from benchmarks.spool.microphone import Event, SpooledMicrophone

#: Simulated seconds in a real one.
FACTOR = 1000
SAMPLE = 2
PIECE = 1 << 20
#: The time limit, in real time, for draining the whole backlog.
PATIENCE = 900.0
#: The maximum difference between the memory after a tenth of the run and at its end, in bytes.
GROWTH = 2 << 20


@dataclass(frozen=True)
class Shape:
    """The captured format, and how much of it is kept."""

    rate: int
    channels: int
    limit: str
    code: int  # of `sluice mic` at its end

    @property
    def bytes_per_second(self) -> int:
        return self.rate * self.channels * SAMPLE


SHAPES = {"kept": Shape(8_000, 1, "8GB", 0), "ring": Shape(48_000, 2, "1GB", 4)}


def _resident(pid: int) -> int:
    """The process's own memory, in bytes. Shared memory, such as the buffer, has a constant size."""
    figures = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    return int(figures["RssAnon"].split()[0]) * 1024


def _run(shape: Shape, hours: float, directory: Path) -> list[str]:
    (directory / "tools").mkdir()
    clock = ScaledClock(directory, FACTOR)
    server = SluiceServer(directory / "server")
    with TestMicrophoneBed(directory / "tools", shape.rate, shape.channels) as bed:
        # The size of the device's buffer, in simulated seconds.
        bed.BUFFER_SECONDS = min(60.0, 4 * 192_000 / shape.rate)
        bed.prepare_run(directory, 1000)
        bed.environment |= clock.environment
        url = f"http://127.0.0.1:{server.port}/s"
        options = ["--spool", str(directory / "spool"), "--spool-limit", shape.limit, "--buffer", "20min"]
        options += ["--sync-interval", "5min", "--period", "1s", "--device-buffer", f"{bed.BUFFER_SECONDS:g}s"]
        options += ["--finish-timeout", "1000h", "--give-up-on-refusal", "1000h"]
        microphone = SpooledMicrophone(bed, directory, url, shape.rate, shape.channels, *options)
        try:
            memory = _outage(microphone, int(hours * 3600 * shape.bytes_per_second))
            server.start()
            begun = time.monotonic()
            ended = microphone.finish(PATIENCE, shape.code)
            drained = time.monotonic() - begun
        finally:
            microphone.process.end()
            server.stop()
        wrong = _memory(memory)
        wrong += _judge(shape, bed, server, ended, directory)
        steady = memory[len(memory) // 10 :]
        print(
            f"{hours:g} h of {shape.rate} Hz, {shape.channels} channels: {ended['captured']} bytes captured, "
            f"{ended['lost']} lost, drained in {drained:.0f} s; "
            f"own memory {min(steady) / 1e6:.2f} to {max(steady) / 1e6:.2f} MB"
        )
        return wrong


def _outage(microphone: SpooledMicrophone, wanted: int) -> list[int]:
    """Waits until this many bytes are captured. Returns the memory in each second."""
    memory = []
    while True:
        if microphone.process.wait(1):
            raise BenchmarkError(f"sluice mic ended by itself; it said: {microphone.said()}")
        memory.append(_resident(microphone.process.pid))
        progress = microphone.last("progress")
        if progress and int(progress["captured"]) >= wanted:
            return memory


def _memory(memory: list[int]) -> list[str]:
    begin, end = memory[len(memory) // 10], memory[-1]
    return [f"own memory has grown from {begin} to {end} bytes"] if end > begin + GROWTH else []


def _judge(shape: Shape, bed: TestMicrophoneBed, server: SluiceServer, ended: Event, directory: Path) -> list[str]:
    truth = bed.truth()
    wrong = [f"{name} of the device: {truth[name]}" for name in ("xruns", "frames_lost") if truth[name] != 0]
    if ended["unsent"] != 0 or ended["source_lost_frames"] != 0:
        wrong.append(f"the report states {ended}")
    frame = shape.channels * SAMPLE
    captured, lost = int(ended["captured"]), int(ended["lost"])
    if captured != truth["frames_delivered"] * frame:
        wrong.append(f"{captured} bytes are reported, the device has delivered {truth['frames_delivered']} frames")
    stored = max(server.stored(), key=lambda path: path.stat().st_size)
    size = stored.stat().st_size
    first = truth["next_frame"] - truth["frames_delivered"]
    kept = captured - lost
    if size not in (captured, kept):
        return [*wrong, f"{stored.name} has {size} bytes; {captured} were captured and {kept} kept"]
    control = [str(directory / "tools" / "testmic-control"), str(directory / "microphone.control")]
    expected = _digest_of(
        [*control, "samples", str(first + lost // frame), str(kept // frame), str(shape.channels)], kept
    )
    found = hashlib.sha256()
    with open(stored, "rb") as file:
        file.seek(size - kept)
        while piece := file.read(PIECE):
            found.update(piece)
    if found.digest() != expected:
        wrong.append(f"{stored.name} differs from the device's bytes from byte {lost} on")
    print(f"SHA-256 of {kept} bytes from offset {lost} on: {found.hexdigest()}")
    return wrong


def _digest_of(command: list[str], size: int) -> bytes:
    digest = hashlib.sha256()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout
        count = 0
        while piece := process.stdout.read(PIECE):
            digest.update(piece)
            count += len(piece)
    if process.returncode != 0 or count != size:
        raise BenchmarkError(f"{command[0]} gave {count} of {size} bytes")
    return digest.digest()


def main() -> int:
    parser = argparse.ArgumentParser(description="Spool a simulated outage of 72 hours, and drain it.")
    parser.add_argument("--hours", type=float, default=72, help="simulated hours (default: 72)")
    parser.add_argument("--only", choices=tuple(SHAPES), help="one of the two runs")
    options = parser.parse_args()
    end_on_signals()
    failed = False
    try:
        need("cc")
        need_built(SLUICE, "build")
        for name, shape in SHAPES.items():
            if options.only not in (None, name):
                continue
            with scratch_directory() as directory:
                wrong = _run(shape, options.hours, directory)
            failed = failed or bool(wrong)
            print(f"{name}: {'; '.join(wrong) or 'correct'}")
    except BenchmarkError as error:
        print(f"long-outage: {error}", file=sys.stderr)
        return 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
