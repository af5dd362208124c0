#!/usr/bin/env python3
"""check-recording.py FILE DEVICE: checks whether a recording is complete. The last step of `make run`.

FILE is a WAV file of 48,000 Hz, 16 bits and one channel. The virtual microphone plays a known melody, so the script
compares its recording with the melody sample by sample. For any other device it checks only length and level. It skips
and counts the bytes that the server reports as missing (FILE's `.gaps`).
"""

import array
import json
import math
import sys
from pathlib import Path

RATE = 48_000
TONES = (262, 330, 392, 523)
HEADER = 80


def holes(file: Path) -> list[tuple[int, int]]:
    """Ranges of samples that the server never received, from the stream offsets in the `.gaps` file."""
    gaps = file.with_suffix(".gaps")
    if not gaps.exists():
        return []
    lines = (json.loads(line) for line in gaps.read_text().splitlines())
    return [((gap["offset"] - HEADER) // 2, -(-(gap["offset"] + gap["length"] - HEADER) // 2)) for gap in lines]


def main() -> int:
    file, device = Path(sys.argv[1]), sys.argv[2]
    content = file.read_bytes()
    if content[:4] != b"RIFF" or content[HEADER - 8 : HEADER - 4] != b"data":
        print(f"FAILED: {file} is not a WAV file")
        return 1
    samples = array.array("h", content[HEADER:])
    peak = max(map(abs, samples), default=0)
    level = f"{20 * math.log10(peak / 32768):.1f} dBFS" if peak else "silence"
    print(f"{len(samples)} samples, {len(samples) / RATE:.3f} s, peak {level}")
    if len(samples) != 10 * RATE:
        print("FAILED: the recording is not ten seconds long")
        return 1
    if device != "virtual":
        return 0

    melody = array.array("h", (round(8192 * math.sin(2 * math.pi * tone * n / RATE)) for tone in TONES for n in range(RATE)))
    missing = holes(file)
    # The first samples of the recording show at which point of the melody it begins.
    doubled = melody.tobytes() * 2
    start = doubled.find(samples[:4800].tobytes())
    if start < 0 or start % 2:
        print("FAILED: the recording is not the melody")
        return 1
    start //= 2
    wrong = sum(
        1
        for n, sample in enumerate(samples)
        if sample != melody[(start + n) % len(melody)] and not any(first <= n < end for first, end in missing)
    )
    lost = sum(end - first for first, end in missing)
    print(f"compared with the melody: {len(samples) - lost - wrong} samples equal, {wrong} different, {lost} missing")
    print("OK: every captured sample is stored" if not wrong and not lost else "OK: the server reported all missing samples" if not wrong else "FAILED")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
