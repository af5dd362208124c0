"""The command lines of programs that stream a microphone to an HTTP server: ours, and those that people use today.

Each has the options of its own manual for an endless, live, chunked upload with the lowest possible delay. All send
samples without a container, so that every byte of a body belongs to a sample.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.common.harness import REPOSITORY, SLUICE, BenchmarkError

LEAST_MICROPHONE = REPOSITORY / ".build" / "least-microphone"


@dataclass(frozen=True)
class Capture:
    """The captured format, the device, and the URL of the server."""

    device: str  # an ALSA PCM name
    url: str
    rate: int = 48_000  # frames per second
    channels: int = 1
    frame_bytes: int = 2  # of one frame of all channels, S16_LE

    @property
    def bytes_per_second(self) -> int:
        return self.rate * self.frame_bytes


@dataclass(frozen=True)
class Contender:
    """One way to stream a microphone."""

    key: str  # for --only and JSON
    title: str  # for tables
    period_ms: int  # the ALSA period that it asks for
    commands: Callable[[Capture], list[Sequence[str]]]  # processes joined by pipes
    ours: bool = False
    # A message that contains one of these words reports an error.
    complaints: tuple[str, ...] = ("error", "fail", "refused", "reset", "broken pipe", "overrun")

    @property
    def programs(self) -> list[str]:
        return [command[0] for command in self.commands(Capture("", ""))]


def _curl(capture: Capture) -> list[str]:
    # `-T -` sends the bytes of each read(2) immediately as one chunk. Without the Expect field, curl does not wait a
    # second for servers that ignore the field. With -f, an answer of 4xx or 5xx becomes an exit code.
    return ["curl", "-sSf", "-T", "-", "-H", "Expect:", capture.url]


def _arecord(capture: Capture, *timing: str) -> list[str]:
    return [
        *("arecord", "-q", "-D", capture.device, "-t", "raw", "-f", "S16_LE"),
        *("-r", str(capture.rate), "-c", str(capture.channels), *timing),
    ]


def _arecord_default(capture: Capture) -> list[Sequence[str]]:
    # arecord's default is a buffer of 500 ms with four periods of 125 ms.
    return [_arecord(capture), _curl(capture)]


def _arecord_quick(capture: Capture) -> list[Sequence[str]]:
    return [_arecord(capture, "--period-time=10000", "--buffer-time=500000"), _curl(capture)]


def _ffmpeg(capture: Capture) -> list[Sequence[str]]:
    return [
        [
            *("ffmpeg", "-hide_banner", "-nostdin", "-nostats", "-loglevel", "warning"),
            *("-fflags", "nobuffer", "-f", "alsa", "-sample_rate", str(capture.rate)),
            *("-channels", str(capture.channels), "-i", capture.device, "-map", "0:a", "-c", "copy"),
            # The fifo muxer sends from a separate thread, and reopens the output after every error, without a limit.
            *("-f", "fifo", "-fifo_format", "s16le", "-attempt_recovery", "1", "-recover_any_error", "1"),
            *("-recovery_wait_time", "1", "-max_recovery_attempts", "0", "-queue_size", "1000"),
            # Options of the inner muxer, which sends each packet immediately.
            *("-format_opts", "flush_packets=1", "-flush_packets", "1", capture.url),
        ]
    ]


def _gstreamer(capture: Capture) -> list[Sequence[str]]:
    audio = f"audio/x-raw,format=S16LE,rate={capture.rate},channels={capture.channels}"
    return [
        [
            *("gst-launch-1.0", "-q", "-e", "alsasrc", f"device={capture.device}"),
            *("latency-time=10000", "buffer-time=500000", "!", audio),
            *("!", "curlhttpsink", f"location={capture.url}", "use-content-length=false", "sync=false"),
        ]
    ]


def _least(capture: Capture, period_ms: int) -> list[Sequence[str]]:
    stream = (capture.url, capture.device, str(period_ms * 1000), str(capture.rate), str(capture.channels))
    return [[str(LEAST_MICROPHONE), *stream]]


def _least_quick(capture: Capture) -> list[Sequence[str]]:
    return _least(capture, 10)


def _least_arecord(capture: Capture) -> list[Sequence[str]]:
    return _least(capture, 125)


def _sluice(capture: Capture, period: str) -> list[Sequence[str]]:
    return [
        [
            *(str(SLUICE), "mic", capture.url, "--device", capture.device, "--format", "S16_LE"),
            *("--rate", str(capture.rate), "--channels", str(capture.channels), "--period", period),
            *("--container", "raw", "--progress", "json"),
        ]
    ]


def _sluice_quick(capture: Capture) -> list[Sequence[str]]:
    return _sluice(capture, "10ms")


def _sluice_arecord(capture: Capture) -> list[Sequence[str]]:
    return _sluice(capture, "125ms")


SLUICE_QUICK = Contender("sluice", "sluice mic, 10 ms", 10, _sluice_quick, ours=True)
SLUICE_ARECORD = Contender("sluice-125", "sluice mic, 125 ms", 125, _sluice_arecord, ours=True)
ARECORD = Contender("arecord", "arecord | curl, 125 ms", 125, _arecord_default)
ARECORD_QUICK = Contender("arecord-10", "arecord | curl, 10 ms", 10, _arecord_quick)
FFMPEG = Contender("ffmpeg", "ffmpeg fifo, 10 ms", 10, _ffmpeg)
GSTREAMER = Contender("gstreamer", "GStreamer, 10 ms", 10, _gstreamer)
# Only a capture thread, a ring and libcurl in C, which show the minimum cost of our design.
LEAST_QUICK = Contender("least", "least in C, 10 ms", 10, _least_quick)
LEAST_ARECORD = Contender("least-125", "least in C, 125 ms", 125, _least_arecord)

ALL = (SLUICE_QUICK, LEAST_QUICK, SLUICE_ARECORD, LEAST_ARECORD, ARECORD, ARECORD_QUICK, FFMPEG, GSTREAMER)
KEYS = tuple(contender.key for contender in ALL)
# The period hardly affects losses. These use 10 ms, except arecord, which uses its default.
FAULT_TABLE = (SLUICE_QUICK, ARECORD, FFMPEG, GSTREAMER)


def choose(keys: str, default: Sequence[Contender] = ALL) -> list[Contender]:
    """The contenders of a comma-separated list, or the default ones. Ours are included only if they are built."""
    unknown = [key for key in keys.split(",") if key and key not in KEYS]
    if unknown:
        raise BenchmarkError(f"no contender {', '.join(unknown)}; there are: {', '.join(KEYS)}")
    chosen = [contender for contender in ALL if contender.key in keys.split(",")] if keys else list(default)
    if any(contender.ours for contender in chosen) and not SLUICE.exists():
        print(f"{SLUICE} does not exist (make build), so only the others are measured", file=sys.stderr)
        chosen = [contender for contender in chosen if not contender.ours]
    return chosen
