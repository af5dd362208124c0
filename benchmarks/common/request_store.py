"""Stores the requests of the receiver and the relay for recording.py. These are the files of request N:

N.json    method, target, fields, and when the head arrived (CLOCK_MONOTONIC, ns)
N.body    the body, written with write(2) at each arrival, so that SIGKILL loses no received byte
N.times   pairs of little-endian u64: body bytes received so far, CLOCK_MONOTONIC in ns directly after recv(2)
"""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

from benchmarks.common.http_body import Head


class Store:
    """The files of one request."""

    def __init__(self, directory: Path, number: int, head: Head, arrived: int) -> None:
        stem = directory / f"{number:04d}"
        about = {"method": head.method, "target": head.target, "fields": head.fields, "arrived": arrived}
        stem.with_suffix(".json").write_text(json.dumps(about))
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._body = os.open(stem.with_suffix(".body"), flags)
        self._times = os.open(stem.with_suffix(".times"), flags)
        self.received = 0

    def append(self, pieces: list[memoryview], stamp: int) -> None:
        """Writes the body before the times, so that the file contains all bytes that are counted there."""
        self.received += os.writev(self._body, pieces)
        os.write(self._times, struct.pack("<QQ", self.received, stamp))

    def close(self) -> None:
        os.close(self._body)
        os.close(self._times)


def missing_bytes(directory: Path, stream: str) -> int:
    """The number of bytes before the stream's last stored byte that are missing, as `sluice serve` reports it."""
    pieces = []
    for about in directory.glob("*.json"):
        fields = json.loads(about.read_text())["fields"]
        if fields.get("stream-id") == stream:
            start = int(fields.get("stream-offset", "0"))
            pieces.append((start, start + about.with_suffix(".body").stat().st_size))
    end = missing = 0
    for start, stop in sorted(pieces):
        missing += max(0, start - end)
        end = max(end, stop)
    return missing
