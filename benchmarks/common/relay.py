#!/usr/bin/env python3
"""A relay between a client and a server on this machine: it delays bytes, resets connections, and records requests.

It delivers each byte half a round trip after it has read it. The first bytes of a connection arrive another round trip
later, because a handshake on a long path takes that time. Slow start and loss are not modelled. With --record, it
stores each request's body with the arrival times before any delay, in the format of receiver.py. So delays can be
measured at a server that does not record times.

It prints events as JSON lines to standard output, and reads orders from standard input, one per line:

    reset             ends every connection at both ends with a TCP reset. Bytes in transit are lost.
    quit              ends

It also ends at the end of standard input, so that it does not run longer than the process that started it.
"""

from __future__ import annotations

import argparse
import os
import select
import socket
import struct
import sys
import time
from collections import deque
from pathlib import Path

from benchmarks.common.http_body import BodyDecoder, Head
from benchmarks.common.receiver import say
from benchmarks.common.request_store import Store

# The maximum number of bytes in transit in one direction, which is Linux's default limit of a TCP window.
WINDOW = 6 << 20
PIECE = 256 << 10


class Recorder:
    """Records the requests of one connection."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._head = bytearray()
        self._decoder: BodyDecoder | None = None
        self._store: Store | None = None

    def take(self, data: memoryview, stamp: int) -> None:
        while len(data):
            if self._decoder is None:
                seen = len(self._head)
                self._head += data
                end = self._head.find(b"\r\n\r\n", max(0, seen - 3))
                if end < 0:
                    return
                data = data[end + 4 - seen :]
                head = Head.parse(bytes(self._head[:end]))
                self._head.clear()
                self._decoder = BodyDecoder(head)
                self._store = Store(self._directory, len(list(self._directory.glob("*.json"))), head, stamp)
                say("request", method=head.method, target=head.target, fields=head.fields)
            pieces, used = self._decoder.feed(data)
            data = data[used:]
            if pieces and self._store:
                first = self._store.received == 0
                self._store.append(pieces, stamp)
                if first:
                    say("first byte")
            if self._decoder.finished:
                self.close()

    def close(self) -> None:
        if self._store:
            self._store.close()
        self._decoder = self._store = None


class Direction:
    """Bytes from one socket to the other, with the times at which they are due."""

    def __init__(self, source: socket.socket, sink: socket.socket, opened: float, recorder: Recorder | None) -> None:
        self.source = source
        self.sink = sink
        self.has_ended = False
        self._opened = opened  # the source sends nothing before this time
        self._recorder = recorder
        self._queue: deque[tuple[float, memoryview | None]] = deque()  # None: the end
        self._queued = 0
        self._is_blocked = False

    def reads(self) -> bool:
        return not self.has_ended and self._queued < WINDOW

    def due(self) -> float | None:
        """The time of the next action that requires no event, or None if an event must happen first."""
        return self._queue[0][0] if self._queue and not self._is_blocked else None

    def waits_for_sink(self) -> bool:
        return self._is_blocked

    def receive(self, one_way: float) -> None:
        """Reads once. Raises OSError if the connection has failed."""
        data = self.source.recv(PIECE)
        now = time.monotonic()
        if data and self._recorder:
            self._recorder.take(memoryview(data), time.monotonic_ns())
        self.has_ended = not data
        self._queue.append((max(now, self._opened) + one_way, memoryview(data) if data else None))
        self._queued += len(data)

    def deliver(self, sink_is_ready: bool) -> None:
        """Sends the bytes that are due, until the sink accepts no more. Raises OSError if the connection has failed."""
        if self._is_blocked and not sink_is_ready:
            return
        self._is_blocked = False
        while self._queue and self._queue[0][0] <= time.monotonic():
            due, data = self._queue[0]
            if data is None:
                self.sink.shutdown(socket.SHUT_WR)
                self._queue.popleft()
                continue
            try:
                sent = self.sink.send(data)
            except BlockingIOError:
                self._is_blocked = True
                return
            self._queued -= sent
            if sent == len(data):
                self._queue.popleft()
            else:
                self._queue[0] = (due, data[sent:])

    def is_over(self) -> bool:
        return self.has_ended and not self._queue

    def close_record(self) -> None:
        if self._recorder:
            self._recorder.close()


class Pair:
    """A client's connection, and the corresponding connection to the server."""

    def __init__(self, client: socket.socket, server: socket.socket, round_trip: float, record: Path | None) -> None:
        self.sockets = (client, server)
        for each in self.sockets:
            each.setblocking(False)
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        opened = time.monotonic() + round_trip
        recorder = Recorder(record) if record else None
        self.directions = (
            Direction(client, server, opened, recorder),
            Direction(server, client, opened, None),
        )

    def close(self, resetting: bool) -> None:
        for each in self.sockets:
            if resetting:
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            each.close()
        self.directions[0].close_record()


class Server:
    """The listener, the pairs and the orders, on one thread."""

    def __init__(self, port: int, upstream: int, round_trip: float, record: Path | None) -> None:
        self._upstream = upstream
        self._round_trip = round_trip
        self._record = record
        self._pairs: list[Pair] = []
        self._orders = b""
        self._running = True
        self._listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind(("127.0.0.1", port))
        self._listener.listen(64)

    def run(self) -> None:
        say("listening", port=self._listener.getsockname()[1])
        while self._running:
            self._turn()

    def _turn(self) -> None:
        readers: list[int] = [self._listener.fileno(), sys.stdin.fileno()]
        writers: list[int] = []
        dues: list[float] = []
        for pair in self._pairs:
            for each in pair.directions:
                if each.reads():
                    readers.append(each.source.fileno())
                if each.waits_for_sink():
                    writers.append(each.sink.fileno())
                elif (due := each.due()) is not None:
                    dues.append(due)
        # Use select(2) instead of epoll, because its timeout is not rounded to milliseconds.
        timeout = max(0.0, min(dues) - time.monotonic()) if dues else None
        readable, writable, _ = (set(found) for found in select.select(readers, writers, [], timeout))
        if sys.stdin.fileno() in readable:
            self._take_orders()
        for pair in list(self._pairs):
            self._serve(pair, readable, writable)
        # Accept last, because a new socket may have the number of one that was closed in this turn.
        if self._listener.fileno() in readable:
            self._accept()

    def _serve(self, pair: Pair, readable: set[int], writable: set[int]) -> None:
        try:
            for each in pair.directions:
                if each.source.fileno() in readable and each.reads():
                    each.receive(self._round_trip / 2)
                each.deliver(each.sink.fileno() in writable)
        except OSError:
            return self._end(pair, resetting=True)
        if all(each.is_over() for each in pair.directions):
            self._end(pair, resetting=False)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        try:
            server = socket.create_connection(("127.0.0.1", self._upstream), timeout=5)
        except OSError as error:
            say("no server", reason=str(error))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
            return
        self._pairs.append(Pair(client, server, self._round_trip, self._record))

    def _end(self, pair: Pair, resetting: bool) -> None:
        self._pairs.remove(pair)
        pair.close(resetting)

    def _take_orders(self) -> None:
        data = os.read(sys.stdin.fileno(), 4096)
        if not data:
            self._running = False
        *lines, self._orders = (self._orders + data).split(b"\n")
        for line in lines:
            match line.decode().split():
                case ["reset"]:
                    count = len(self._pairs)
                    stamp = time.monotonic_ns()
                    for pair in list(self._pairs):
                        self._end(pair, resetting=True)
                    say("reset", connections=count, at_ns=stamp)
                case ["quit"]:
                    self._running = False
                case words:
                    say("unknown order", words=words)


def main() -> None:
    parser = argparse.ArgumentParser(description="Delay, record and reset connections to a server.")
    parser.add_argument("--port", type=int, default=0, help="TCP port on 127.0.0.1 (default: a free one)")
    parser.add_argument("--upstream", type=int, required=True, help="the server's TCP port on 127.0.0.1")
    parser.add_argument("--round-trip", type=float, default=0, help="of the path, in seconds (default: 0)")
    parser.add_argument("--record", type=Path, help="store requests in this directory, which must exist")
    arguments = parser.parse_args()
    Server(arguments.port, arguments.upstream, arguments.round_trip, arguments.record).run()


if __name__ == "__main__":
    main()
