"""Runs servers that store the bodies of PUT requests: nginx, `sluice serve` and Python's ASGI servers."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import environment
from benchmarks.common.harness import REPOSITORY, SLUICE, BenchmarkError, Process, free_port, need

#: The maximum number of connections of each server, which is enough for every load test.
CONNECTIONS = 20_000


@dataclass
class FileServer:
    """A server that stores request bodies below `directory`."""

    name: str
    port: int
    directory: Path
    process: Process

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/file"

    def stored(self) -> list[Path]:
        return [path for path in self.directory.rglob("*") if path.is_file()]

    def clear(self) -> None:
        for path in self.stored():
            path.unlink()


#: Starts a server whose files are in the given directory.
Serve = Callable[[Path], AbstractContextManager[FileServer]]


def _await_port(process: Process, port: int, log: Path) -> None:
    deadline = time.monotonic() + 10
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        # Only a connection shows that it listens.
        if process.wait(0.05) or time.monotonic() > deadline:
            raise BenchmarkError(f"{process.name} does not listen on port {port}: {log.read_text(errors='replace')}")


@contextlib.contextmanager
def nginx(directory: Path, body_buffer: str = "16k") -> Iterator[FileServer]:
    """nginx with PUT by its WebDAV module. It writes chunked bodies in parts of `body_buffer` (its default: 16k)."""
    need("nginx")
    store = directory / "store"
    store.mkdir(parents=True)
    port = free_port()
    # One process in the foreground, so that no process remains after the benchmark.
    (directory / "nginx.conf").write_text(
        f"daemon off; master_process off; pid {directory}/pid; error_log stderr warn;\n"
        f"worker_rlimit_nofile {CONNECTIONS};\nevents {{ worker_connections {CONNECTIONS}; }}\n"
        "http {\n"
        f"  access_log off; client_max_body_size 0; client_body_buffer_size {body_buffer};\n"
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


def _asgi(name: str, directory: Path, command: list[str], port: int) -> Iterator[FileServer]:
    store = directory / "store"
    store.mkdir(parents=True)
    words = [*command, "benchmarks.serve.asgi_app:app"]
    surroundings = {"PYTHONPATH": str(REPOSITORY), "STORE": str(store)}
    yield from _serve(name, words, port, store, directory / "log", surroundings)


@contextlib.contextmanager
def uvicorn(directory: Path) -> Iterator[FileServer]:
    """uvicorn with its fastest event loop and parser."""
    port = free_port()
    command = [
        *(str(environment.program("uvicorn", "uvicorn", "uvloop", "httptools")), "--loop", "uvloop"),
        *("--http", "httptools", "--no-access-log", "--log-level", "warning", "--backlog", str(CONNECTIONS)),
        *("--host", "127.0.0.1", "--port", str(port)),
    ]
    yield from _asgi("uvicorn", directory, command, port)


@contextlib.contextmanager
def hypercorn(directory: Path) -> Iterator[FileServer]:
    """hypercorn with uvloop, in one process like the other servers. It has no time limit for reading a request."""
    environment.program("uvicorn", "uvicorn", "uvloop", "httptools")
    port = free_port()
    command = [
        *(str(environment.program("hypercorn", "hypercorn")), "--worker-class", "uvloop", "--workers", "0"),
        *("--log-level", "warning", "--backlog", str(CONNECTIONS), "--bind", f"127.0.0.1:{port}"),
    ]
    yield from _asgi("hypercorn", directory, command, port)


def _serve(
    name: str, command: list[str], port: int, store: Path, log: Path, surroundings: dict[str, str] | None = None
) -> Iterator[FileServer]:
    with open(log, "wb") as messages:
        process = Process(
            command, surroundings, stdin=subprocess.DEVNULL, stdout=messages.fileno(), stderr=messages.fileno()
        )
    try:
        _await_port(process, port, log)
        yield FileServer(name, port, store, process)
    finally:
        process.end(signal.SIGTERM)
