"""Feeds streams with bytes that show their own position, at a constant rate or as fast as possible."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.common.harness import BenchmarkError


@dataclass(frozen=True)
class Pattern:
    """An endless stream of pieces, each of which begins with its number."""

    piece: int  # bytes
    filler: bytes = field(repr=False)

    @staticmethod
    def make(piece: int) -> Pattern:
        return Pattern(piece, os.urandom(piece - 8))

    def write(self, path: Path, size: int) -> None:
        """Writes the first `size` bytes of the stream into a file."""
        with open(path, "wb") as file:
            for number in range(-(-size // self.piece)):
                file.write(number.to_bytes(8, "little"))
                file.write(self.filler)
            file.truncate(size)

    def check(self, path: Path, size: int) -> None:
        """Raises BenchmarkError unless the file contains exactly the first `size` bytes of the stream."""
        stored = path.stat().st_size
        if stored != size:
            raise BenchmarkError(f"{size} bytes were streamed, but {path.name} has {stored}")
        with open(path, "rb") as file:
            for number in range(-(-size // self.piece)):
                wanted = min(self.piece, size - number * self.piece)
                if file.read(wanted) != (number.to_bytes(8, "little") + self.filler)[:wanted]:
                    raise BenchmarkError(f"{path.name} differs from the stream from byte {number * self.piece} on")

    def offset(self, part: bytes) -> int | None:
        """The offset of `part` in the stream, or None if `part` contains no complete piece."""
        # 64 random bytes occur only once in a piece.
        found = part.find(self.filler[:64], 8)
        return int.from_bytes(part[found - 8 : found], "little") * self.piece - (found - 8) if found >= 0 else None


#: 32 kB/s, the rate of a microphone with 16,000 frames of 16 bits per second. A piece lasts 20 ms.
PACED_RATE = 32_000
PACED_PIECE = 640
FAST_PIECE = 256 << 10


class Feeder:
    """Writes the stream into a pipe on a separate thread until it is stopped."""

    def __init__(self, pattern: Pattern, is_paced: bool) -> None:
        self.pattern = pattern
        #: The number of bytes written into the pipe.
        self.written = 0
        #: The number of bytes lost because the pipe was full, as a microphone would lose them.
        self.lost = 0
        self.reader, self._writer = os.pipe()
        self._is_paced = is_paced
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Call this after the start of the reader. It closes this process's copy of the reading end."""
        os.close(self.reader)
        if self._is_paced:
            os.set_blocking(self._writer, False)
        self._thread.start()

    def finish(self) -> None:
        """Ends the input. If the reader does not read, end it before this call."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            if self._is_paced:
                self._feed_paced()
            else:
                self._feed_fast()
        except BrokenPipeError:
            pass  # the reader has ended, and the code that started it reports why
        finally:
            os.close(self._writer)

    def _feed_paced(self) -> None:
        start, number = time.monotonic(), 0
        while not self._stop.wait(max(0.0, start + number * PACED_PIECE / PACED_RATE - time.monotonic())):
            try:
                # A write of at most PIPE_BUF bytes is either complete or fails (pipe(7)).
                self.written += os.write(self._writer, number.to_bytes(8, "little") + self.pattern.filler)
            except BlockingIOError:
                self.lost += PACED_PIECE
            number += 1

    def _feed_fast(self) -> None:
        number = 0
        filler = memoryview(self.pattern.filler)
        while not self._stop.is_set():
            rest: list[bytes | memoryview] = [number.to_bytes(8, "little"), filler]
            while rest:
                count = os.writev(self._writer, rest)
                self.written += count
                while rest and count >= len(rest[0]):
                    count -= len(rest.pop(0))
                if rest:
                    rest[0] = memoryview(rest[0])[count:]
            number += 1
