#!/usr/bin/env python3
"""levels.py: prints the level of each microphone that is streamed to `sluice serve --store`, while it is recorded.

    pip install nats-py
    levels.py nats://HOST:4222 [STORE-STREAM]

Prints a line per second for each stream: the time in the stream, the peak in dBFS as a bar and a number, and the stream's
name. It only reads messages that are published after its start, so any number of such programs can run. See
docs/jetstream.md for the messages. It shows 16-bit PCM, the usual format of `sluice mic`, and names the streams that have
another format.
"""

import asyncio
import math
import signal
import struct
import sys
import zlib
from array import array
from dataclasses import dataclass, field

import nats
from nats.errors import Error as NatsError
from nats.js.api import ConsumerConfig, DeliverPolicy
from nats.js.errors import NotFoundError

KEPT_FORMATS = 10_000  # the number of streams whose format is known after their upload has ended
SILENCE = -96.0  # dBFS: below the lowest level of 16 bits


@dataclass
class Wave:
    """The values in the head of a WAV file."""

    channels: int
    rate: int  # frames per second
    is_pcm16: bool
    data: int  # where the samples begin in the recording, in bytes


@dataclass
class Stream:
    """An upload whose level is shown."""

    name: str
    wave: Wave
    expected: int | None = None  # the offset of the next message in the stream, in bytes
    half: bytes = b""  # the first byte of a sample whose second byte is in the next message
    peak: int = 0  # since the last line, of 32,768
    reached: int = 0  # the offset that the stream has reached, in bytes
    is_new: bool = field(default=True)  # since the last line


def read_head(bytes: bytes) -> Wave | None:
    """Reads the chunks before the samples of a WAV file; None if these bytes are not such a head."""
    if bytes[:4] not in (b"RIFF", b"RF64") or bytes[8:12] != b"WAVE":
        return None
    found, place = None, 12
    while place + 8 <= len(bytes):
        name, size = struct.unpack_from("<4sI", bytes, place)
        place += 8
        if name == b"data":
            return Wave(*found, place) if found and found[0] > 0 and found[1] > 0 else None
        if name == b"fmt " and place + 16 <= len(bytes):
            format, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", bytes, place)
            if format == 0xFFFE and size >= 40:  # extensible: the format is the beginning of a GUID
                (format,) = struct.unpack_from("<H", bytes, place + 24)
            found = (channels, rate, format == 1 and bits == 16)
        place += size + size % 2
    return None


class Levels:
    """Follows all streams of one JetStream stream."""

    def __init__(self, broker, name: str):
        self.broker, self.name = broker, name
        self.streams: dict[str, Stream | None] = {}  # by subject; None: not shown
        # The format of each stream, for the uploads that continue it: by owner, path and Stream-ID.
        self.waves: dict[tuple[str, str, str], Wave] = {}

    async def begin(self, subject: str) -> Stream | None:
        """Reads the first messages of an upload, which contain its name and the head of the WAV file."""
        sequence, head, name, key = 1, b"", subject, None
        while read_head(head) is None and len(head) < 4096:
            try:
                message = await self.broker.get_msg(self.name, seq=sequence, subject=subject, next=True)
            except NotFoundError:
                break
            headers = message.headers or {}
            if "Sluice-Request" in headers:
                path, stream_id = headers["Sluice-Request"].partition(" ")[2], headers.get("Stream-ID", "")
                name, key = f"{path} {stream_id}".strip(), (headers.get("Sluice-Owner", ""), path, stream_id)
            if int(headers.get("Stream-Offset", 0)) != len(head):
                wave = self.waves.get(key)
                if wave is None:
                    print(f"{name}: continues an earlier upload, whose format is unknown")
                    return None
                return Stream(name, wave)
            head += message.data or b""
            sequence = message.seq + 1
        wave = read_head(head)
        if wave is None or not wave.is_pcm16:
            print(f"{name}: no WAV of 16-bit PCM, so its level is not shown")
            return None
        if key:
            self.remember(key, wave)
        return Stream(name, wave)

    def remember(self, key: tuple[str, str, str], wave: Wave) -> None:
        """Keeps the format of a stream, and forgets the oldest one if there are too many."""
        self.waves.pop(key, None)
        self.waves[key] = wave
        if len(self.waves) > KEPT_FORMATS:
            del self.waves[next(iter(self.waves))]

    async def take(self, message) -> None:
        """Adds the samples of one message."""
        headers, subject = message.headers or {}, message.subject
        if message.data and subject not in self.streams:
            self.streams[subject] = await self.begin(subject)
        stream = self.streams.get(subject)
        if headers.get("Upload-Complete") == "?1" or "Sluice-Ended" in headers:
            self.streams.pop(subject, None)
            if stream:
                print(f"{stream.name}: {headers.get('Sluice-Ended', 'complete')}")
        if not stream or not message.data:
            return
        offset, data = int(headers["Stream-Offset"]), message.data
        if zlib.crc32(data) != int(headers["Sluice-CRC32"], 16):
            print(f"{stream.name}: the message at {offset} is damaged")
            return
        begin = max(offset, stream.wave.data)
        if offset != stream.expected:
            stream.half = b""
            begin += (begin - stream.wave.data) % 2  # the beginning of a sample
        samples = stream.half + data[begin - offset :]
        stream.half = samples[len(samples) & ~1 :]
        values = array("h", samples[: len(samples) & ~1])
        if sys.byteorder == "big":
            values.byteswap()
        if values:
            stream.peak = max(stream.peak, max(values), -min(values))
        stream.expected = stream.reached = offset + len(data)
        stream.is_new = True

    def print(self) -> None:
        """Prints a line for each stream with new samples."""
        for stream in self.streams.values():
            if stream is None or not stream.is_new:
                continue
            level = 20 * math.log10(stream.peak / 32768) if stream.peak else SILENCE
            seconds = (stream.reached - stream.wave.data) / (2 * stream.wave.channels * stream.wave.rate)
            bar = "#" * round(max(0.0, 1 - level / -60) * 30)
            print(f"{seconds:9.1f} s  {level:6.1f} dBFS  {bar:<30}  {stream.name}", flush=True)
            stream.peak, stream.is_new = 0, False


async def main(url: str, name: str) -> None:
    connection = await nats.connect(url, max_reconnect_attempts=-1)
    levels = Levels(connection.jetstream(), name)
    # With an ordered consumer, nats-py creates it again at the right message if one is missing, for example after a
    # reconnect.
    subscription = await levels.broker.subscribe(
        f"{name}.*", stream=name, ordered_consumer=True, config=ConsumerConfig(deliver_policy=DeliverPolicy.NEW)
    )
    print(f"following the streams of {name}", flush=True)

    async def follow() -> None:
        async for message in subscription.messages:
            await levels.take(message)

    async def show() -> None:
        while True:
            await asyncio.sleep(1)
            levels.print()

    tasks = [asyncio.create_task(follow()), asyncio.create_task(show())]
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, lambda: [task.cancel() for task in tasks])
    try:
        await asyncio.gather(*tasks)
    except asyncio.CancelledError:
        pass
    finally:
        await connection.close()


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3) or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    try:
        asyncio.run(main(sys.argv[1], sys.argv[2] if len(sys.argv) == 3 else "sluice"))
    except (NatsError, OSError) as error:
        sys.exit(f"levels.py: {sys.argv[1]}: {error or type(error).__name__}")
