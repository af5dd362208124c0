"""The microphones of the benchmarks: real ALSA capture devices on a machine without a sound card."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

from benchmarks.common.harness import REPOSITORY, BenchmarkError, Process, need
from benchmarks.live import testmic_signal

SYSTEM_CONFIGURATION = "/usr/share/alsa/alsa.conf"


@dataclass
class Located:
    """The position of recorded samples on the device's own time line."""

    first_frame: int  # the device frame of the first sample
    missing_frames: int  # absent between the first and the last


class Bed(Protocol):
    """A capture device that exists during a `with` block."""

    name: str
    device: str  # ALSA PCM name
    environment: dict[str, str]  # what a process needs to find it

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...

    def prepare_run(self, directory: Path, period_ms: int) -> None:
        """Resets the device for one contender. Its time begins when the contender starts to capture."""

    def capture_start_ns(self) -> int | None:
        """The time of the device's frame 0 in this run (CLOCK_MONOTONIC), or None if it is unknown."""

    def locate(self, body: bytes, frame_bytes: int) -> Located | None:
        """The position of the frames in `body`, or None if their sound does not identify them."""


class PulseBed:
    """A separate PulseAudio daemon with a null sink, whose monitor ALSA's `pulse` plugin captures in real time.

    It never overruns, and does not report when a frame was captured. It costs a process as much as the default device
    of a desktop.
    """

    name = "pulse"
    device = "mic"

    def __init__(self, directory: Path, rate: int, channels: int) -> None:
        self._directory = directory
        self._format = ["--raw", f"--rate={rate}", "--format=s16le", f"--channels={channels}"]
        self._sink = f"module-null-sink sink_name=mic rate={rate} format=s16le channels={channels}"
        self._socket = directory / "native"
        self._configuration = directory / "asound.conf"
        self._processes: list[Process] = []
        self.environment = {
            "ALSA_CONFIG_PATH": str(self._configuration),
            "PULSE_SERVER": f"unix:{self._socket}",
            "XDG_RUNTIME_DIR": str(directory),
        }

    def __enter__(self) -> Self:
        need("pulseaudio", "pacat")
        self._configuration.write_text(
            f'<{SYSTEM_CONFIGURATION}>\npcm.mic {{ type pulse device "mic.monitor" server "unix:{self._socket}" }}\n'
        )
        log = os.open(self._directory / "pulseaudio.log", os.O_WRONLY | os.O_CREAT)
        environment = {**self.environment, "HOME": str(self._directory)}
        native = f"module-native-protocol-unix socket={self._socket} auth-anonymous=1"
        try:
            daemon = ["pulseaudio", "-n", "--daemonize=no", "--exit-idle-time=-1", "--use-pid-file=no"]
            # The socket is created last, so the sink exists when the socket exists.
            self._processes.append(Process([*daemon, "-L", self._sink, "-L", native], environment, stderr=log))
            self._await_socket()
            # Play noise. The player's small buffer prevents the sink from rendering seconds of sound ahead at once.
            noise = os.open("/dev/urandom", os.O_RDONLY)
            player = ["pacat", *self._format, "--device=mic"]
            self._processes.append(Process(player, environment, stdin=noise, stderr=log))
            os.close(noise)
        except BaseException:
            self.__exit__()
            raise
        finally:
            os.close(log)
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            process.end(signal.SIGTERM)
        self._processes.clear()

    def _await_socket(self) -> None:
        deadline = time.monotonic() + 15
        while not self._socket.exists():
            # Poll, because the daemon does not report when it listens. The only event is the end of the process.
            if self._processes[0].wait(0.05) or time.monotonic() > deadline:
                log = (self._directory / "pulseaudio.log").read_text(errors="replace")
                raise BenchmarkError(f"pulseaudio does not start:\n{log}")

    def prepare_run(self, directory: Path, period_ms: int) -> None:
        pass

    def capture_start_ns(self) -> int | None:
        return None

    def locate(self, body: bytes, frame_bytes: int) -> Located | None:
        return None


class TestMicrophoneBed:
    """The ALSA plugin of Tests/TestDevice: a bounded ring on the monotonic clock, whose noise identifies each frame.

    Each contender has a new one. Its smallest period is the period that the contender should use, because ffmpeg always
    uses the smallest. Frames arrive in whole periods, as from USB. If they arrived one by one, a reader would get the
    few frames that arrived while it was busy, and then wait for a whole period.
    """

    name = "testmic"
    device = "mic"
    # The size that arecord and GStreamer request here. USB microphones commonly support it.
    BUFFER_SECONDS = 0.5

    def __init__(self, directory: Path, rate: int, channels: int) -> None:
        self._tools = directory
        self._rate = rate
        self._channels = channels
        self._control = directory / "control"
        self.environment: dict[str, str] = {}

    def __enter__(self) -> Self:
        need("cc")
        # Built here without the Swift runtime, because it is loaded into rivals whose memory is measured.
        script = REPOSITORY / "Tests" / "TestDevice" / "build.sh"
        with open(self._tools / "build.log", "wb") as log:
            build = Process(["sh", str(script), str(self._tools)], stdout=log.fileno(), stderr=log.fileno())
        try:
            if not build.wait(120) or build.exit is None or build.exit.code != 0:
                raise BenchmarkError(f"{script} failed: {(self._tools / 'build.log').read_text(errors='replace')}")
        finally:
            build.end()
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def prepare_run(self, directory: Path, period_ms: int) -> None:
        configuration = directory / "asound.conf"
        self._control = directory / "microphone.control"
        configuration.write_text(
            f"<{SYSTEM_CONFIGURATION}>\n"
            f'pcm_type.testmic {{ lib "{self._tools}/libTestDevice.so" }}\n'
            f'pcm.{self.device} {{ type testmic control "{self._control}" batch true '
            f"buffer_max {self._frames(self.BUFFER_SECONDS)} period_min {self._frames(period_ms / 1000)} "
            f"rates [ {self._rate} ] channels [ {self._channels} ] formats [ S16_LE ] }}\n"
        )
        self.environment = {"ALSA_CONFIG_PATH": str(configuration)}

    def _frames(self, seconds: float) -> int:
        return round(seconds * self._rate)

    def capture_start_ns(self) -> int:
        return int(self.truth()["t0_ns"])

    def truth(self) -> dict[str, int]:
        """The device's own figures of this run: `t0_ns`, `next_frame`, `frames_lost`, `xruns`, …"""
        show = subprocess.run(
            [str(self._tools / "testmic-control"), str(self._control), "show"],
            capture_output=True,
            timeout=10,
            check=True,
        )
        return dict(json.loads(show.stdout))

    def locate(self, body: bytes, frame_bytes: int) -> Located | None:
        found = testmic_signal.read_runs(body, self._channels)
        if not found.runs:
            raise BenchmarkError(f"none of the {len(body)} bytes at the server came from the microphone")
        return Located(found.runs[0].first_frame - found.runs[0].offset // frame_bytes, found.missing_frames)
