"""A file through a pipe's end to a server: `sluice pipe` beside `curl -T -`, the same file, the same server."""

from __future__ import annotations

import contextlib
import filecmp
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.common.harness import SLUICE, BenchmarkError, MemorySampler, Pipeline, Process, free_port, need

# A run that takes longer than this has hung.
PATIENCE = 60.0


@dataclass
class PipeFigures:
    """What one upload showed."""

    mib_per_s: float  # from exec to exit
    cpu_s_per_gib: float
    rss_mib: float
    pss_mib: float

    def json(self) -> dict[str, object]:
        return asdict(self)


@dataclass
class FileServer:
    """A server that keeps what it is sent, below `directory`."""

    name: str
    port: int
    directory: Path

    def stored(self) -> list[Path]:
        return [path for path in self.directory.rglob("*") if path.is_file()]

    def clear(self) -> None:
        for path in self.stored():
            path.unlink()


def curl_command(url: str) -> list[str]:
    return ["curl", "-sSf", "-T", "-", "-H", "Expect:", url]


def sluice_command(url: str) -> list[str]:
    # PUT, as curl does it and as nginx stores it.
    return [str(SLUICE), "pipe", url, "--method", "PUT", "--progress", "none"]


COMMANDS: dict[str, Callable[[str], list[str]]] = {"sluice pipe": sluice_command, "curl -T -": curl_command}


def make_file(path: Path, size: int) -> None:
    """`size` bytes of noise: nothing on the way can make them fewer."""
    block = os.urandom(1 << 20)
    with open(path, "wb") as file:
        for number in range(-(-size // len(block))):
            # No two blocks alike: a swapped or repeated one would be seen.
            file.write(number.to_bytes(8, "little") + block[8:])
        file.truncate(size)


def upload(name: str, server: FileServer, file: Path, directory: Path) -> PipeFigures:
    """Sends the file, compares what the server stored with it, byte for byte."""
    directory.mkdir(parents=True)
    server.clear()
    url = f"http://127.0.0.1:{server.port}/file"
    with open(file, "rb") as source:
        pipeline = Pipeline([COMMANDS[name](url)], {}, directory, stdin=source.fileno())
    try:
        memory = MemorySampler(pipeline)
        ended = pipeline.wait(PATIENCE)
        memory.finish()
    finally:
        pipeline.kill()
    end = pipeline.members[0].exit
    if not ended or end is None or end.code != 0:
        raise BenchmarkError(f"{name} to {server.name}: exit {end and end.code}; it said: {pipeline.said()}")
    size = file.stat().st_size
    if not any(path.stat().st_size == size and filecmp.cmp(path, file, shallow=False) for path in server.stored()):
        sizes = {path.name: path.stat().st_size for path in server.stored()}
        raise BenchmarkError(f"{name} to {server.name}: {size} bytes sent, and stored is something else: {sizes}")
    seconds = (end.at_ns - pipeline.started_ns) / 1e9
    return PipeFigures(
        mib_per_s=size / 2**20 / seconds,
        cpu_s_per_gib=end.cpu_ns / 1e9 / (size / 2**30),
        rss_mib=memory.peak_rss / 2**20,
        pss_mib=memory.peak_pss / 2**20,
    )


def _await_port(process: Process, port: int, log: Path) -> None:
    deadline = time.monotonic() + 10
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        # Only a connection shows that it listens.
        if process.wait(0.05) or time.monotonic() > deadline:
            raise BenchmarkError(f"{process.name} does not listen on port {port}: {log.read_text(errors='replace')}")


@contextlib.contextmanager
def nginx(directory: Path) -> Iterator[FileServer]:
    """nginx with its WebDAV PUT, which reads a chunked body into a file."""
    need("nginx")
    store = directory / "store"
    store.mkdir(parents=True)
    port = free_port()
    # One process in the foreground: nothing that would outlive the benchmark.
    (directory / "nginx.conf").write_text(
        f"daemon off; master_process off; pid {directory}/pid; error_log stderr warn;\n"
        "events { worker_connections 64; }\n"
        "http {\n"
        "  access_log off; client_max_body_size 0;\n"
        f"  client_body_temp_path {directory}/incoming; proxy_temp_path {directory}/t;\n"
        f"  fastcgi_temp_path {directory}/t; uwsgi_temp_path {directory}/t; scgi_temp_path {directory}/t;\n"
        f"  server {{ listen 127.0.0.1:{port}; root {store}; location / {{ dav_methods PUT; }} }}\n"
        "}\n"
    )
    command = ["nginx", "-p", str(directory), "-c", str(directory / "nginx.conf"), "-e", "stderr"]
    yield from _serve("nginx", command, port, store, directory / "log")


@contextlib.contextmanager
def sluice_serve(directory: Path) -> Iterator[FileServer]:
    """Our own server."""
    store = directory / "store"
    store.mkdir(parents=True)
    port = free_port()
    command = [str(SLUICE), "serve", "--listen", f"127.0.0.1:{port}", "--directory", str(store)]
    yield from _serve("sluice serve", command, port, store, directory / "log")


def _serve(name: str, command: list[str], port: int, store: Path, log: Path) -> Iterator[FileServer]:
    with open(log, "wb") as messages:
        process = Process(command, {}, stdin=subprocess.DEVNULL, stdout=messages.fileno(), stderr=messages.fileno())
    try:
        _await_port(process, port, log)
        yield FileServer(name, port, store)
    finally:
        process.end(signal.SIGTERM)
