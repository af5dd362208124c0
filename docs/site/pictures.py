#!/usr/bin/env python3
"""Makes the pictures of README.md from a real run, and fails if they would not show what the text says.

    pictures.py SLUICE DIRECTORY

Two hundred live streams send to a `sluice serve` on this machine. The server is killed in the middle and starts again
two seconds later. Chromium draws the report of that load test. The run must have one outage, and no byte may be lost.
"""

import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STREAMS, SECONDS = 200, 30
KILLED_AFTER, AWAY = 12, 2
#: In pixels. The page is cut behind its first plots.
WIDTH, HEIGHT = 1000, 880
#: Of a PNG that shows something, in bytes.
LEAST_SIZE = 20_000


class Server:
    """`sluice serve` on one port, started again at will."""

    def __init__(self, sluice: Path, directory: Path):
        self.command = [str(sluice), "serve", "--directory", str(directory), "--max-uploads", "1000", "--listen"]
        self.address = "127.0.0.1:0"
        self.process: subprocess.Popen | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(
            [*self.command, self.address], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr
        for line in self.process.stderr:
            if found := re.match(r"listening on (?:http://)?([\d.]+:\d+)", line):
                self.address = found[1]
                return
        raise SystemExit("sluice serve does not listen")

    def end(self, how: signal.Signals) -> None:
        assert self.process
        self.process.send_signal(how)
        self.process.wait()


def load(sluice: Path, server: Server, page: Path, report: Path) -> None:
    command = [
        *(str(sluice), "load", f"http://{server.address}/", "-n", str(STREAMS), "-d", f"{SECONDS}s", "--ramp", "5s"),
        *("--retry-ceiling", "1s", "--progress", "none", "--html", str(page), "--json", str(report)),
    ]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as run:
        time.sleep(KILLED_AFTER)  # the time axis of the picture, not a wait for anything
        server.end(signal.SIGKILL)
        time.sleep(AWAY)
        server.start()
        run.wait()


def check(report: dict) -> None:
    totals = report["totals"]
    if len(totals["outages"]) != 1 or totals["bytes"]["lost"] != 0 or totals["streams"]["failed"] != 0:
        raise SystemExit(f"the run does not show one outage without a loss: {json.dumps(totals)}")


def draw(page: Path, picture: Path, profile: Path) -> None:
    subprocess.run(
        ["timeout", "-s", "KILL", "120", "chromium", "--headless=new", "--no-sandbox", "--disable-gpu",
         "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars", f"--user-data-dir={profile}",
         f"--window-size={WIDTH},{HEIGHT}", f"--screenshot={picture}", page.as_uri()],
        check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if picture.stat().st_size < LEAST_SIZE:
        raise SystemExit(f"{picture} shows nothing")


def main() -> None:
    sluice, directory = Path(sys.argv[1]), Path(sys.argv[2])
    with tempfile.TemporaryDirectory(dir="/dev/shm") as scratch:
        work = Path(scratch)
        (work / "store").mkdir()
        server = Server(sluice, work / "store")
        server.start()
        try:
            load(sluice, server, work / "page.html", work / "report.json")
        finally:
            server.end(signal.SIGTERM)
        check(json.loads((work / "report.json").read_text()))
        draw(work / "page.html", work / "load-report.png", work / "profile")
        directory.mkdir(exist_ok=True)
        shutil.copy(work / "load-report.png", directory)
    print(f"{directory}/load-report.png: {STREAMS} streams, one outage of {AWAY} s, nothing lost")


main()
