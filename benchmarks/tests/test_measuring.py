#!/usr/bin/env python3
"""Tests the measurements of the benchmarks: `python3 -m benchmarks.tests.test_measuring`."""

from __future__ import annotations

import http.client
import os
import random
import time
import unittest

from benchmarks.common.feeder import PACED_PIECE, Feeder, Pattern
from benchmarks.common.harness import BenchmarkError, scratch_directory
from benchmarks.common.http_body import BodyDecoder, Head, ProtocolError
from benchmarks.common.instruments import Receiver, Relay
from benchmarks.common.recording import Arrival, Request, delays, joined, percentile, read_requests
from benchmarks.live import testmic_signal
from benchmarks.live.contenders import ARECORD, FFMPEG
from benchmarks.live.losses import merged, placed, what_was_told

SEED = random.randrange(1 << 32)


def request(body: bytes = b"", arrivals: list[Arrival] | None = None, offset: int | None = None) -> Request:
    fields = {} if offset is None else {"stream-offset": str(offset)}
    return Request(0, "POST", "/stream", fields, body, arrivals or [])


class Bodies(unittest.TestCase):
    wire = b"5\r\nhello\r\n1;name=value\r\n \r\n5\r\nworld\r\n0\r\nTrailer: x\r\n\r\n"

    def test_a_chunked_body_is_the_same_however_it_is_split(self) -> None:
        head = Head("POST", "/", {"transfer-encoding": "chunked"})
        for first in range(len(self.wire)):
            for second in range(first, len(self.wire)):
                decoder, body = BodyDecoder(head), b""
                for part in (self.wire[:first], self.wire[first:second], self.wire[second:]):
                    pieces, used = decoder.feed(memoryview(part))
                    self.assertEqual(used, len(part))
                    body += b"".join(pieces)
                self.assertEqual((body, decoder.finished), (b"hello world", True))

    def test_bytes_after_the_body_are_left_for_the_next_request(self) -> None:
        sized, chunked = {"content-length": "3"}, {"transfer-encoding": "chunked"}
        for fields, wire in ((sized, b"abcPOST"), (chunked, b"0\r\n\r\nPOST")):
            decoder = BodyDecoder(Head("POST", "/", fields))
            _, used = decoder.feed(memoryview(wire))
            self.assertEqual((wire[used:], decoder.finished), (b"POST", True))

    def test_what_is_not_a_chunk_is_refused(self) -> None:
        for wire in (b"xyz\r\n", b"1\r\nab\r\n", b"\r\n"):
            with self.assertRaises(ProtocolError):
                BodyDecoder(Head("POST", "/", {"transfer-encoding": "chunked"})).feed(memoryview(wire))


class Delays(unittest.TestCase):
    def test_each_frame_is_as_late_as_the_recv_that_completed_it(self) -> None:
        # 1000 frames of 2 bytes per second. Ten arrive 12 ms after the first one is captured, and ten more at 30 ms.
        arrivals = [Arrival(20, 12_000_000), Arrival(41, 30_000_000)]
        found = delays(request(arrivals=arrivals), 2, 1000, 0.0)
        self.assertEqual([round(value * 1e3) for value in found], sorted([*range(12, 2, -1), *range(20, 10, -1)]))

    def test_percentiles_are_nearest_ranks(self) -> None:
        values = [float(value) for value in range(1, 101)]
        self.assertEqual([percentile(values, share) for share in (0.5, 0.99, 1.0)], [50, 99, 100])


class Losses(unittest.TestCase):
    def test_missing_frames_are_found_wherever_they_were_cut_out(self) -> None:
        choose = random.Random(SEED)
        for _ in range(20):
            start, gap = choose.randrange(100), choose.randrange(1, 5000)
            cut = choose.randrange(200, 5000)
            body = testmic_signal.samples(start, cut) + testmic_signal.samples(start + cut + gap, 3000)
            self.assertEqual(testmic_signal.read_runs(body).missing_frames, gap, f"seed {SEED}")

    def test_silence_between_runs_is_counted_whatever_its_length(self) -> None:
        for start in range(4):
            for silence in range(12, 20):
                body = testmic_signal.samples(start, 401) + bytes(2 * silence)
                body += testmic_signal.samples(start + 401 + silence, 401)
                found = testmic_signal.read_runs(body)
                self.assertEqual((found.missing_frames, found.silent_frames), (silence, silence))

    def test_a_body_goes_where_its_offset_says(self) -> None:
        requests = [request(b"abcdef"), request(b"efgh", offset=4), request(b"z", offset=10)]
        self.assertEqual(placed(requests), b"abcdefgh\0\0z")
        self.assertEqual(placed([request(b"ab"), request(b"cd")]), b"abcd")

    def test_overlapping_runs_count_once(self) -> None:
        self.assertEqual(merged([(5, 9), (0, 3), (3, 4), (8, 12)]), [(0, 4), (5, 12)])

    def test_an_amount_an_error_and_silence_are_told_apart(self) -> None:
        overrun = "overrun!!! (at least 2490.123 ms long)"
        self.assertEqual(what_was_told(overrun, overrun, ARECORD, False)[0], "amount")
        nothing, much = '{"event":"ended","lost":0,"gaps":0}', '{"event":"ended","lost":0,"source_lost_frames":9}'
        outage = '{"event":"outage","cause":"connection reset"}'
        self.assertEqual(what_was_told(nothing, nothing, ARECORD, False)[0], "nothing")
        self.assertEqual(what_was_told(outage, nothing, ARECORD, False)[0], "error")
        self.assertEqual(what_was_told(nothing, much, ARECORD, False)[0], "amount")
        self.assertEqual(what_was_told("Connection refused", "", FFMPEG, False)[0], "error")
        self.assertEqual(what_was_told("", "Exiting: error at the end", FFMPEG, False)[0], "nothing")


class Uploads(unittest.TestCase):
    @staticmethod
    def part(offset: int, body: bytes, arrivals: list[Arrival]) -> Request:
        return Request(0, "PATCH", "/upload", {"upload-offset": str(offset)}, body, arrivals)

    def test_the_parts_of_an_upload_are_one_stream(self) -> None:
        creation = request()
        parts = [self.part(0, b"abc", [Arrival(1, 10), Arrival(3, 20)]), self.part(3, b"de", [Arrival(2, 30)])]
        whole = joined([creation, *parts])
        self.assertEqual(whole.body, b"abcde")
        self.assertEqual(whole.arrivals, [Arrival(1, 10), Arrival(3, 20), Arrival(5, 30)])

    def test_parts_with_a_hole_between_them_are_no_stream(self) -> None:
        with self.assertRaises(ValueError):
            joined([self.part(0, b"abc", [Arrival(3, 20)]), self.part(4, b"e", [Arrival(1, 30)])])


class Loads(unittest.TestCase):
    def test_a_stream_is_checked_byte_by_byte(self) -> None:
        pattern, path = Pattern.make(100), self.enterContext(scratch_directory()) / "file"
        pattern.write(path, 950)
        pattern.check(path, 950)
        whole = path.read_bytes()
        for wrong in (whole[:-1], whole[:500] + whole[600:], whole[:321] + b"!" + whole[322:]):
            path.write_bytes(wrong)
            with self.assertRaises(BenchmarkError):
                pattern.check(path, 950)

    def test_a_part_tells_where_it_begins(self) -> None:
        pattern, path = Pattern.make(100), self.enterContext(scratch_directory()) / "file"
        pattern.write(path, 100_000)
        whole = path.read_bytes()
        for start in (0, 1, 99, 100, 54_321):
            self.assertEqual(pattern.offset(whole[start : start + 300]), start)

    def test_a_paced_feeder_keeps_its_pace_and_loses_what_nobody_reads(self) -> None:
        feeder = Feeder(Pattern.make(PACED_PIECE), is_paced=True)
        # `start` closes the feeder's copy of the reading end.
        reader = os.dup(feeder.reader)
        self.addCleanup(os.close, reader)
        feeder.start()
        # A pipe stores 64 KiB, which are two seconds.
        deadline = time.monotonic() + 10
        while feeder.lost == 0 and time.monotonic() < deadline:
            time.sleep(0.05)
        feeder.finish()
        self.assertGreater(feeder.lost, 0)
        self.assertLessEqual(feeder.written, 1 << 16)
        self.assertEqual(len(os.read(reader, 1 << 20)), feeder.written)


class TheRelay(unittest.TestCase):
    ROUND_TRIP = 0.1

    def setUp(self) -> None:
        self.receiver = Receiver(self.enterContext(scratch_directory()))
        self.receiver.start()
        self.addCleanup(self.receiver.stop)
        self.record = self.enterContext(scratch_directory())
        self.relay = Relay(self.receiver.port, self.ROUND_TRIP, self.record)
        self.relay.start()
        self.addCleanup(self.relay.stop)
        self.connection = http.client.HTTPConnection("127.0.0.1", self.relay.port, timeout=10)
        self.addCleanup(self.connection.close)

    def test_a_request_takes_a_round_trip_and_the_first_one_a_handshake_more(self) -> None:
        for round_trips in (2, 1, 1):
            began = time.monotonic()
            self.connection.request("PUT", "/stream", b"abc")
            self.assertEqual(self.connection.getresponse().read(), b"")
            took = (time.monotonic() - began) / self.ROUND_TRIP
            self.assertGreaterEqual(took, round_trips)
            self.assertLess(took, round_trips + 0.9)

    def test_a_reset_ends_both_connections(self) -> None:
        self.connection.putrequest("PUT", "/stream")
        self.connection.putheader("Content-Length", "10")
        self.connection.endheaders(b"abcd")
        self.receiver.wait_for("first byte", 10)
        self.relay.order("reset")
        self.assertEqual(self.relay.wait_for("reset", 10)["connections"], 1)
        with self.assertRaises(ConnectionResetError):
            self.connection.getresponse()
        self.assertEqual(self.receiver.wait_for("request ended", 10)["how"], "ConnectionResetError")

    def test_it_records_what_passes_as_the_receiver_does(self) -> None:
        for body in (b"abc", b"defgh"):
            self.connection.request("PATCH", "/stream", iter([body[:1], body[1:]]), encode_chunked=True)
            self.connection.getresponse().read()
        for store in (self.record, self.receiver.directory):
            self.assertEqual([each.body for each in read_requests(store)], [b"abc", b"defgh"])
        # The relay records the time before the delay.
        first, there = (read_requests(store)[0].arrivals[0].ns for store in (self.record, self.receiver.directory))
        self.assertGreaterEqual(there - first, self.ROUND_TRIP / 2 * 1e9)


class TheReceiver(unittest.TestCase):
    def setUp(self) -> None:
        directory = self.enterContext(scratch_directory())
        self.receiver = Receiver(directory)
        self.receiver.start()
        self.addCleanup(self.receiver.stop)

    def connect(self) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("127.0.0.1", self.receiver.port, timeout=10)
        self.addCleanup(connection.close)
        return connection

    def test_it_keeps_what_it_received_when_it_is_killed(self) -> None:
        connection = self.connect()
        connection.putrequest("POST", "/stream")
        connection.putheader("Transfer-Encoding", "chunked")
        connection.endheaders(b"4\r\nabcd")
        self.receiver.wait_for("first byte", 10)
        self.receiver.kill()
        self.assertEqual([each.body for each in read_requests(self.receiver.directory)], [b"abcd"])
        self.receiver.start()
        again = self.connect()
        again.request("PUT", "/stream", b"efgh")
        self.assertEqual(again.getresponse().status, 200)
        self.assertEqual([each.body for each in read_requests(self.receiver.directory)], [b"abcd", b"efgh"])

    def test_it_resets_by_order(self) -> None:
        connection = self.connect()
        connection.putrequest("POST", "/stream")
        connection.putheader("Content-Length", "10")
        connection.endheaders(b"abcd")
        self.receiver.wait_for("first byte", 10)
        self.receiver.order("reset")
        with self.assertRaises(ConnectionResetError):
            connection.getresponse()

    def test_it_refuses_the_running_request_and_new_ones_for_a_time(self) -> None:
        running = self.connect()
        running.putrequest("POST", "/stream")
        running.putheader("Content-Length", "10")
        running.endheaders(b"abcd")
        self.receiver.wait_for("first byte", 10)
        self.receiver.order("refuse 1")
        self.assertEqual(running.getresponse().status, 503)
        fresh = self.connect()
        fresh.request("POST", "/stream", b"x")
        self.assertEqual(fresh.getresponse().status, 503)
        self.receiver.wait_for("order over", 10)
        last = self.connect()
        last.request("POST", "/stream", b"y")
        self.assertEqual(last.getresponse().status, 200)

    def test_it_reads_nothing_while_it_stalls(self) -> None:
        connection = self.connect()
        connection.request("POST", "/stream", b"a")
        self.assertEqual(connection.getresponse().read(), b"")
        self.receiver.order("stall 1")
        began = int(str(self.receiver.wait_for("order", 10)["ns"]))
        connection.request("POST", "/stream", b"b")
        self.assertEqual(connection.getresponse().status, 200)
        arrivals = [each.arrivals[0].ns for each in read_requests(self.receiver.directory)]
        self.assertGreaterEqual(arrivals[1] - began, 990_000_000)


if __name__ == "__main__":
    unittest.main()
