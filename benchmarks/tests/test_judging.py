#!/usr/bin/env python3
"""Tests the judges of load testers and servers: `python3 -m benchmarks.tests.test_judging`.

Requires .build/rate-receiver and .build/libcurl-load (`make bench-test`).
"""

from __future__ import annotations

import json
import random
import socket
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

from benchmarks.common.file_servers import sluice_serve, uvicorn
from benchmarks.common.http_body import BodyDecoder, Head
from benchmarks.common.recording import Arrival, Request
from benchmarks.load.rate_receiver import RateReceiver
from benchmarks.recovery import darkice
from benchmarks.serve.held import LIBCURL_LOAD

SEED = random.randrange(1 << 32)
CHUNKED = b"PUT /x HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n"


def connected(receiver: RateReceiver) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", receiver.port), timeout=10)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def await_streams(receiver: RateReceiver, count: int) -> None:
    """Waits until it receives this many requests. A window is open then."""
    deadline = time.monotonic() + 10
    while receiver.open() != count:
        if time.monotonic() > deadline:
            raise AssertionError(f"there were never {count} streams at once")


class TheRateReceiver(unittest.TestCase):
    def test_it_counts_the_bytes_of_a_chunked_body_however_it_is_cut(self) -> None:
        choose = random.Random(SEED)
        with RateReceiver() as receiver, connected(receiver) as sender:
            sender.sendall(CHUNKED)
            await_streams(receiver, 1)
            total, wire = 0, b""
            for _ in range(200):
                size = choose.randrange(1, 3000)
                total += size
                wire += f"{size:x}\r\n".encode() + b"x" * size + b"\r\n"
            while wire:
                cut = choose.randrange(1, 5000)
                sender.sendall(wire[:cut])
                wire = wire[cut:]
            sender.sendall(b"0\r\n\r\n")
            self.assertIn(b"200 OK", sender.recv(4096))
            window = receiver.close(1)
            self.assertEqual(window.bytes, total, f"seed {SEED}")

    def test_what_ended_within_the_window_was_no_stream(self) -> None:
        with RateReceiver() as receiver, connected(receiver) as lasting, connected(receiver) as ending:
            for sender in (lasting, ending):
                sender.sendall(CHUNKED + b"1\r\nx\r\n")
            await_streams(receiver, 2)
            ending.sendall(b"0\r\n\r\n")
            self.assertIn(b"200 OK", ending.recv(4096))
            self.assertEqual(receiver.close(1).streams, 1)

    def test_requests_that_begin_within_the_window_are_counted_and_held_by_nobody(self) -> None:
        with RateReceiver() as receiver, connected(receiver) as sender:
            receiver.open()
            for _ in range(7):
                sender.sendall(b"PUT /x HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello")
                self.assertIn(b"200 OK", sender.recv(4096))
            window = receiver.close(5)
            self.assertEqual((window.requests, window.streams, window.held), (7, 0, 0))

    def test_half_of_the_rate_and_twice_the_rate_are_not_the_rate(self) -> None:
        with RateReceiver() as receiver, connected(receiver) as sender:
            sender.sendall(CHUNKED)
            await_streams(receiver, 1)
            for _ in range(20):
                sender.sendall(b"64\r\n" + b"x" * 100 + b"\r\n")
                time.sleep(0.05)  # creates bursts; their actual times are measured
            window = receiver.close(1e9)
            self.assertEqual((window.streams, window.held), (1, 0))
            for factor, held in ((2, 0), (1, 1), (0.5, 0)):
                await_streams(receiver, 1)
                for _ in range(20):
                    sender.sendall(b"64\r\n" + b"x" * 100 + b"\r\n")
                    time.sleep(0.05)
                found = receiver.close(window.rate_median * factor)
                if factor == 1:
                    # A busy machine may not send at the same rate twice. Then the stream is correctly not held.
                    held = int(abs(found.rate_median / window.rate_median - 1) <= 0.1)
                self.assertEqual(found.held, held, f"{found} judged by {factor} × {window.rate_median}")


class LibcurlAlone(unittest.TestCase):
    """All of its messages arrive at the server, with each kind of request."""

    def run_against(self, serve, *options: str) -> None:  # type: ignore[no-untyped-def]
        with tempfile.TemporaryDirectory() as directory, serve(Path(directory) / "server") as server:
            command = [str(LIBCURL_LOAD), server.url, "--streams", "7", "--bytes", "500", "--every", "100"]
            done = subprocess.run([*command, "--duration", "1", *options], capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 0, done.stderr)
            said = json.loads(done.stdout)
            self.assertEqual(said["messages"]["sent"], 70)
            stored = [path for path in server.directory.glob("file*") if path.suffix != ".sidecar"]
            sizes = [path.stat().st_size for path in stored]
            self.assertEqual((len(sizes), sum(sizes) % 500), (7, 0))
            self.assertGreaterEqual(sum(sizes), 70 * 500)

    def test_resumable(self) -> None:
        self.run_against(sluice_serve)

    def test_plain(self) -> None:
        self.run_against(sluice_serve, "--plain")

    def test_plain_to_somebody_else(self) -> None:
        self.run_against(uvicorn, "--plain")


class Darkice(unittest.TestCase):
    def test_its_protocol_is_understood(self) -> None:
        head = Head.parse(b"SOURCE /stream HTTP/1.0\nContent-type: audio/mpeg\nice-public: 0\r")
        self.assertEqual((head.is_source, head.fields["ice-public"]), (True, "0"))
        decoder = BodyDecoder(head)
        self.assertEqual(decoder.feed(memoryview(b"0\r\n\r\n"))[1], 5)
        self.assertFalse(decoder.finished)

    def test_what_is_missing_is_told_by_the_clock(self) -> None:
        second = 1_000_000_000
        rate = darkice.BYTES_PER_SECOND

        def part(*arrivals: tuple[float, float]) -> Request:
            times = [Arrival(round(seconds * rate), round(at * second)) for seconds, at in arrivals]
            return Request(0, "SOURCE", "/", {}, b"", times)

        # Two seconds of stream, one second without a server whose audio was buffered, and two more seconds.
        whole = [part((0.5, 10.0), (2.5, 12.0)), part((1.0, 13.0), (3.0, 15.0))]
        self.assertEqual(darkice.missing(whole), 0)
        holed = [part((0.5, 10.0), (2.5, 12.0)), part((0.25, 13.0), (2.25, 15.0))]
        self.assertEqual(darkice.missing(holed), round(0.75 * rate))


if __name__ == "__main__":
    unittest.main()
