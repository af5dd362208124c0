#!/usr/bin/env python3
"""`make bench-spool-rivals`: compares `sluice mic --spool` with today's common tools during two faults.

The other tools are `ffmpeg -f segment` or `arecord --max-file-time`, which write a file for every second, and a loop
that sends each finished file with curl until the server has accepted it. The server is killed for a few seconds. Later
the capturing program is killed and restarted immediately, as a service manager would do. Each tool has its own
microphone, server and disk. The microphone's noise shows when each stored sample was captured. The sizes of the stored
files are polled, which shows when the server had it.
"""

from __future__ import annotations

import argparse
import shlex
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.harness import SLUICE, Pipeline, need, need_built, scratch_directory
from benchmarks.common.loop_disk import LoopDisk
from benchmarks.common.recording import percentile
from benchmarks.common.report import Report, Section, add_arguments
from benchmarks.common.sluice_server import SluiceServer
from benchmarks.common.tables import Table
from benchmarks.live import testmic_signal
from benchmarks.live.beds import TestMicrophoneBed
from benchmarks.live.losses import merged

RATE, CHANNELS = 48_000, 2
FRAME = CHANNELS * 2
DISK = 1 << 28
PERIOD_MS = 125
#: The interval for polling the server's files, in seconds.
LOOK = 0.05
#: The time without a fault, in seconds.
CALM = 5.0
#: The time after the last fault for the backlog, in seconds.
AFTER = 15.0


def _sluice(device: str, url: str, directory: Path) -> list[str]:
    command = [str(SLUICE), "mic", f"{url}/s", "--device", device, "--rate", str(RATE), "--channels", str(CHANNELS)]
    return [*command, "--container", "raw", "--progress", "none", "--spool", str(directory / "spool")]


def _ffmpeg(device: str, url: str, directory: Path) -> list[str]:
    command = ["ffmpeg", "-hide_banner", "-nostdin", "-nostats", "-loglevel", "warning", "-f", "alsa"]
    command += ["-sample_rate", str(RATE), "-channels", str(CHANNELS), "-i", device, "-map", "0:a", "-c", "copy"]
    # Each start uses different names. Otherwise it would overwrite files that were not sent yet.
    names = f"{directory}/{time.time_ns()}-%06d.raw"
    return [*command, "-f", "segment", "-segment_time", "1", "-segment_format", "s16le", names]


def _arecord(device: str, url: str, directory: Path) -> list[str]:
    command = ["arecord", "-q", "-D", device, "-t", "raw", "-f", "S16_LE", "-r", str(RATE), "-c", str(CHANNELS)]
    return [*command, "--max-file-time", "1", "--use-strftime", f"{directory}/%s-%v.raw"]


def _loop(url: str, directory: Path) -> list[str]:
    """Sends each file except the newest, which still grows. The oldest comes first. Waits a second after a failure."""
    script = (
        f"while :; do for f in $(ls -tr {shlex.quote(str(directory))}/*.raw 2>/dev/null | head -n -1); do "
        f"curl -sf -T $f {url}/$(basename $f) && rm $f || break; done; sleep 1; done"
    )
    return ["bash", "-c", script]


#: The capturing program, and whether a loop sends its files.
CONTENDERS: dict[str, tuple[Callable[[str, str, Path], list[str]], bool]] = {
    "sluice mic --spool": (_sluice, False),
    "ffmpeg -f segment, curl loop": (_ffmpeg, True),
    "arecord to disk, curl loop": (_arecord, True),
}


@dataclass
class Outcome:
    """The results of one contender."""

    title: str
    lost_bytes: int  # between the first and the last stored frame
    lost_captured_bytes: int  # of these, bytes that the killed program had taken from the device
    median: float  # delay of a second of audio, from its end until the server has all of it
    p99: float
    written: float  # bytes written to the disk per captured byte


class Watch:
    """The sizes of the server's files over time, by inode, because the names change when the files are complete."""

    def __init__(self, server: SluiceServer) -> None:
        self.sizes: dict[int, list[tuple[int, int]]] = {}
        self._server = server
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(LOOK):
            now = time.monotonic_ns()
            for path in self._server.stored():
                try:
                    status = path.stat()
                except FileNotFoundError:
                    continue
                seen = self.sizes.setdefault(status.st_ino, [])
                if not seen or seen[-1][1] < status.st_size:
                    seen.append((now, status.st_size))

    def end(self) -> None:
        self._stop.set()
        self._thread.join()


def measure(title: str, directory: Path, outage: float) -> Outcome:
    """Measures one contender during both faults."""
    capture, has_loop = CONTENDERS[title]
    (directory / "tools").mkdir(parents=True)
    server = SluiceServer(directory / "server")
    url = f"http://127.0.0.1:{server.port}"
    pipelines: list[Pipeline] = []
    with LoopDisk(directory, DISK) as disk, TestMicrophoneBed(directory / "tools", RATE, CHANNELS) as bed:
        bed.prepare_run(directory, PERIOD_MS)
        disk.synchronize()
        before = disk.written()

        def start(command: list[str]) -> Pipeline:
            messages = directory / str(len(pipelines))
            messages.mkdir()
            pipelines.append(Pipeline([command], bed.environment, messages))
            return pipelines[-1]

        server.start()
        watch = Watch(server)
        try:
            capturing = start(capture(bed.device, url, disk.path))
            if has_loop:
                start(_loop(url, disk.path))
            time.sleep(CALM)
            server.kill()
            time.sleep(outage)
            server.start()
            time.sleep(CALM)
            capturing.kill()
            taken = bed.truth()["next_frame"]
            capturing = start(capture(bed.device, url, disk.path))
            time.sleep(AFTER)
            disk.synchronize()
            written = disk.written() - before
            capturing.members[0].send(signal.SIGTERM)
            capturing.wait(AFTER)
            time.sleep(CALM)
        finally:
            for pipeline in pipelines:
                pipeline.kill()
            watch.end()
            server.stop()
        return _outcome(title, bed.truth(), taken, server, watch, written)


def _outcome(
    title: str, truth: dict[str, int], taken: int, server: SluiceServer, watch: Watch, written: int
) -> Outcome:
    ranges: list[tuple[int, int]] = []
    arrivals: dict[int, int] = {}
    for path in server.stored():
        sizes = watch.sizes.get(path.stat().st_ino, [])
        for run in testmic_signal.read_runs(path.read_bytes(), CHANNELS).runs:
            end = run.first_frame + run.frames
            ranges.append((run.first_frame, end))
            for second in range(run.first_frame // RATE, end // RATE + 1):
                # When the last frame of this second in this file has arrived, all of its frames in the file have.
                last = min(end, (second + 1) * RATE)
                size = run.offset + (last - run.first_frame) * FRAME
                if last > second * RATE and (found := next((at for at, seen in sizes if seen >= size), None)):
                    arrivals[second] = max(arrivals.get(second, 0), found)
    stored = merged(ranges)
    gaps = [(before[1], after[0]) for before, after in zip(stored, stored[1:])]
    lost = sum(end - start for start, end in gaps)
    lost_captured = sum(max(0, min(end, taken) - start) for start, end in gaps)
    whole = range(stored[0][0] // RATE + 1, stored[-1][1] // RATE)
    delays = sorted(
        (arrivals[second] - truth["t0_ns"]) / 1e9 - second - 1 for second in whole if second in arrivals
    )
    captured = truth["frames_delivered"] * FRAME
    return Outcome(
        title, lost * FRAME, lost_captured * FRAME, statistics.median(delays), percentile(delays, 0.99), written / captured
    )


def section(found: list[Outcome], options: argparse.Namespace) -> Section:
    note = (
        f"48 kHz stereo for about a minute. The server is killed for {options.outage:g} s, and later the capturing "
        "program is killed and restarted immediately. Lost: bytes from the device between the first and the last "
        "stored frame that the server does not have, including those between the kill and the restart. Taken: of "
        "these, bytes that the killed program had taken from the device. Delay: the time from the end of a second of "
        f"audio until the server has all of it, with a resolution of {LOOK * 1000:.0f} ms. Written: bytes at the "
        "device of a separate ext4 file system per captured byte. The loop sends files of 1 s, the oldest first, and "
        "waits 1 s after each pass. It never syncs, so files that are sent soon never reach its disk, and a power "
        "failure would destroy them. The spool syncs once per second. One round. `make bench-spool-rivals`."
    )
    rows = [
        [
            each.title,
            f"{each.lost_bytes / 1000:.0f}",
            f"{each.lost_captured_bytes / 1000:.0f}",
            f"{each.median:.2f}",
            f"{each.p99:.1f}",
            f"{each.written:.2f}",
        ]
        for each in found
    ]
    header = ["", "lost, kB", "taken, kB", "delay, median, s", "delay, p99, s", "written"]
    return Section("Spool: comparison with other tools", note, [Table(header, rows)])


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill the server and then the capturing program, for several tools.")
    add_arguments(parser)
    parser.add_argument("--outage", type=float, default=20, help="seconds without a server (default: 20)")
    options = parser.parse_args()
    found: list[Outcome] = []
    report = Report("bench-spool-rivals")
    with report.measuring():
        need("cc", "curl", "ffmpeg", "arecord")
        need_built(SLUICE, "build")
        with scratch_directory() as scratch:
            for number, title in enumerate(CONTENDERS):
                print(title, file=sys.stderr)
                found.append(measure(title, scratch / str(number), options.outage))
    report.sections = [section(found, options)] if found else []
    report.figures = found
    return report.finish(options)


if __name__ == "__main__":
    sys.exit(main())
