"""Describes the machine of a measurement, and the versions of the measured programs."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from pathlib import Path

from benchmarks.common import environment
from benchmarks.common.harness import SLUICE


def _first_line(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (done.stdout or done.stderr).strip().split("\n")[0]


def machine() -> dict[str, str]:
    """The properties of the machine, and the versions of the programs."""
    memory = re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())
    processor = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    release = re.search(r'PRETTY_NAME="(.+)"', Path("/etc/os-release").read_text())
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "processor": f"{os.cpu_count()} × {processor[1] if processor else platform.machine()}",
        "memory": f"{int(memory[1]) / 2**20:.0f} GiB" if memory else "?",
        "kernel": platform.release(),
        "system": release[1] if release else platform.platform(),
        "load": " ".join(f"{load:.2f}" for load in os.getloadavg()),
        "sluice": _first_line(str(SLUICE), "--version") or "not built",
        "arecord": _first_line("arecord", "--version").split(" by ")[0].removeprefix("arecord: "),
        "curl": " ".join(_first_line("curl", "--version").split(" ")[1:2]),
        "ffmpeg": " ".join(_first_line("ffmpeg", "-version").split(" ")[2:3]),
        "nginx": _first_line("nginx", "-v").rpartition("/")[2],
        "h2load": _first_line("h2load", "--version").rpartition("/")[2],
        "wrk": " ".join(_first_line("wrk", "-v").split(" ")[1:2]),
        "darkice": " ".join(_first_line("darkice", "-h").split(" ")[1:2]),
        **environment.versions(),
        "GStreamer": _first_line("gst-launch-1.0", "--version").removeprefix("gst-launch-1.0 version "),
    }
