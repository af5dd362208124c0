#!/usr/bin/env python3
"""The neutral server of the benchmarks. It stores request bodies and the time of each arrival, and fails by order.

With it, no contender is measured only with its own maker's server. request_store.py describes the stored files.

It prints events as JSON lines to standard output, and reads orders from standard input, one per line:

    stall SECONDS     reads from no connection for this time, and then continues
    reset             closes every connection with a TCP reset (SO_LINGER of 0 s)
    refuse SECONDS    answers 503 for this time, also to running requests. It reads and discards the rest of their
                      bodies until the connection ends, as nginx does when its upstream server is gone.
    quit              ends

It also ends at the end of standard input, so that it does not run longer than the process that started it.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import socket
import struct
import sys
import time
from pathlib import Path

from benchmarks.common.http_body import MAXIMUM_HEAD, BodyDecoder, Head, ProtocolError
from benchmarks.common.request_store import Store, missing_bytes

# The size of a socket buffer on a real path. Those of loopback store seconds of audio, which would hide a stall.
RECEIVE_BUFFER = 64 * 1024
# The size on Ethernet. On loopback, a few segments of 64 KiB would fill a bounded buffer.
SEGMENT_SIZE = 1448


def say(event: str, **details: object) -> None:
    """One event, as a line of JSON for the process that started this server."""
    print(json.dumps({"event": event, "ns": time.monotonic_ns(), **details}), flush=True)


class Connection:
    """One TCP connection with successive requests."""

    def __init__(self, server: Server, sock: socket.socket) -> None:
        self.server = server
        self.socket = sock
        self.head = bytearray()
        self.decoder: BodyDecoder | None = None
        self.store: Store | None = None
        self.number = 0
        self.stream = ""
        self.discarding = False

    def receive(self) -> None:
        """Reads once. Called when the socket is readable."""
        try:
            count = self.socket.recv_into(self.server.buffer)
        except (ConnectionError, TimeoutError) as error:
            return self.close(type(error).__name__)
        stamp = time.monotonic_ns()
        if count == 0:
            return self.close("end of stream")
        if not self.discarding:
            try:
                self._take(memoryview(self.server.buffer)[:count], stamp)
            except ProtocolError as error:
                say("protocol error", request=self.number, reason=str(error))
                self.answer("400 Bad Request", close=True)

    def _take(self, data: memoryview, stamp: int) -> None:
        while len(data) and not self.discarding:
            if self.decoder is None:
                data = self._take_head(data, stamp)
                continue
            pieces, used = self.decoder.feed(data)
            if pieces and self.store:
                first = self.store.received == 0
                self.store.append(pieces, stamp)
                if first:
                    say("first byte", request=self.number)
            data = data[used:]
            self._finish_if_complete()

    def _take_head(self, data: memoryview, stamp: int) -> memoryview:
        seen = len(self.head)
        self.head += data
        end = self.head.find(b"\r\n\r\n", max(0, seen - 3))
        if end < 0:
            if len(self.head) > MAXIMUM_HEAD:
                raise ProtocolError("the head is too long")
            return data[:0]
        head = Head.parse(bytes(self.head[:end]))
        self.head.clear()
        self.number = self.server.next_number()
        self.stream = head.fields.get("stream-id", "")
        self.decoder = BodyDecoder(head)
        say("request", request=self.number, method=head.method, target=head.target, fields=head.fields)
        if self.server.refusing:
            self.refuse()
            return data[:0]
        self.store = Store(self.server.directory, self.number, head, stamp)
        if head.is_source:
            self._send(b"HTTP/1.0 200 OK\r\n\r\n")
        if head.fields.get("expect", "").lower() == "100-continue":
            self._send(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._finish_if_complete()
        return data[end + 4 - seen :]

    def _finish_if_complete(self) -> None:
        if self.decoder and self.decoder.finished:
            stream = self.stream
            self._end_request("complete")
            fields = f"Stream-Missing: {missing_bytes(self.server.directory, stream)}\r\n" if stream else ""
            self.answer("200 OK", close=False, fields=fields)

    def refuse(self) -> None:
        """Sends a final response in the middle of a body. Closes an idle connection."""
        if self.decoder is None:
            return self.close("idle while refusing")
        self._end_request("refused")
        self.answer("503 Service Unavailable", close=True, fields="Retry-After: 1\r\n")

    def answer(self, status: str, close: bool, fields: str = "") -> None:
        connection = "close" if close else "keep-alive"
        self._send(f"HTTP/1.1 {status}\r\n{fields}Content-Length: 0\r\nConnection: {connection}\r\n\r\n".encode())
        if close:
            # Close in stages (RFC 9112, section 9.6). After an immediate close, a reset could destroy the answer.
            self.discarding = True
            try:
                self.socket.shutdown(socket.SHUT_WR)
            except OSError:
                self.close("gone before the answer")

    def _send(self, data: bytes) -> None:
        try:
            self.socket.send(data)
        except OSError:
            pass  # the next recv reports the cause and closes

    def _end_request(self, how: str) -> None:
        if self.decoder is None:
            return
        received = self.store.received if self.store else 0
        say("request ended", request=self.number, how=how, received=received)
        if self.store:
            self.store.close()
        self.store = None
        self.decoder = None

    def close(self, how: str) -> None:
        self._end_request(how)
        self.server.forget(self)
        self.socket.close()

    def reset(self) -> None:
        """Ends the connection by RST instead of FIN."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close("reset by order")


class Server:
    """The listener, the connections and the orders, on one thread."""

    def __init__(self, directory: Path, port: int, bounded: bool) -> None:
        self.directory = directory
        self.buffer = bytearray(256 * 1024)
        self.refusing = False
        self._numbers = len(list(directory.glob("*.json")))
        self._connections: set[Connection] = set()
        self._stalled = False
        self._deadlines: list[tuple[float, str]] = []
        self._orders = b""
        self._running = True
        self._selector = selectors.EpollSelector()
        self._listener = self._listen(port, bounded)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(sys.stdin.fileno(), selectors.EVENT_READ, self._take_orders)

    @staticmethod
    def _listen(port: int, bounded: bool) -> socket.socket:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if bounded:
            # Set these before listen, because the handshake negotiates the window scale and the segment size.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT_SIZE)
        listener.bind(("127.0.0.1", port))
        listener.listen(64)
        return listener

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers - 1

    def forget(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if not self._stalled:
            self._selector.unregister(connection.socket)

    def run(self) -> None:
        say("listening", port=self._listener.getsockname()[1])
        while self._running:
            timeout = None
            if self._deadlines:
                timeout = max(0.0, min(self._deadlines)[0] - time.monotonic())
            for key, _ in self._selector.select(timeout):
                # An order in this round may have closed or stalled a connection that was ready.
                if key.fileobj in self._selector.get_map():
                    key.data()
            self._keep_deadlines()

    def _accept(self) -> None:
        sock, _ = self._listener.accept()
        connection = Connection(self, sock)
        self._connections.add(connection)
        if not self._stalled:
            self._selector.register(sock, selectors.EVENT_READ, connection.receive)

    def _take_orders(self) -> None:
        data = os.read(sys.stdin.fileno(), 4096)
        if not data:
            self._running = False
        *lines, self._orders = (self._orders + data).split(b"\n")
        for line in lines:
            self._obey(line.decode().split())

    def _obey(self, words: list[str]) -> None:
        match words:
            case ["stall", seconds]:
                self._stalled = True
                for connection in self._connections:
                    self._selector.unregister(connection.socket)
                self._deadlines.append((time.monotonic() + float(seconds), "go on"))
            case ["reset"]:
                for connection in list(self._connections):
                    connection.reset()
            case ["refuse", seconds]:
                self.refusing = True
                for connection in list(self._connections):
                    connection.refuse()
                self._deadlines.append((time.monotonic() + float(seconds), "accept"))
            case ["quit"]:
                self._running = False
            case _:
                return say("unknown order", words=words)
        say("order", words=words)

    def _keep_deadlines(self) -> None:
        now = time.monotonic()
        for due in [due for due in self._deadlines if due[0] <= now]:
            self._deadlines.remove(due)
            if due[1] == "go on":
                self._stalled = False
                for connection in self._connections:
                    self._selector.register(connection.socket, selectors.EVENT_READ, connection.receive)
            else:
                self.refusing = False
                # A client that has not read the 503 still sends. nginx closes such a connection, too.
                for connection in [each for each in self._connections if each.discarding]:
                    connection.close("refused long enough")
            say("order over", what=due[1])


def main() -> None:
    parser = argparse.ArgumentParser(description="Store request bodies with the time of each arrival.")
    parser.add_argument("--directory", type=Path, required=True, help="directory for the requests, which must exist")
    parser.add_argument("--port", type=int, default=0, help="TCP port on 127.0.0.1 (default: a free one)")
    parser.add_argument("--bounded", action="store_true", help="limit the socket buffers to the sizes of a real path")
    arguments = parser.parse_args()
    Server(arguments.directory, arguments.port, arguments.bounded).run()


if __name__ == "__main__":
    main()
