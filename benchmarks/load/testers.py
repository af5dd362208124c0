"""The load testers, and how each holds N live streams of a given rate, with the options that its own manual offers.

Testers that can pace a body do so: sluice load, curl (--limit-rate), ffmpeg (-re), Locust (a generator that sleeps).
h2load, wrk and hey can only pace requests. They run as people would try it, and the receiver judges what arrives.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import environment
from benchmarks.common.harness import SLUICE

#: 16,000 samples of 16 bits per second, in pieces of a quarter of a second.
RATE, PERIOD = 32_000, 0.25
#: curl accepts no larger value for --parallel-max.
CURL_TRANSFERS = 300


@dataclass(frozen=True)
class Task:
    """The task of a tester."""

    streams: int
    url: str
    ramp: float  # seconds in which the streams may begin
    seconds: float  # the minimum time for which they last
    directory: Path  # for the tester's own files


@dataclass(frozen=True)
class Tester:
    """One way to create load."""

    key: str
    title: str
    commands: Callable[[Task], list[Sequence[str]]]  # processes side by side
    package: str  # the package that contains it
    paces: bool = True  # whether it can pace the bytes of a body, and not only requests
    environment: Callable[[Task], dict[str, str]] = lambda _: {}
    started_per_second: float = 2000  # how many streams it can start per second without delays


def _zeros(task: Task, size: int) -> Path:
    """A sparse file of this size, so that nothing is read from a disk."""
    path = task.directory / f"{size}.bytes"
    if not path.exists():
        with open(path, "wb") as file:
            file.truncate(size)
    return path


def _sluice(task: Task) -> list[Sequence[str]]:
    return [
        [
            *(str(SLUICE), "load", task.url, "--streams", str(task.streams), "--rate", str(RATE)),
            *("--chunk", f"{PERIOD * 1000:g}ms", "--duration", f"{task.ramp + task.seconds:g}s"),
            *("--ramp", f"{task.ramp:g}s", "--resumable", "never", "--progress", "none"),
            # The other testers run several processes.
            *("--threads", str(os.cpu_count() or 1)),
        ]
    ]


def _curl(task: Task) -> list[Sequence[str]]:
    file = _zeros(task, round(RATE * task.seconds))
    commands: list[Sequence[str]] = []
    for first in range(0, task.streams, CURL_TRANSFERS):
        count = min(CURL_TRANSFERS, task.streams - first)
        config = task.directory / f"curl-{first}"
        # The options of a transfer apply up to the next "next".
        one = (
            f'upload-file = "{file}"\nurl = "{task.url}"\nheader = "Expect:"\nlimit-rate = {RATE}\noutput = /dev/null\n'
        )
        config.write_text("next\n".join([one] * count))
        many = ["--parallel", "--parallel-immediate", "--parallel-max", str(CURL_TRANSFERS)]
        commands.append(["curl", "-sS", *many, "--config", str(config)])
    return commands


def _locust(task: Task) -> list[Sequence[str]]:
    return [
        [
            *(str(environment.program("locust", "locust")), "--headless", "--only-summary", "--loglevel", "WARNING"),
            *("--locustfile", str(Path(__file__).with_name("locustfile.py"))),
            *("--host", task.url.rsplit("/", 1)[0], "--users", str(task.streams)),
            *("--spawn-rate", str(max(10, round(task.streams / max(task.ramp, 1))))),
        ]
    ]


def _locust_environment(task: Task) -> dict[str, str]:
    return {"RATE": str(RATE), "PERIOD": str(PERIOD), "SECONDS": str(task.seconds)}


def _ffmpeg(task: Task) -> list[Sequence[str]]:
    one = [
        *("ffmpeg", "-hide_banner", "-nostdin", "-nostats", "-loglevel", "error", "-re", "-f", "lavfi"),
        *("-i", f"anullsrc=r={RATE // 2}:cl=mono", "-c:a", "pcm_s16le", "-f", "s16le", "-flush_packets", "1"),
        *("-threads", "1", "-method", "POST", task.url),
    ]
    return [one] * task.streams


def _h2load(task: Task) -> list[Sequence[str]]:
    file, many = _zeros(task, round(RATE * task.seconds)), str(task.streams)
    return [["h2load", "--h1", "-c", many, "-t", "1", "-D", f"{task.seconds:g}", "-d", str(file), task.url]]


def _wrk(task: Task) -> list[Sequence[str]]:
    script = task.directory / "put.lua"
    script.write_text(f'wrk.method = "PUT"\nwrk.body = string.rep("x", {round(RATE * task.seconds)})\n')
    many = str(task.streams)
    return [["wrk", "-t", "1", "-c", many, "-d", f"{task.seconds:g}s", "-s", str(script), task.url]]


def _hey(task: Task) -> list[Sequence[str]]:
    # The closest equivalent: one request per second on each connection, with the bytes of one second.
    file, many = _zeros(task, RATE), str(task.streams)
    return [["hey", "-z", f"{task.seconds:g}s", "-c", many, "-q", "1", "-m", "PUT", "-D", str(file), task.url]]


OURS = Tester("sluice", "sluice load", _sluice, "make build")
TESTERS = (
    OURS,
    Tester("curl", "curl --parallel --limit-rate", _curl, "curl"),
    Tester("locust", "Locust", _locust, "PyPI: locust", environment=_locust_environment, started_per_second=50),
    Tester("ffmpeg", "ffmpeg -re, one process each", _ffmpeg, "ffmpeg", started_per_second=8 * (os.cpu_count() or 1)),
    Tester("h2load", "h2load --data", _h2load, "nghttp2-client", paces=False),
    Tester("wrk", "wrk with a body", _wrk, "wrk", paces=False),
    Tester("hey", "hey -q 1 -D", _hey, "hey", paces=False),
)
