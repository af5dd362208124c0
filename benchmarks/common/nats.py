"""Runs one or more processes of `nats-server` with JetStream on loopback, with their stores in a directory."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from benchmarks.common.harness import REPOSITORY, BenchmarkError, Process, free_port


def program() -> str:
    """The program that `SLUICE_NATS_SERVER` names, or the one below `.build`, or the system's."""
    built = sorted(REPOSITORY.glob(".build/brokers/**/nats-server"))
    found = os.environ.get("SLUICE_NATS_SERVER") or next((str(path) for path in built if path.is_file()), None)
    found = found or shutil.which("nats-server", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if not found:
        raise BenchmarkError("no nats-server. Run make .build/brokers, or apt-get install nats-server.")
    return found


def version() -> str:
    done = subprocess.run([program(), "--version"], capture_output=True, text=True, timeout=10, check=False)
    return done.stdout.strip().rpartition("v")[2]


class Brokers:
    """Brokers of one cluster. Each has its own ports."""

    def __init__(self, count: int, directory: Path, syncs_always: bool = False) -> None:
        ports = [free_port() for _ in range(3 * count)]
        clients, routes, monitors = ports[:count], ports[count : 2 * count], ports[2 * count :]
        self.urls = ",".join(f"nats://127.0.0.1:{port}" for port in clients)
        self.monitors = [f"http://127.0.0.1:{port}" for port in monitors]
        self.processes: list[Process] = []
        addresses = ", ".join(f'"nats://127.0.0.1:{port}"' for port in routes)
        for number in range(count):
            group = f'cluster {{ name: c, listen: "127.0.0.1:{routes[number]}", routes: [{addresses}] }}\n'
            sync = ", sync_interval: always" if syncs_always else ""
            file = directory / f"broker-{number}.conf"
            file.write_text(
                f'server_name: n{number}\nlisten: "127.0.0.1:{clients[number]}"\n'
                f'http: "127.0.0.1:{monitors[number]}"\n'
                f'jetstream {{ store_dir: "{directory}/broker-{number}"{sync} }}\n'
                + (group if count > 1 else "")
            )
            with open(directory / f"broker-{number}.log", "wb") as log:
                self.processes.append(Process([program(), "-c", str(file)], stderr=log.fileno()))
        self._await()

    def _await(self) -> None:
        """Waits until each of them is healthy. They have elected a leader by then."""
        deadline = time.monotonic() + 60
        for process, monitor in zip(self.processes, self.monitors):
            while not self._is_healthy(monitor):
                if process.wait(0.1) or time.monotonic() > deadline:
                    raise BenchmarkError("a broker does not become ready within 60 s")

    @staticmethod
    def _is_healthy(monitor: str) -> bool:
        with contextlib.suppress(OSError):
            return bool(urllib.request.urlopen(f"{monitor}/healthz", timeout=5).status == 200)
        return False

    def cpu_ns(self) -> int:
        return sum(process.cpu_ns() for process in self.processes)

    def end(self) -> None:
        for process in self.processes:
            process.end(signal.SIGKILL)


@contextlib.contextmanager
def brokers(count: int, directory: Path, syncs_always: bool = False) -> Iterator[Brokers]:
    """Runs brokers during a `with` block."""
    running = Brokers(count, directory, syncs_always)
    try:
        yield running
    finally:
        running.end()
