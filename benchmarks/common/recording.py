"""Reads the requests that the receiver has stored, with the arrival times and the positions of their bytes."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass, replace
from pathlib import Path


@dataclass
class Arrival:
    """When a recv returned at `ns` (CLOCK_MONOTONIC), `received` bytes of the body had arrived."""

    received: int
    ns: int


@dataclass
class Request:
    """One stored request."""

    number: int
    method: str
    target: str
    fields: dict[str, str]
    body: bytes
    arrivals: list[Arrival]

    @property
    def stream_offset(self) -> int | None:
        """The offset of the body's first byte in the stream (`Stream-Offset`), if the client sends it."""
        return self._number("stream-offset")

    @property
    def upload_offset(self) -> int | None:
        """The offset of the body's first byte in a resumable upload (`Upload-Offset`), if it belongs to one."""
        return self._number("upload-offset")

    def _number(self, name: str) -> int | None:
        text = self.fields.get(name)
        return int(text) if text is not None and text.isdigit() else None


def read_requests(directory: Path) -> list[Request]:
    """All requests in the order in which their heads arrived."""
    requests = []
    for path in sorted(directory.glob("[0-9]*.json")):
        about = json.loads(path.read_text())
        times = path.with_suffix(".times").read_bytes()
        times = times[: len(times) // 16 * 16]
        requests.append(
            Request(
                number=int(path.stem),
                method=about["method"],
                target=about["target"],
                fields=about["fields"],
                body=path.with_suffix(".body").read_bytes(),
                arrivals=[Arrival(*pair) for pair in struct.iter_unpack("<QQ", times)],
            )
        )
    return requests


def joined(requests: list[Request]) -> Request:
    """The stream as one request: the longest one, or all parts of a resumable upload, which must be contiguous."""
    parts = [request for request in requests if request.upload_offset is not None]
    if not parts:
        return max(requests, key=lambda request: len(request.body))
    whole = replace(parts[0], body=b"", arrivals=[])
    bodies = []
    length = 0
    for part in parts:
        if part.upload_offset != length:
            raise ValueError(f"a part begins at {part.upload_offset}, but {length} bytes have arrived")
        whole.arrivals += [Arrival(length + arrival.received, arrival.ns) for arrival in part.arrivals]
        bodies.append(part.body)
        length += len(part.body)
    whole.body = b"".join(bodies)
    return whole


def percentile(ordered: list[float], share: float) -> float:
    """The value that `share` of an ascending list does not exceed (nearest rank)."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def delays(request: Request, frame_bytes: int, rate: int, first_frame_ns: float, skip_ns: float = 0) -> list[float]:
    """The seconds from capture to server in ascending order, with one value per millisecond of audio.

    Frame n of the body was captured at `first_frame_ns` + n / rate and arrived with the recv that completed it.
    Frames captured in the first `skip_ns` are omitted, because the delay of a steady stream excludes connecting.
    """
    step = max(1, rate // 1000)
    found: list[float] = []
    frame = -(-int(skip_ns * rate / 1e9) // step) * step
    for arrival in request.arrivals:
        complete = arrival.received // frame_bytes
        while frame < complete:
            found.append((arrival.ns - first_frame_ns - frame * 1e9 / rate) / 1e9)
            frame += step
    found.sort()
    return found
