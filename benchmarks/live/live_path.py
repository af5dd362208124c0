"""Measures the cost and the delay of the live path, for one contender with one microphone and one neutral server."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.common.harness import BenchmarkError, MemorySampler, Pipeline, Process
from benchmarks.common.instruments import Instrument, Receiver
from benchmarks.common.recording import delays, joined, percentile, read_requests
from benchmarks.live.beds import Bed
from benchmarks.live.contenders import Capture, Contender

# The time after the first byte at the server that is not measured, because the programs still reach their pace.
SETTLING = 2.0
# The time limit for a contender's first byte at the server.
PATIENCE = 20.0


@dataclass
class Figures:
    """The results of one run. A value is None if it cannot be measured on this bed."""

    cpu_s_per_min: float  # steady state, user + system, all processes of the contender
    cpu_start_s: float  # from exec until it was settled
    rss_mib: float  # peak of the sum over its processes
    pss_mib: float
    delay_median_ms: float
    delay_p99_ms: float
    delay_maximum_ms: float
    delay_is_absolute: bool  # if false, delays are relative to the fastest frame of the run
    arrivals_per_s: float  # recv calls of the server that returned body bytes
    missing_ms: float | None  # audio that the body lacks between its first and its last sample
    wakeups_per_s: float  # how often its threads waited, by the kernel's count (getrusage(2), ru_nvcsw)
    syscalls_per_s: float | None = None  # from a separate run under strace
    server_cpu_s_per_min: float | None = None  # if the server is measured, too

    def json(self) -> dict[str, object]:
        return asdict(self)


class Run:
    """A contender that streams from a bed to a separate receiver during a `with` block."""

    def __init__(
        self,
        contender: Contender,
        bed: Bed,
        directory: Path,
        rate: int,
        channels: int,
        receiver: Callable[[Path], Instrument] = Receiver,
    ) -> None:
        """`receiver` stores the arriving bytes and their times in a directory."""
        self.store = directory / "arrivals"
        self.store.mkdir(parents=True)
        self.bed = bed
        bed.prepare_run(directory, contender.period_ms)
        self.receiver = receiver(self.store)
        self.receiver.start()
        url = f"http://127.0.0.1:{self.receiver.port}/stream"
        self.capture = Capture(bed.device, url, rate, channels, 2 * channels)
        self.contender = contender
        try:
            self.pipeline = Pipeline(contender.commands(self.capture), bed.environment, directory)
        except BaseException:
            self.receiver.stop()
            raise

    def __enter__(self) -> Run:
        try:
            self.receiver.wait_for("first byte", PATIENCE)
            self.run_for(SETTLING)
        except BaseException as error:
            self.__exit__()
            if isinstance(error, BenchmarkError):
                raise BenchmarkError(f"{self.contender.title}: {error}; it said: {self.pipeline.said()}") from None
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.pipeline.kill()
        self.receiver.stop()

    def run_for(self, seconds: float) -> None:
        """Lets it stream for this time. A contender that ends meanwhile has failed."""
        deadline = time.monotonic() + seconds
        if any([member.wait(deadline - time.monotonic()) for member in self.pipeline.members]):
            raise BenchmarkError(f"{self.contender.title} ended by itself; it said: {self.pipeline.said()}")


def measure(
    contender: Contender,
    bed: Bed,
    directory: Path,
    seconds: float,
    rate: int,
    channels: int,
    receiver: Callable[[Path], Instrument] = Receiver,
    server: Process | None = None,
) -> Figures:
    """Measures CPU, memory and delay during `seconds` of steady streaming, and the CPU time of `server`."""
    with Run(contender, bed, directory, rate, channels, receiver) as run:
        memory = MemorySampler(run.pipeline)
        server_before = server.cpu_ns() if server else 0
        waits_before = wait_count(run.pipeline)
        cpu_before, before = run.pipeline.cpu_ns(), time.monotonic_ns()
        run.run_for(seconds)
        cpu_after, after = run.pipeline.cpu_ns(), time.monotonic_ns()
        waits_after = wait_count(run.pipeline)
        server_after = server.cpu_ns() if server else 0
        memory.finish()
        run.pipeline.interrupt()
        started = bed.capture_start_ns()
    stream = joined(read_requests(run.store))
    frame_bytes, first_ns = run.capture.frame_bytes, 0.0 if started is None else float(started)
    found = bed.locate(stream.body, frame_bytes)
    if found is not None:
        first_ns += found.first_frame * 1e9 / rate
    late = delays(stream, frame_bytes, rate, first_ns, skip_ns=SETTLING * 1e9)
    if not late:
        raise BenchmarkError(f"{contender.title}: only {len(stream.body)} bytes at the server")
    # If the device does not report its start, only the delay relative to the fastest frame is known.
    floor = late[0] if started is None else 0.0
    window = [arrival for arrival in stream.arrivals if before <= arrival.ns < after]
    return Figures(
        cpu_s_per_min=(cpu_after - cpu_before) / (after - before) * 60,
        cpu_start_s=cpu_before / 1e9,
        rss_mib=memory.peak_rss / 2**20,
        pss_mib=memory.peak_pss / 2**20,
        delay_median_ms=(percentile(late, 0.5) - floor) * 1e3,
        delay_p99_ms=(percentile(late, 0.99) - floor) * 1e3,
        delay_maximum_ms=(late[-1] - floor) * 1e3,
        delay_is_absolute=started is not None,
        arrivals_per_s=len(window) / ((after - before) / 1e9),
        missing_ms=None if found is None else found.missing_frames * 1e3 / rate,
        wakeups_per_s=(waits_after - waits_before) / ((after - before) / 1e9),
        server_cpu_s_per_min=(server_after - server_before) / (after - before) * 60 if server else None,
    )


def wait_count(pipeline: Pipeline) -> int:
    """How often the running threads of its members have waited so far."""
    count = 0
    for member in pipeline.members:
        for status in Path(f"/proc/{member.pid}/task").glob("*/status"):
            # "voluntary_ctxt_switches:	150"
            found = re.search(r"^voluntary_ctxt_switches:\s+(\d+)", status.read_text(), re.MULTILINE)
            count += int(found[1]) if found else 0
    return count


def count_syscalls(contender: Contender, bed: Bed, directory: Path, seconds: float, rate: int, channels: int) -> float:
    """The system calls of all threads per second. strace(1) is attached when the stream has settled."""
    summary = directory / "strace"
    with Run(contender, bed, directory, rate, channels) as run:
        attach = [word for member in run.pipeline.members for word in ("-p", str(member.pid))]
        with open(directory / "strace.stderr", "wb") as messages:
            strace = Process(["strace", "-f", "-c", "-o", str(summary), *attach], stderr=messages.fileno())
        try:
            _await_attached(strace, directory / "strace.stderr", len(run.pipeline.members))
            before = time.monotonic()
            run.run_for(seconds)
            strace.send(signal.SIGINT)
            if not strace.wait(5):
                raise BenchmarkError("strace does not end")
            passed = time.monotonic() - before
        finally:
            strace.end(signal.SIGKILL)
        run.pipeline.interrupt()
    # "100.00    0.012345          12       987        65 total"
    total = re.search(r"^\s*100\.00\s+\S+\s+(?:\d+\s+)?(\d+)\s+(?:\d+\s+)?total$", summary.read_text(), re.MULTILINE)
    if not total:
        raise BenchmarkError(f"strace gave no summary: {summary.read_text()[:400]!r}")
    return int(total[1]) / passed


def _await_attached(strace: Process, messages: Path, processes: int) -> None:
    """Waits until strace has printed "Process N attached" to standard error for each process."""
    deadline = time.monotonic() + 10
    while messages.read_text(errors="replace").count("attached") < processes:
        if strace.wait(0.02) or time.monotonic() > deadline:
            raise BenchmarkError(f"strace cannot attach: {messages.read_text(errors='replace').strip()}")
