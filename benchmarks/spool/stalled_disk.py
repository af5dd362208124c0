#!/usr/bin/env python3
"""`make stalled-disk`: tests a disk that does not answer for a few seconds, under the spool and under the server.

A separate file system is frozen (fsfreeze(8)). Writers wait in the kernel, as with a card that cleans up or a disk that
spins up. Meanwhile a real `sluice mic --spool` captures the test microphone. At the end the server must have each frame
from the device exactly once, the device must not have overrun, and the report must contain no loss. This is a test
without measurements, so it writes no figures.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.harness import SLUICE, BenchmarkError, end_on_signals, free_port, need_built, scratch_directory
from benchmarks.common.loop_disk import LoopDisk
from benchmarks.common.sluice_server import SluiceServer
from benchmarks.live.beds import TestMicrophoneBed
from benchmarks.spool.microphone import PATIENCE, Event, SpooledMicrophone, judge

RATE, CHANNELS = 48_000, 2
BYTES_PER_SECOND = RATE * CHANNELS * 2
DISK = 1 << 28
#: The buffer in memory before the spool. During an outage it keeps the bytes of the stall and of up to one
#: --sync-interval (1 s) before it. If the spool or the server accepts the bytes, the buffer is shorter than the stall.
BUFFER_IN_OUTAGE, BUFFER_BESIDE = "7s", "2s"


@dataclass
class Bench:
    """The objects of one scene."""

    directory: Path
    bed: TestMicrophoneBed
    disk: LoopDisk
    stall: float  # in seconds


@contextlib.contextmanager
def _microphone(bench: Bench, url: str, spool: Path, buffer: str) -> Iterator[SpooledMicrophone]:
    options = ("--spool", str(spool), "--spool-limit", "128MiB", "--buffer", buffer)
    microphone = SpooledMicrophone(bench.bed, bench.directory, url, RATE, CHANNELS, *options)
    try:
        yield microphone
    finally:
        microphone.process.end()


def _captured(event: Event) -> int:
    return int(event["captured"])


def _await_captured(microphone: SpooledMicrophone, seconds: float) -> Event:
    wanted = seconds * BYTES_PER_SECOND
    return microphone.wait_for(f"{seconds:g} s of audio", "progress", lambda event: _captured(event) >= wanted)


def _stall(bench: Bench, meanwhile: Callable[[], None] | None = None) -> None:
    """The fault. It fails if bytes were written to the disk in that time, because then nothing was tested."""
    with bench.disk.frozen():
        before, end = bench.disk.written(), time.monotonic() + bench.stall
        while (left := end - time.monotonic()) > 0:
            if meanwhile:
                meanwhile()
            time.sleep(min(0.1, left))
        if bench.disk.written() != before:
            raise BenchmarkError("bytes were written to the disk while it was frozen")


def spool_in_outage(bench: Bench) -> list[str]:
    """No server listens, and all bytes go to the disk, which stalls. Then the server starts."""
    server = SluiceServer(bench.directory / "server")
    spool = bench.disk.path / "outage"
    with _microphone(bench, f"http://127.0.0.1:{server.port}/s", spool, BUFFER_IN_OUTAGE) as microphone:
        _await_captured(microphone, 3)
        before = bench.disk.written()
        _stall(bench)
        thawed = _await_captured(microphone, 3 + bench.stall)
        bench.disk.synchronize()
        wrong = [] if bench.disk.written() > before else ["nothing was written to the spool's disk"]
        server.start()
        try:
            reached = _captured(thawed)
            microphone.wait_for("a byte at the server", "acknowledged", lambda event: event["offset"] > reached)
            ended = microphone.finish()
            return wrong + judge(bench.bed, server.stored(), ended, CHANNELS)
        finally:
            server.stop()


def spool_connected(bench: Bench) -> list[str]:
    """The server accepts the bytes, and the spool's disk stalls for longer than the buffer."""
    server = SluiceServer(bench.directory / "server")
    server.start()
    spool = bench.disk.path / "connected"
    try:
        with _microphone(bench, f"http://127.0.0.1:{server.port}/s", spool, BUFFER_BESIDE) as microphone:
            before = int(_await_captured(microphone, 3)["acknowledged"])
            _stall(bench)
            during = int(microphone.events("acknowledged")[-1]["offset"]) - before
            wrong = []
            if during < (bench.stall - 1) * BYTES_PER_SECOND:
                wrong.append(f"only {during} bytes were acknowledged during the stall of the spool's disk")
            _await_captured(microphone, 6 + bench.stall)
            ended = microphone.finish()
            return wrong + judge(bench.bed, server.stored(), ended, CHANNELS)
    finally:
        server.stop()


def server_stalls(bench: Bench) -> list[str]:
    """The server's disk stalls. The server must acknowledge only stored bytes, and still answer /healthz."""
    metrics = free_port()
    server = SluiceServer(bench.disk.path / "server", "--metrics", f"127.0.0.1:{metrics}")
    server.start()
    answers: list[float] = []

    def ask() -> None:
        begun = time.monotonic()
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics}/healthz", timeout=PATIENCE) as answer:
            answer.read()
        answers.append(time.monotonic() - begun)

    try:
        spool = bench.directory / "spool"
        with _microphone(bench, f"http://127.0.0.1:{server.port}/s", spool, BUFFER_BESIDE) as microphone:
            _await_captured(microphone, 3)
            _stall(bench, ask)
            told = int(microphone.events("acknowledged")[-1]["offset"])
            now = _await_captured(microphone, 3 + bench.stall)
            wrong = []
            if len(answers) < bench.stall:
                wrong.append(f"/healthz answered {len(answers)} times in {bench.stall:g} s")
            if told > 4 * BYTES_PER_SECOND:
                wrong.append(f"{told} bytes were acknowledged by the end of a stall that began after 3 s")
            microphone.wait_for("the later audio", "acknowledged", lambda event: event["offset"] > _captured(now))
            ended = microphone.finish()
            server.stop()
            return wrong + judge(bench.bed, server.stored(), ended, CHANNELS)
    finally:
        server.stop()


SCENES: dict[str, Callable[[Bench], list[str]]] = {
    "the spool's disk stalls in an outage": spool_in_outage,
    "the spool's disk stalls while the server answers": spool_connected,
    "the server's disk stalls": server_stalls,
}


def main() -> int:
    parser = argparse.ArgumentParser(description="Stall the disk of the spool, and of the server.")
    parser.add_argument("--seconds", type=float, default=5, help="duration of a stall (default: 5)")
    options = parser.parse_args()
    end_on_signals()
    failed = False
    try:
        need_built(SLUICE, "build")
        with scratch_directory() as scratch:
            (scratch / "tools").mkdir()
            with LoopDisk(scratch, DISK) as disk, TestMicrophoneBed(scratch / "tools", RATE, CHANNELS) as bed:
                for number, (title, scene) in enumerate(SCENES.items()):
                    directory = scratch / str(number)
                    directory.mkdir()
                    bed.prepare_run(directory, 10)
                    wrong = scene(Bench(directory, bed, disk, options.seconds))
                    failed = failed or bool(wrong)
                    print(f"{title} for {options.seconds:g} s: {'; '.join(wrong) or 'each frame is stored once'}")
    except BenchmarkError as error:
        print(f"stalled-disk: {error}", file=sys.stderr)
        return 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
