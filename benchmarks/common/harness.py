"""Starts, watches, measures and ends the processes of a benchmark, whatever they do.

Every process is a direct child, started without a shell, ended by its own id, and reaped with wait4(2), which returns
the kernel's figures. All waits are for events (a pidfd, a line), and have a time limit.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
SLUICE = REPOSITORY / ".build" / "release" / "sluice"
MEMORY_FILE_SYSTEM = Path("/dev/shm")


class BenchmarkError(Exception):
    """A requirement of a run is missing or did not happen in time. The message names it and the remedy."""


@dataclass
class Exit:
    """How a process ended. `code` is negative for a signal, as in subprocess."""

    command: str
    code: int
    cpu_ns: int
    at_ns: int


class Process:
    """A child process, with a pidfd for waiting and signals."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        stdin: int | None = subprocess.DEVNULL,
        stdout: int | None = subprocess.DEVNULL,
        stderr: int | None = None,
        group: int | None = None,
    ) -> None:
        self.name = Path(command[0]).name
        self.begun_ns = time.monotonic_ns()
        try:
            self._popen = subprocess.Popen(
                list(command),
                env={**os.environ, **(environment or {})},
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                # A separate group, so that Ctrl-C at the terminal reaches only the benchmark, which ends its children.
                process_group=group or 0,
                # Members of a pipeline inherit no other files of the parent than those above.
                close_fds=True,
            )
        except FileNotFoundError:
            raise BenchmarkError(f"no program {command[0]!r} on this machine") from None
        self.pid = self._popen.pid
        self._pidfd = os.pidfd_open(self.pid)
        self.exit: Exit | None = None

    @property
    def pipes(self) -> subprocess.Popen[bytes]:
        """The ends of the pipes that were requested at the start."""
        return self._popen

    def cpu_ns(self) -> int:
        """The CPU time, user and system, that all its threads have used so far, including ended ones."""
        if self.exit:
            return self.exit.cpu_ns
        try:
            # The CPU clock of a process, as in clock_getcpuclockid(3), for which Python has no binding.
            return time.clock_gettime_ns((~self.pid << 3) | 2)
        except OSError:
            self.wait(0)
            return self.exit.cpu_ns if self.exit else 0

    def wait(self, seconds: float) -> bool:
        """Waits at most this long for the process to end. Returns whether it has ended."""
        if self.exit:
            return True
        if not select.select([self._pidfd], [], [], max(0.0, seconds))[0]:
            return False
        _, status, usage = os.wait4(self.pid, 0)
        ended = time.monotonic_ns()
        # Popen must not wait for a reaped pid, which could belong to another process by then.
        self._popen.returncode = code = os.waitstatus_to_exitcode(status)
        self.exit = Exit(self.name, code, round((usage.ru_utime + usage.ru_stime) * 1e9), ended)
        os.close(self._pidfd)
        return True

    def send(self, what: signal.Signals) -> None:
        """Sends a signal if the process still runs. The pidfd ensures that no other process receives it."""
        if not self.exit:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, what)

    def end(self, politely: signal.Signals = signal.SIGTERM, seconds: float = 5) -> None:
        """Sends `politely`, waits, and then kills the process if necessary."""
        self.send(politely)
        if not self.wait(seconds):
            self.send(signal.SIGKILL)
            self.send(signal.SIGCONT)
            if not self.wait(seconds):
                raise BenchmarkError(f"{self.name} (pid {self.pid}) does not end by SIGKILL")


class Pipeline:
    """Processes that are joined by pipes in one process group, as a shell starts them, and measured together."""

    def __init__(
        self,
        commands: Sequence[Sequence[str]],
        environment: Mapping[str, str],
        directory: Path,
        stdin: int = subprocess.DEVNULL,
    ) -> None:
        self.members: list[Process] = []
        self.messages = [directory / f"{number}.stderr" for number in range(len(commands))]
        self.output = directory / "stdout"
        self.started_ns = time.monotonic_ns()
        upstream: int | None = None
        for number, command in enumerate(commands):
            last = number == len(commands) - 1
            downstream: tuple[int, int] | None = None if last else os.pipe()
            with open(self.messages[number], "wb") as messages, open(self.output, "ab") as output:
                member = Process(
                    command,
                    environment,
                    stdin=stdin if upstream is None else upstream,
                    stdout=output.fileno() if downstream is None else downstream[1],
                    stderr=messages.fileno(),
                    group=self.members[0].pid if self.members else None,
                )
            self.members.append(member)
            if upstream is not None:
                os.close(upstream)
            if downstream is not None:
                os.close(downstream[1])
                upstream = downstream[0]

    def cpu_ns(self) -> int:
        """The CPU time that all members have used so far."""
        return sum(member.cpu_ns() for member in self.members)

    def send(self, what: signal.Signals) -> None:
        for member in self.members:
            member.send(what)

    def wait(self, seconds: float) -> bool:
        """Waits at most this long for all members to end. Returns whether they have ended."""
        deadline = time.monotonic() + seconds
        return all([member.wait(deadline - time.monotonic()) for member in self.members])

    def ended_by_itself(self) -> bool:
        """Whether any member has ended already. Call it before the pipeline is stopped."""
        return any([member.wait(0) for member in self.members])

    def interrupt(self, seconds: float = 5) -> None:
        """Sends SIGINT to the first member, as Ctrl-C does. The others see the end of their input. Then kills them."""
        self.members[0].send(signal.SIGINT)
        if not self.wait(seconds):
            self.send(signal.SIGINT)
        if not self.wait(1):
            self.kill()

    def kill(self) -> None:
        for member in self.members:
            member.end(signal.SIGKILL)

    def said(self) -> str:
        """Everything on standard error and standard output."""
        paths = [path for path in [*self.messages, self.output] if path.exists()]
        return "\n".join(path.read_text(errors="replace") for path in paths).strip()


class MemorySampler:
    """The peak memory of a pipeline's members together. It is sampled from outside, so it costs the members nothing.

    wait4's ru_maxrss is unsuitable, because it begins with the pages of the Python process that was forked.
    """

    PERIOD = 0.2

    def __init__(self, pipeline: Pipeline) -> None:
        self.peak_rss = 0
        self.peak_pss = 0
        self._pipeline = pipeline
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Takes a last sample. Call it before the pipeline is stopped."""
        self._stop.set()
        self._thread.join()
        self._sample()

    def _run(self) -> None:
        while not self._stop.wait(self.PERIOD):
            self._sample()

    def _sample(self) -> None:
        rss = pss = 0
        for member in self._pipeline.members:
            with contextlib.suppress(OSError, ValueError):
                text = Path(f"/proc/{member.pid}/smaps_rollup").read_text()
                # KiB each: "Rss:   4321 kB".
                amounts = {words[0]: int(words[1]) for line in text.splitlines()[1:] if (words := line.split())}
                rss += amounts.get("Rss:", 0) * 1024
                pss += amounts.get("Pss:", 0) * 1024
        self.peak_rss = max(self.peak_rss, rss)
        self.peak_pss = max(self.peak_pss, pss)


def free_port() -> int:
    """An unused TCP port on 127.0.0.1.

    It is below the range of ports for outgoing connections. Otherwise a client that retries while the server is down
    could get the server's port as its own, and TCP would connect it to itself.
    """
    for port in random.sample(range(10_000, 30_000), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise BenchmarkError("no free TCP port between 10000 and 30000 on 127.0.0.1")


@contextlib.contextmanager
def scratch_directory(parent: Path | None = None) -> Iterator[Path]:
    """A directory that is always removed afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="sluice-bench-", dir=parent))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def free_bytes(directory: Path) -> int:
    """The number of bytes that a process may still write there."""
    room = os.statvfs(directory)
    return room.f_bavail * room.f_frsize


def in_memory(size: int = 0) -> Path | None:
    """A parent for `scratch_directory` whose files are in memory, so that the speed of the disk does not matter. None,
    for the disk, if there is no such place or it lacks space for `size` bytes."""
    there = MEMORY_FILE_SYSTEM.is_dir() and free_bytes(MEMORY_FILE_SYSTEM) > size
    return MEMORY_FILE_SYSTEM if there else None


def need(*programs: str) -> None:
    """Raises an error if programs are missing, with the Debian packages that contain them."""
    packages = {
        "arecord": "alsa-utils",
        "curl": "curl",
        "ffmpeg": "ffmpeg",
        "gst-launch-1.0": "gstreamer1.0-tools gstreamer1.0-plugins-base gstreamer1.0-plugins-bad gstreamer1.0-alsa",
        "strace": "strace",
        "nginx": "nginx-extras",
        "pulseaudio": "pulseaudio pulseaudio-utils libasound2-plugins",
        "pacat": "pulseaudio-utils",
    }
    missing = [program for program in programs if not shutil.which(program)]
    if missing:
        names = " ".join(sorted({packages.get(program, program) for program in missing}))
        raise BenchmarkError(f"missing: {', '.join(missing)}; apt-get install {names}")


def need_built(program: Path, target: str) -> None:
    """Raises an error if a program of ours does not exist, with the target that builds it."""
    if not program.exists():
        raise BenchmarkError(f"{program} does not exist. Run make {target}.")


def end_on_signals() -> None:
    """Lets SIGTERM end a benchmark by an exception, as Ctrl-C does, so that every `finally` ends its processes."""

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, leave)
    # A crashing contender must not leave core files on a small machine.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
