"""How results are shown: tables for the terminal and for docs/benchmarks.md, ratios, and the machine's name."""

from __future__ import annotations

import os
import platform
import re
import statistics
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import environment
from benchmarks.common.harness import REPOSITORY, SLUICE

DOCUMENT = REPOSITORY / "docs" / "benchmarks.md"


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns aligned with spaces: the first to the left, figures to the right."""
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    for line in lines:
        cells = [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:]))]
        print("  ".join(cells).rstrip())
    print()


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The same for Markdown."""
    rule = ["---"] + ["---:"] * (len(header) - 1)
    lines = [[cell.replace("|", r"\|") for cell in line] for line in [header, rule, *rows]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def median_and_spread(values: Sequence[float], digits: int = 2) -> str:
    """The median, and the least and the greatest where they differ."""
    middle = f"{statistics.median(values):.{digits}f}"
    least, most = (f"{value:.{digits}f}" for value in (min(values), max(values)))
    return middle if least == most else f"{middle} ({least}–{most})"


def _first_line(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except OSError:
        return ""
    return (done.stdout or done.stderr).strip().split("\n")[0]


def machine() -> dict[str, str]:
    """What the figures were measured on, and with what."""
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


def write_section(title: str, body: str) -> None:
    """Puts `body` under the heading `title` of docs/benchmarks.md, in place of what was there."""
    text = DOCUMENT.read_text() if DOCUMENT.exists() else "# Benchmarks\n"
    about = "; ".join(f"{name} {value}" for name, value in machine().items() if value)
    section = f"## {title}\n\n{body}\n\nMeasured on: {about}.\n"
    pattern = re.compile(rf"^## {re.escape(title)}\n.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
    if pattern.search(text):
        text = pattern.sub(lambda _: section + "\n", text)
    else:
        text = text.rstrip() + "\n\n" + section
    DOCUMENT.parent.mkdir(exist_ok=True)
    DOCUMENT.write_text(text.rstrip() + "\n")
    print(f"written: {DOCUMENT.relative_to(REPOSITORY)}, section {title!r}")
