"""Measures the time from sending a live stream's bytes until another program can read them from a file."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.file_servers import FileServer

PIECE, PERIOD = 1000, 0.1
#: The interval for polling the directory, in seconds.
LOOK = 0.0005


@dataclass
class VisibleFigures:
    """The measurements of one stream."""

    delays_ms: list[float]  # of each piece, from sending until it is in a file
    never: int  # pieces that were in no file before the stream ended


def _largest(directory: Path, others: set[Path]) -> int:
    """The largest size of the new files below the directory. They belong to the stream, whatever their names."""
    most = 0
    for path in directory.rglob("*"):
        try:
            if path not in others and path.is_file():
                most = max(most, path.stat().st_size)
        except FileNotFoundError:
            continue  # renamed between the two
    return most


def watch(server: FileServer, pieces: int) -> VisibleFigures:
    """Sends one chunked PUT of 10 kB/s in pieces of 1 kB, and searches all directories of the server for its file."""
    server.clear()
    place = server.directory.parent
    others = set(place.rglob("*"))
    due: list[tuple[int, float]] = []  # size that shows a piece, and when it was sent
    delays: list[float] = []
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head = "PUT /file HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.sendall(head.encode())
        chunk = f"{PIECE:x}\r\n".encode() + b"x" * PIECE + b"\r\n"
        start = time.monotonic()
        sent = 0
        # The last half second is for bytes in transit.
        while (passed := time.monotonic() - start) < pieces * PERIOD + 0.5:
            if sent < pieces and passed >= sent * PERIOD:
                connection.sendall(chunk)
                sent += 1
                due.append((sent * PIECE, time.monotonic()))
            size = _largest(place, others) if due else 0
            now = time.monotonic()
            while due and size >= due[0][0]:
                delays.append((now - due.pop(0)[1]) * 1000)
            time.sleep(LOOK)
        connection.sendall(b"0\r\n\r\n")
        connection.recv(4096)
    return VisibleFigures(delays, len(due))
