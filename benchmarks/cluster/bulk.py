"""Measures large uploads through one, two or three servers to one store."""

from __future__ import annotations

import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cluster.stores import Store, running
from benchmarks.common.harness import SLUICE, BenchmarkError, Process, scratch_directory

# A run that takes longer than this has hung.
PATIENCE = 300.0
UPLOADS = 6


@dataclass
class Figures:
    """The results of one run."""

    mib_per_s: float  # all uploads together, from the first exec to the last exit
    mib_per_server_cpu_s: float
    mib_per_cpu_s: float  # of servers and brokers


def upload(store: Store, servers: int, file: Path) -> Figures:
    """Uploads the file six times at once, in turn to the servers."""
    with scratch_directory() as directory, running(store, servers, directory) as found:
        server_cpu, broker_cpu = found.server_cpu_ns(), found.broker_cpu_ns()
        began = time.monotonic_ns()
        processes = []
        with open(directory / "messages", "w+b") as messages:
            try:
                for number in range(UPLOADS):
                    url = f"http://127.0.0.1:{found.servers[number % servers].port}/file-{number}"
                    record = str(directory / f"record-{number}")
                    command = [str(SLUICE), "put", str(file), url, "--resumable", "always", "--progress", "none"]
                    command += ["--resume-file", record]
                    processes.append(Process(command, stdout=subprocess.DEVNULL, stderr=messages.fileno()))
                for process in processes:
                    if not process.wait(PATIENCE) or process.exit is None or process.exit.code != 0:
                        messages.seek(0)
                        raise BenchmarkError(f"sluice put: {messages.read().decode(errors='replace')[-400:]}")
            finally:
                for process in processes:
                    process.end(signal.SIGKILL)
        seconds = (time.monotonic_ns() - began) / 1e9
        server_cpu, broker_cpu = found.server_cpu_ns() - server_cpu, found.broker_cpu_ns() - broker_cpu
    mebibytes = UPLOADS * file.stat().st_size / 2**20
    return Figures(
        mib_per_s=mebibytes / seconds,
        mib_per_server_cpu_s=mebibytes / (server_cpu / 1e9),
        mib_per_cpu_s=mebibytes / ((server_cpu + broker_cpu) / 1e9),
    )
