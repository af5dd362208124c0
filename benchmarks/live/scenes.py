"""The faults of the fault table, with their effects on a contender, its microphone and its server."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.common.harness import BenchmarkError, Pipeline
from benchmarks.common.instruments import Receiver
from benchmarks.live.beds import TestMicrophoneBed
from benchmarks.live.contenders import Capture, Contender

RATE, CHANNELS = 48_000, 1
# Steady streaming before the fault, so long that every contender has reached its pace.
BEFORE = 3.0


class Scene:
    """One contender with its microphone and its server, to which a fault happens."""

    def __init__(self, contender: Contender, bed: TestMicrophoneBed, directory: Path) -> None:
        self.contender = contender
        self.bed = bed
        self.store = directory / "store"
        self.store.mkdir(parents=True)
        self._directory = directory
        bed.prepare_run(directory, contender.period_ms)
        self.receiver = Receiver(self.store, bounded=True)
        self._pipeline: Pipeline | None = None

    @property
    def pipeline(self) -> Pipeline:
        if self._pipeline is None:
            raise BenchmarkError("the contender has not been started")
        return self._pipeline

    def said(self) -> str:
        """The contender's output, which is empty before it has been started."""
        return self._pipeline.said() if self._pipeline else ""

    def start_contender(self) -> None:
        url = f"http://127.0.0.1:{self.receiver.port}/stream"
        capture = Capture(self.bed.device, url, RATE, CHANNELS, 2 * CHANNELS)
        self._pipeline = Pipeline(self.contender.commands(capture), self.bed.environment, self._directory)

    def start_streaming(self) -> None:
        """Starts the server, then the contender, and waits a few seconds without a fault."""
        self.receiver.start()
        self.start_contender()
        self.receiver.wait_for("first byte", 20)
        self.pass_time(BEFORE)

    def pass_time(self, seconds: float) -> None:
        """Lets time pass, whether the contender still runs or not. This waits for no event."""
        time.sleep(seconds)

    def close(self) -> None:
        if self._pipeline:
            self._pipeline.kill()
        self.receiver.stop()


def server_killed(scene: Scene) -> None:
    scene.start_streaming()
    scene.receiver.kill()
    scene.pass_time(3)
    scene.receiver.start()


def server_stalls(scene: Scene) -> None:
    scene.start_streaming()
    scene.receiver.order("stall 5")
    scene.pass_time(5)


def stalled_server_killed(scene: Scene) -> None:
    scene.start_streaming()
    scene.receiver.order("stall 60")
    scene.pass_time(5)
    scene.receiver.kill()
    scene.pass_time(3)
    scene.receiver.start()


def streamer_stopped(scene: Scene) -> None:
    scene.start_streaming()
    scene.pipeline.send(signal.SIGSTOP)
    scene.pass_time(3)
    scene.pipeline.send(signal.SIGCONT)


def server_late(scene: Scene) -> None:
    scene.start_contender()
    scene.pass_time(5)
    scene.receiver.start()


def connection_reset(scene: Scene) -> None:
    scene.start_streaming()
    scene.receiver.order("reset")


def server_refuses(scene: Scene) -> None:
    scene.start_streaming()
    scene.receiver.order("refuse 5")
    scene.pass_time(5)


FAULTS: dict[str, tuple[str, Callable[[Scene], None]]] = {
    "kill": ("server killed (SIGKILL), restarted after 3 s", server_killed),
    "stall": ("server reads nothing for 5 s", server_stalls),
    "stall-kill": ("server reads nothing for 5 s, is killed, and restarted after 3 s", stalled_server_killed),
    "stop": ("streaming process stopped (SIGSTOP) for 3 s", streamer_stopped),
    "late": ("server starts 5 s late", server_late),
    "reset": ("TCP connection reset", connection_reset),
    "refuse": ("503 for 5 s", server_refuses),
}
