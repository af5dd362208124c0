#!/usr/bin/env python3
"""`make bench-small`: tests whether `sluice mic` and `sluice serve` together fit into a tenth of a core and 64 MB.

Both run in one control group. The microphone captures 48 kHz stereo in real time. The server splits the recording every
ten seconds and computes the digests of each part. At the end, each sample of all parts is compared with the samples
that the device delivered, and `sluice verify` checks the digests.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.common.budget import Budget
from benchmarks.common.harness import SLUICE, BenchmarkError, Process, free_port, need, scratch_directory
from benchmarks.common.report import Report, Section, add_arguments
from benchmarks.common.tables import Table
from benchmarks.live import testmic_signal
from benchmarks.live.beds import TestMicrophoneBed

RATE, CHANNELS, FRAME = 48_000, 2, 4
PERIOD_MS = 125
#: `sluice mic` reserves space for the sizes of RF64 before the format.
HEADER = 80


def await_listening(server: Process) -> None:
    assert server.pipes.stderr
    for line in server.pipes.stderr:
        if line.startswith(b"listening on"):
            return
    raise BenchmarkError("sluice serve does not listen")


def stored_samples(directory: Path) -> tuple[bytes, int]:
    """The samples of all parts in their order, and how many parts there are."""
    parts = [json.loads(file.read_text()) for file in directory.glob("[!.]*.sidecar")]
    parts.sort(key=lambda part: int(part.get("part", 1)))
    return b"".join((directory / part["file"]).read_bytes()[HEADER:] for part in parts), len(parts)


def run(options: argparse.Namespace, directory: Path) -> dict[str, object]:
    need("cc")
    store = directory / "store"
    store.mkdir()
    url = f"127.0.0.1:{free_port()}"
    with TestMicrophoneBed(directory, RATE, CHANNELS) as bed, Budget(options.cores, options.memory << 20) as budget:
        bed.prepare_run(directory, PERIOD_MS)
        serve = [str(SLUICE), "serve", "--listen", url, "--directory", str(store), "--split", f"{options.split}s"]
        server = Process([*budget.prefix, *serve], stderr=subprocess.PIPE)
        try:
            await_listening(server)
            mic = [str(SLUICE), "mic", f"http://{url}/kitchen", "--device", bed.device, "--rate", str(RATE)]
            mic += ["--channels", str(CHANNELS), "--duration", f"{options.seconds}s", "--progress", "json"]
            client = Process([*budget.prefix, *mic], bed.environment, stdout=subprocess.PIPE)
            try:
                assert client.pipes.stdout
                lines = client.pipes.stdout.read().splitlines()
                if not client.wait(30) or client.exit is None:
                    raise BenchmarkError("sluice mic does not end")
                await_digests(store)
            finally:
                client.end()
        finally:
            server.end()
        throttled, periods = budget.throttled_periods()
        peak = budget.peak_memory()
    if client.exit.code != 0 or server.exit is None:
        raise BenchmarkError(
            f"sluice mic ended with {client.exit.code}: {lines[-1].decode() if lines else 'no output'}"
        )
    summary = json.loads(lines[-1])
    verify = subprocess.run([str(SLUICE), "verify", str(store)], capture_output=True, text=True, check=False)
    if verify.returncode != 0:
        raise BenchmarkError(f"sluice verify reports errors:\n{verify.stdout}{verify.stderr}")
    samples, parts = stored_samples(store)
    found = testmic_signal.read_runs(samples, CHANNELS)
    return {
        "seconds": options.seconds,
        "captured_frames": (summary["captured"] - HEADER) // FRAME,
        "stored_frames": len(samples) // FRAME,
        "runs": len(found.runs),
        "missing_frames": found.missing_frames + found.silent_frames + found.repeated_frames,
        "foreign_bytes": found.foreign_bytes,
        "lost_by_device": summary["source_lost_frames"],
        "lost": summary["lost"] + summary["unsent"],
        "outages": summary["outages"],
        "parts": parts,
        "client_cpu": client.exit.cpu_ns / 1e9,
        "server_cpu": server.exit.cpu_ns / 1e9,
        "throttled": throttled,
        "periods": periods,
        "peak_memory": peak,
    }


def await_digests(store: Path) -> None:
    """Waits until no sidecar is hidden. The sidecar of a part appears when its digests are known."""
    for _ in range(600):
        if not list(store.glob("*.part")) and not list(store.glob(".*.sidecar")):
            return
        time.sleep(0.1)
    raise BenchmarkError("the digests are not finished after 60 s")


def judge(found: dict[str, object]) -> None:
    same = found["captured_frames"] == found["stored_frames"] and found["runs"] == 1
    faults = [name for name in ("missing_frames", "foreign_bytes", "lost_by_device", "lost") if found[name]]
    if not same or faults:
        raise BenchmarkError(f"not every frame is stored once: {found}")


def section(found: dict[str, object], options: argparse.Namespace) -> Section:
    cores, memory = options.cores * 100, options.memory
    note = (
        f"`sluice mic` (48 kHz stereo, periods of {PERIOD_MS} ms) and `sluice serve --split {options.split}s` for "
        f"{options.seconds} s in one control group with {cores:g} % of a core and {memory} MB, page cache included. "
        "`make bench-small`."
    )
    seconds = float(str(found["seconds"]))
    rows = [
        ["frames captured", str(found["captured_frames"])],
        ["frames stored, once and in order", str(found["stored_frames"])],
        ["frames lost by the device", str(found["lost_by_device"])],
        ["recordings, each with its digests", str(found["parts"])],
        ["CPU of `sluice mic`, % of a core", f"{float(str(found['client_cpu'])) / seconds * 100:.2f}"],
        ["CPU of `sluice serve`, % of a core", f"{float(str(found['server_cpu'])) / seconds * 100:.2f}"],
        ["throttled periods of 0.1 s", f"{found['throttled']} of {found['periods']}"],
        ["peak memory, MiB", f"{int(str(found['peak_memory'])) / 2**20:.1f}"],
    ]
    return Section("A small machine", note, [Table(["", "result"], rows)])


def main() -> int:
    parser = argparse.ArgumentParser(description="Record on a tenth of a core and 64 MB.")
    add_arguments(parser)
    parser.add_argument("--seconds", type=int, default=120, help="how long to record (default: 120)")
    parser.add_argument("--split", type=int, default=10, help="seconds in each recording (default: 10)")
    parser.add_argument("--cores", type=float, default=0.1, help="processor time, in cores (default: 0.1)")
    parser.add_argument("--memory", type=int, default=64, help="in MB (default: 64)")
    options = parser.parse_args()
    report = Report("bench-small")
    with report.measuring(), scratch_directory() as directory:
        found = run(options, directory)
        report.figures = found
        report.sections = [section(found, options)]
        judge(found)
    return report.finish(options)


if __name__ == "__main__":
    sys.exit(main())
