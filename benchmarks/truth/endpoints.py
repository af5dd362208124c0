"""Real endpoints with faults of a known size, each with its own log for comparison with a report."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.common import environment
from benchmarks.common.harness import REPOSITORY, SLUICE, BenchmarkError, Process, free_port, need

HERE = REPOSITORY / "benchmarks" / "truth"
#: Node.js stops for milliseconds when its optimizer replaces a function or its collector clears the young generation.
#: These pauses fall between the events that a program can log, so the log would not have them. Without them, it is true.
NODE_OPTIONS = ("--no-opt", "--min-semi-space-size=64", "--max-semi-space-size=64")


@dataclass
class Request:
    """One request in the endpoint's log. Times are those of the wall clock, in ns."""

    connection: int | None = None
    head_ns: int | None = None
    end_ns: int | None = None
    bytes: int = 0
    response_ns: int | None = None
    status: int | None = None
    cut: bool = False


@dataclass
class Endpoint:
    """A server that can be started, killed and restarted on the same port, with its log."""

    name: str
    command: list[str]
    port: int
    directory: Path
    fault: dict[str, float]
    surroundings: dict[str, str] = field(default_factory=dict)
    #: The port of the proxy in front of the server, if any, which then receives the load.
    front_port: int | None = None
    process: Process | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.front_port or self.port}/ingest"

    @property
    def log(self) -> Path:
        return self.directory / "log"

    def start(self) -> None:
        environment_of = {
            "TRUTH_FAULT": json.dumps(self.fault),
            "TRUTH_LOG": str(self.log),
            "TRUTH_PORT": str(self.port),
            **self.surroundings,
        }
        with open(self.directory / "messages", "ab") as messages:
            self.process = Process(
                self.command,
                environment_of,
                stdin=subprocess.DEVNULL,
                stdout=messages.fileno(),
                stderr=messages.fileno(),
            )
        deadline = time.monotonic() + 20
        while not _listens(self.port):
            if self.process.wait(0.02) or time.monotonic() > deadline:
                raise BenchmarkError(
                    f"{self.name} does not listen: {(self.directory / 'messages').read_text(errors='replace')}"
                )

    def kill(self) -> None:
        assert self.process
        self.process.end(signal.SIGKILL)

    def requests(self) -> list[Request]:
        """The requests in the log, in order. Each start of the server begins a new count."""
        found: dict[tuple[int, int], Request] = {}
        life, last = 0, -1
        for line in self.log.read_text().splitlines():
            entry = json.loads(line)
            number = entry["request"]
            if entry["event"] == "head":
                if number <= last:
                    life += 1
                last = number
            request = found.setdefault((life, number), Request())
            match entry["event"]:
                case "head":
                    request.connection, request.head_ns = entry["connection"], entry["time_ns"]
                case "end":
                    request.end_ns, request.bytes = entry["time_ns"], entry["bytes"]
                case "response":
                    request.response_ns, request.status = entry["time_ns"], entry["status"]
                case "cut":
                    request.cut = True
        return list(found.values())


def _listens(port: int) -> bool:
    # Do not connect, because the endpoint would count the connection.
    state = Path("/proc/net/tcp").read_text()
    return re.search(rf"0100007F:{port:04X} 00000000:0000 0A", state) is not None


@contextlib.contextmanager
def running(endpoint: Endpoint) -> Iterator[Endpoint]:
    (endpoint.directory / "store").mkdir(parents=True, exist_ok=True)
    endpoint.log.touch()
    endpoint.start()
    try:
        yield endpoint
    finally:
        if endpoint.process:
            endpoint.process.end(signal.SIGTERM)


def aiohttp(directory: Path, fault: dict[str, float]) -> contextlib.AbstractContextManager[Endpoint]:
    python = environment.python_with("aiohttp")
    return running(Endpoint("aiohttp", [str(python), str(HERE / "aiohttp_app.py")], free_port(), directory, fault))


def uvicorn(directory: Path, fault: dict[str, float]) -> contextlib.AbstractContextManager[Endpoint]:
    port = free_port()
    command = [
        *(str(environment.program("uvicorn", "uvicorn", "uvloop", "httptools")), "uvicorn_app:app"),
        *("--app-dir", str(HERE), "--host", "127.0.0.1", "--port", str(port)),
        *("--no-access-log", "--log-level", "warning", "--timeout-keep-alive", "75"),
    ]
    return running(Endpoint("uvicorn", command, port, directory, fault))


def node(directory: Path, fault: dict[str, float]) -> contextlib.AbstractContextManager[Endpoint]:
    need("node")
    command = ["node", *NODE_OPTIONS, str(HERE / "node_server.mjs")]
    return running(Endpoint("Node.js", command, free_port(), directory, fault))


@contextlib.contextmanager
def _behind(
    name: str, command: list[str], front: int, endpoint: Endpoint, surroundings: dict[str, str] | None = None
) -> Iterator[Endpoint]:
    """An endpoint with a proxy in front of it, which listens on the port `front`."""
    messages = endpoint.directory / "proxy-messages"
    with open(messages, "ab") as output:
        proxy = Process(
            command, surroundings or {}, stdin=subprocess.DEVNULL, stdout=output.fileno(), stderr=output.fileno()
        )
    try:
        deadline = time.monotonic() + 20
        while not _listens(front):
            if proxy.wait(0.02) or time.monotonic() > deadline:
                raise BenchmarkError(f"{name} does not listen: {messages.read_text(errors='replace')}")
        endpoint.name, endpoint.front_port = name, front
        yield endpoint
    finally:
        proxy.end(signal.SIGTERM)


@contextlib.contextmanager
def behind_caddy(directory: Path, fault: dict[str, float]) -> Iterator[Endpoint]:
    """Node.js with Caddy in front of it."""
    need("caddy")
    with node(directory, fault) as endpoint:
        front = free_port()
        (directory / "Caddyfile").write_text(
            "{\n  admin off\n  auto_https off\n}\n"
            f"http://127.0.0.1:{front} {{\n  bind 127.0.0.1\n"
            f"  reverse_proxy 127.0.0.1:{endpoint.port} {{\n    flush_interval -1\n  }}\n}}\n"
        )
        command = ["caddy", "run", "--adapter", "caddyfile", "--config", str(directory / "Caddyfile")]
        own = {name: str(directory) for name in ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")}
        with _behind("Caddy, Node.js", command, front, endpoint, own):
            yield endpoint


@contextlib.contextmanager
def behind_nginx(directory: Path, fault: dict[str, float]) -> Iterator[Endpoint]:
    """Node.js with nginx in front of it, which passes content on as it arrives."""
    need("nginx")
    with node(directory, fault) as endpoint:
        front = free_port()
        (directory / "proxy.conf").write_text(
            f"daemon off; master_process off; pid {directory}/pid; error_log stderr crit;\n"
            "events { worker_connections 200; }\n"
            "http {\n  access_log off;\n"
            f"{_temporary_paths(directory)}"
            f"  upstream node {{ server 127.0.0.1:{endpoint.port}; keepalive 20; }}\n"
            f"  server {{ listen 127.0.0.1:{front};\n"
            "    location / { proxy_pass http://node; proxy_http_version 1.1; proxy_request_buffering off;\n"
            '      proxy_set_header Connection ""; } }\n'
            "}\n"
        )
        command = ["nginx", "-p", str(directory), "-c", str(directory / "proxy.conf"), "-e", "stderr"]
        with _behind("nginx, Node.js", command, front, endpoint):
            yield endpoint


def _temporary_paths(directory: Path) -> str:
    """Keeps nginx's files in the directory, and accepts bodies of any length."""
    return (
        f"  client_max_body_size 0; client_body_temp_path {directory}/incoming; proxy_temp_path {directory}/t;\n"
        f"  fastcgi_temp_path {directory}/t; uwsgi_temp_path {directory}/t; scgi_temp_path {directory}/t;\n"
    )


@dataclass
class NginxEndpoint(Endpoint):
    """nginx, which logs a request at its end, to the millisecond."""

    def requests(self) -> list[Request]:
        ended = []
        for line in self.log.read_text().splitlines():
            entry = json.loads(line)
            time_ns = round(float(entry["time"]) * 1000) * 1_000_000
            ended.append(
                Request(
                    connection=entry["connection"],
                    head_ns=time_ns - round(float(entry["seconds"]) * 1000) * 1_000_000,
                    bytes=int(entry["bytes"] or 0),
                    response_ns=time_ns,
                    # 499: the client was gone; 444: nginx closed the connection without a response.
                    status=entry["status"] if entry["status"] not in (444, 499) else None,
                    cut=entry["status"] == 444,
                )
            )
        return ended


def nginx(directory: Path, fault: dict[str, float]) -> contextlib.AbstractContextManager[Endpoint]:
    """nginx as its own proxy, because it logs the length only of a body that it has read completely and forwarded."""
    need("nginx")
    port, inner = free_port(), free_port()
    rate = fault.get("requests_per_second")
    rules = f"  limit_req_zone $server_port zone=all:1m rate={rate:g}r/s;\n  limit_req_status 503;\n" if rate else ""
    action = "limit_req zone=all; " if rate else ""
    if cut_every := fault.get("cut_every"):
        numbers = "".join(f"{number} 1; " for number in range(int(cut_every), 1000, int(cut_every)))
        rules += f"  map $connection_requests $is_cut {{ default 0; {numbers}}}\n"
        action = "if ($is_cut) { return 444; } "
    entry = (
        '{"connection": $connection, "time": "$msec", "seconds": "$request_time", "status": $status, '
        '"bytes": "$upstream_http_bytes"}'
    )
    directory.mkdir(parents=True)
    (directory / "nginx.conf").write_text(
        f"daemon off; master_process off; pid {directory}/pid; error_log stderr crit;\n"
        "events { worker_connections 200; }\n"
        "http {\n"
        f"  log_format truth escape=none '{entry}';\n"
        f"{_temporary_paths(directory)}{rules}"
        f"  server {{ listen 127.0.0.1:{port}; access_log {directory}/log truth;\n"
        f"    location / {{ {action}proxy_pass http://127.0.0.1:{inner}; }} }}\n"
        f"  server {{ listen 127.0.0.1:{inner}; access_log off;\n"
        "    location / { add_header Bytes $content_length; return 200; } }\n"
        "}\n"
    )
    command = ["nginx", "-p", str(directory), "-c", str(directory / "nginx.conf"), "-e", "stderr"]
    return running(NginxEndpoint("nginx", command, port, directory, fault))


@dataclass
class SluiceEndpoint(Endpoint):
    """`sluice serve`, which logs JSON Lines."""

    def requests(self) -> list[Request]:
        ended = []
        for line in (self.directory / "messages").read_text().splitlines():
            if line.startswith("{") and (entry := json.loads(line))["event"] == "ended":
                ended.append(Request(bytes=entry["bytes"]))
        return ended

    def stored_bytes(self) -> int:
        """The bytes in all recordings, complete or not."""
        files = (self.directory / "store").iterdir()
        return sum(file.stat().st_size for file in files if file.is_file() and not file.name.startswith("."))


def sluice(name: str, *options: str):  # type: ignore[no-untyped-def]
    """Runs `sluice serve`, which stores into memory unless it discards."""

    def start(directory: Path, fault: dict[str, float]) -> contextlib.AbstractContextManager[Endpoint]:
        port = free_port()
        where = [] if "--discard" in options else ["--directory", str(directory / "store")]
        limit = ["--max-uploads", str(int(fault["uploads"]))] if "uploads" in fault else []
        if "other_token" in fault:
            directory.mkdir(parents=True)
            (directory / "tokens").write_text(f"{'0' * 64}\n")
            limit += ["--token-file", str(directory / "tokens")]
        command = [str(SLUICE), "serve", "--listen", f"127.0.0.1:{port}", *where, *limit, *options]
        return running(SluiceEndpoint(name, command, port, directory, fault))

    return start
