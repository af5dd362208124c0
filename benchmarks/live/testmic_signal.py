#!/usr/bin/env python3
"""Identifies the frames of the test microphone by its noise, and finds missing frames.

The function is the same as in Tests/TestDeviceControl/include/testmic_signal.h. Four successive samples of one channel,
beginning at a frame divisible by four, are an invertible scrambling of (frame / 4, channel). So any twelve successive
frames show their position in the device's life, no matter how much was lost before them.

As a program: testmic_signal.py [--seed N] [--channels N] FILE   (raw S16_LE) prints the results as JSON.
"""

from __future__ import annotations

import argparse
import json
import struct
import sys
from array import array
from dataclasses import asdict, dataclass

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
MULTIPLY_1, MULTIPLY_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
INVERSE_1, INVERSE_2 = pow(MULTIPLY_1, -1, 1 << 64), pow(MULTIPLY_2, -1, 1 << 64)
#: A larger frame number (190 years at 48 kHz) is not a frame number, but other noise.
LARGEST_FRAME = 1 << 48


def mix(word: int) -> int:
    """SplitMix64's finaliser."""
    word = ((word ^ (word >> 30)) * MULTIPLY_1) & MASK
    word = ((word ^ (word >> 27)) * MULTIPLY_2) & MASK
    return word ^ (word >> 31)


def unmix(word: int) -> int:
    """The inverse of `mix`."""
    word = ((word ^ (word >> 31) ^ (word >> 62)) * INVERSE_2) & MASK
    word = ((word ^ (word >> 27) ^ (word >> 54)) * INVERSE_1) & MASK
    return word ^ (word >> 30) ^ (word >> 60)


def samples(first_frame: int, frames: int, channels: int = 1, seed: int = 1) -> bytes:
    """The device's frames `first_frame` … `first_frame + frames - 1`, interleaved S16_LE."""
    first_group, last_group = first_frame >> 2, (first_frame + frames + 3) >> 2
    key = seed * GOLDEN
    columns = []
    for channel in range(channels):
        words = [mix(((group << 3 | channel) + key) & MASK) for group in range(first_group, last_group)]
        columns.append(array("h", struct.pack(f"<{len(words)}Q", *words)))
    interleaved = array("h", bytes(2 * channels * len(columns[0])))
    for channel, column in enumerate(columns):
        interleaved[channel::channels] = column
    start = (first_frame & 3) * channels
    return interleaved[start : start + frames * channels].tobytes()


def locate(data: bytes | memoryview, position: int, channels: int = 1, seed: int = 1) -> int | None:
    """The device frame at byte `position` of `data`, where a frame must begin. None if the twelve frames there are not
    successive noise of this device."""
    if position + 24 * channels > len(data):
        return None
    left = struct.unpack_from(f"<{12 * channels}H", data, position)[::channels]
    key = seed * GOLDEN
    for skew in range(4):
        first, second = (
            (unmix(left[i] | left[i + 1] << 16 | left[i + 2] << 32 | left[i + 3] << 48) - key) & MASK
            for i in (skew, skew + 4)
        )
        frame = (first >> 3) * 4 - skew
        if first & 7 == 0 and second == first + 8 and 0 <= frame < LARGEST_FRAME:
            return frame
    return None


@dataclass
class Run:
    """Successive frames, as captured."""

    offset: int  #: byte offset in the data
    first_frame: int  #: device frame of the first one
    frames: int


@dataclass
class Report:
    runs: list[Run]
    foreign_bytes: int  #: neither successive noise nor silence
    silent_frames: int  #: all-zero frames, e.g. filled in where frames were lost
    missing_frames: int  #: device frames between the first and the last run that the data lacks
    repeated_frames: int  #: frames that occur again after themselves or after a later frame


def read_runs(data: bytes | memoryview, channels: int = 1, seed: int = 1) -> Report:
    """Finds all runs of the noise in raw interleaved S16_LE `data` and what is missing between them.

    A run shorter than twelve frames cannot be located and counts as foreign bytes."""
    view = memoryview(data)
    frame_bytes = 2 * channels
    end = len(view) // frame_bytes * frame_bytes
    runs: list[Run] = []
    foreign = len(view) - end
    silent = 0
    zero = bytes(frame_bytes)
    position = 0
    while position < end:
        frame = locate(view, position, channels, seed)
        # Up to three frames before a run, the following words already show its number, but these frames are not in it.
        if frame is None or view[position : position + frame_bytes] != samples(frame, 1, channels, seed):
            if view[position : position + frame_bytes] == zero:
                silent += 1
            else:
                foreign += frame_bytes
            position += frame_bytes
            continue
        run = Run(position, frame, 0)
        while position < end:
            count = min(16384, (end - position) // frame_bytes)
            expected = samples(frame, count, channels, seed)
            actual = view[position : position + count * frame_bytes]
            same = count if actual == expected else _equal_frames(actual, expected, frame_bytes)
            run.frames += same
            frame += same
            position += same * frame_bytes
            if same < count:
                break
        runs.append(run)
    missing = repeated = 0
    reached = runs[0].first_frame if runs else 0
    for run in runs:
        missing += max(0, run.first_frame - reached)
        repeated += max(0, min(reached, run.first_frame + run.frames) - run.first_frame)
        reached = max(reached, run.first_frame + run.frames)
    return Report(runs, foreign, silent, missing, repeated)


def _equal_frames(actual: memoryview, expected: bytes, frame_bytes: int) -> int:
    """The number of equal frames at the start. It bisects, because comparing slices is fast."""
    low, high = 0, len(expected) // frame_bytes
    while high - low > 1:
        middle = (low + high) // 2
        if actual[: middle * frame_bytes] == expected[: middle * frame_bytes]:
            low = middle
        else:
            high = middle
    return low


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--channels", type=int, default=1)
    options = parser.parse_args()
    with open(options.file, "rb") as file:
        report = read_runs(file.read(), options.channels, options.seed)
    json.dump(asdict(report), sys.stdout)
    print()
    return 0 if report.runs else 1


if __name__ == "__main__":
    sys.exit(main())
