"""Tests darkice, the live streamer for Icecast servers, during an outage of its server. It reconnects by itself.

It captures the test microphone and sends MP3 at a constant 256 kbit/s, which is 32 kB/s like the other streams. So the
clock shows how many bytes the server lacks, to a few frames of MP3 (24 ms each). Its protocol is Icecast's SOURCE,
which the receiver supports.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common.harness import BenchmarkError, Process
from benchmarks.common.instruments import Receiver
from benchmarks.common.recording import Request, read_requests
from benchmarks.live.beds import TestMicrophoneBed
from benchmarks.recovery.interrupted_rivals import BEFORE, PATIENCE, Return

TITLE = "darkice, 32 kB/s"
BYTES_PER_SECOND = 32_000
#: The time after the restart, because darkice sends in bursts of a quarter of a second.
AFTER = 3.0

CONFIGURATION = """\
[general]
duration = 0
bufferSecs = 1
reconnect = yes
realtime = no
[input]
device = mic
sampleRate = 48000
bitsPerSample = 16
channel = 2
[icecast2-0]
bitrateMode = cbr
format = mp3
bitrate = 256
server = 127.0.0.1
port = {port}
password = none
mountPoint = stream
"""


def interrupted(bed: TestMicrophoneBed, down: float, directory: Path) -> Return:
    """Streams, kills the server, and restarts it `down` seconds later."""
    store = directory / "store"
    store.mkdir(parents=True)
    bed.prepare_run(directory, period_ms=20)
    receiver = Receiver(store)
    receiver.start()
    configuration = directory / "darkice.cfg"
    configuration.write_text(CONFIGURATION.format(port=receiver.port))
    with open(directory / "messages", "wb") as messages:
        said = messages.fileno()
        streamer = Process(["darkice", "-c", str(configuration)], bed.environment, stdout=said, stderr=said)
    try:
        receiver.wait_for("first byte", 20)
        time.sleep(BEFORE)  # time passes; this waits for no event
        receiver.kill()
        time.sleep(down)
        returned = receiver.start()
        receiver.wait_for("first byte", PATIENCE)
        time.sleep(AFTER)
    except BenchmarkError as error:
        raise BenchmarkError(f"{TITLE}: {error}; it said: {(directory / 'messages').read_text()[-300:]}") from None
    finally:
        streamer.end(signal.SIGKILL)
        receiver.stop()
    requests = [request for request in read_requests(store) if request.arrivals]
    first_ms = (requests[-1].arrivals[0].ns - returned) / 1e6
    return Return(first_ms, first_ms, 0, missing(requests))


def missing(requests: Sequence[Request]) -> int:
    """The missing bytes of a stream of constant rate, by the times of its first and last arrival."""
    arrivals = [arrival.ns for request in requests for arrival in request.arrivals]
    seconds = (max(arrivals) - min(arrivals)) / 1e9
    # The first arrival's bytes were captured before the clock began.
    received = sum(request.arrivals[-1].received for request in requests) - requests[0].arrivals[0].received
    return max(0, round(seconds * BYTES_PER_SECOND) - received)
