"""Reads the head and the body of one HTTP/1.1 request as the bytes arrive (RFC 9112 sections 3, 6 and 7).

A measuring server must process each byte of a body as soon as it arrives. If it waited for the last byte of a chunk,
the wait would count as a delay of the contender. So only the head and the size line of a chunk are collected.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

MAXIMUM_HEAD = 64 * 1024


class ProtocolError(Exception):
    """The bytes are not an HTTP/1.1 request that this server can parse."""


@dataclass
class Head:
    """A request's first line and its fields, whose names are in lower case."""

    method: str
    target: str
    fields: dict[str, str] = field(default_factory=dict)

    @property
    def is_source(self) -> bool:
        """Whether the method is Icecast's SOURCE. It is answered before the body, which ends with the connection."""
        return self.method == "SOURCE"

    @staticmethod
    def parse(raw: bytes) -> Head:
        """`raw` is everything before the empty line."""
        # A single line feed also ends a line (RFC 9112, section 2.2), as in darkice's heads.
        lines = [line.rstrip("\r") for line in raw.decode("latin-1").split("\n")]
        parts = lines[0].split(" ")
        if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
            raise ProtocolError(f"invalid request line: {lines[0][:80]!r}")
        fields: dict[str, str] = {}
        for line in lines[1:]:
            name, colon, value = line.partition(":")
            if not colon:
                raise ProtocolError(f"invalid field: {line[:80]!r}")
            fields[name.strip().lower()] = value.strip()
        return Head(parts[0], parts[1], fields)


class BodyDecoder:
    """Extracts the bytes of a body from received bytes. `finished` is true when the body has ended."""

    def __init__(self, head: Head) -> None:
        self.finished = False
        self._chunked = "chunked" in head.fields.get("transfer-encoding", "").lower()
        self._remaining = 0 if self._chunked else int(head.fields.get("content-length", "0"))
        if head.is_source:
            self._remaining = sys.maxsize
        self._line = b""
        # The position in a chunked body: in a size line, in data, in the CRLF after data, or in the trailer section.
        self._place = "size"
        if not self._chunked and self._remaining == 0:
            self.finished = True

    def feed(self, data: memoryview) -> tuple[list[memoryview], int]:
        """Returns the pieces of the body in `data`, and the number of bytes of `data` that belong to this request."""
        if not self._chunked:
            taken = min(self._remaining, len(data))
            self._remaining -= taken
            self.finished = self._remaining == 0
            return ([data[:taken]] if taken else []), taken
        pieces: list[memoryview] = []
        at = 0
        while at < len(data) and not self.finished:
            if self._place == "data":
                taken = min(self._remaining, len(data) - at)
                pieces.append(data[at : at + taken])
                at += taken
                self._remaining -= taken
                if self._remaining == 0:
                    self._place = "end of chunk"
            else:
                at = self._take_line(data, at)
        return pieces, at

    def _take_line(self, data: memoryview, at: int) -> int:
        """Reads up to the next LF, and processes the line if it is complete. Returns the position after it."""
        rest = bytes(data[at : at + 1024])
        newline = rest.find(b"\n")
        if newline < 0:
            self._line += rest
            if len(self._line) > MAXIMUM_HEAD:
                raise ProtocolError("the size line of a chunk is too long")
            return at + len(rest)
        line, self._line = (self._line + rest[: newline + 1]).strip(), b""
        if self._place == "end of chunk":
            if line:
                raise ProtocolError(f"invalid line after a chunk: {line[:20]!r}")
            self._place = "size"
        elif self._place == "size":
            try:
                self._remaining = int(line.split(b";")[0], 16)
            except ValueError:
                raise ProtocolError(f"invalid chunk size: {line[:20]!r}") from None
            self._place = "data" if self._remaining else "trailer"
        elif not line:
            self.finished = True
        return at + newline + 1
