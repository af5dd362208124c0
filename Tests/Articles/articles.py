#!/usr/bin/env python3
"""Compiles the code of Apple's articles and of the talk with one changed import line, and runs it against `sluice serve`.

    articles.py SLUICE [SECONDS]

SLUICE is the command, SECONDS how long timestamps are streamed (60). The texts are read from `../shared/reference`
beside the repository. Where that folder is missing, there is nothing to test. Nothing of the texts is kept: the programs
are made below `.build/articles`. The other `.swift` files in this folder have what the texts leave out.
"""

import http.server
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TEXTS = ROOT.parent / "shared" / "reference"
WORK = ROOT / ".build" / "articles"
TIME_LIMIT = 60
# The address that the article's code names.
STREAM_ADDRESS = "127.0.0.1:12345"

PACKAGE = """// swift-tools-version: 6.0
import PackageDescription

let package = Package(
  name: "articles",
  dependencies: [.package(name: "sluice", path: "%s")],
  targets: ["stream", "pausing", "talk"].map {
    .executableTarget(name: $0, dependencies: [.product(name: "FoundationUploads", package: "sluice")])
  },
  swiftLanguageModes: [.v5]
)
"""


def fenced(name: str) -> dict[str, str]:
    """The listings of an article, by number."""
    text = (TEXTS / name).read_text()
    return {str(n): code for n, code in enumerate(re.findall(r"```(?:swift)?\n(.*?)```", text, re.S), 1)}


def talk() -> dict[str, str]:
    """The listings of the talk, by time. The text has each on one line: the line ends are put back."""
    text = next(TEXTS.glob("*talk.txt")).read_text()
    listings = {}
    for stamp, line in re.findall(r"^(\d+:\d\d) - [^\n]*\n((?:let|do|import|protocol|//)[^\n]*)", text, re.M):
        code = re.sub(r"(// (?:Download|Upload) cannot be resumed)", r"\n\1\n", line)
        code = re.sub(r" (let |guard |return|\} catch|\}|\w+Task\.resume\(\))", r"\n\1", code)
        # What belongs to a statement that has begun.
        code = re.sub(r"(guard|if)\n(let )", r"\1 \2", code)
        code = re.sub(r"\{\n(\} catch)", r"{ \1", code)
        listings[stamp] = re.sub(r"(catch)\n(let )", r"\1 \2", code)
    return listings


def wait_for(what, find):
    """Asks until `find` returns something: files and logs have nothing else to wait on."""
    end = time.monotonic() + TIME_LIMIT
    while time.monotonic() < end:
        if found := find():
            return found
        time.sleep(0.02)
    raise SystemExit(f"{what} did not come within {TIME_LIMIT} s")


class Server:
    """`sluice serve` on one address and directory, which may be killed and started again."""

    def __init__(self, sluice: Path, name: str, address: str = "127.0.0.1:0"):
        self.sluice, self.address = sluice, address
        self.store = WORK / "stores" / name
        subprocess.run(["rm", "-rf", self.store], check=True)
        self.store.mkdir(parents=True)
        self.start()

    def start(self):
        log = WORK / "server.log"
        self.process = subprocess.Popen(
            [self.sluice, "serve", "--listen", self.address, "--directory", self.store, "--no-sidecars"],
            stdout=subprocess.DEVNULL, stderr=log.open("w"))
        def found():
            if self.process.poll() is not None:
                raise SystemExit(f"the server has not started: {log.read_text()}")
            return re.search(r"listening on (?:http://)?(\S+)", log.read_text())
        self.address = wait_for("the server", found)[1].rstrip(".,")

    def kill(self):
        self.process.kill()
        self.process.wait()

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def recordings(self) -> list[Path]:
        return sorted(p for p in self.store.iterdir() if not p.name.startswith(".") and not p.name.endswith(".part"))


class Downloads(http.server.BaseHTTPRequestHandler):
    """One resource with ranges and an ETag."""

    body = os.urandom(30_000_000)
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        start = 0
        match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if match and self.headers.get("If-Range") == '"one"':
            start = int(match[1])
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(self.body) - 1}/{len(self.body)}")
        else:
            self.send_response(200)
        for name, value in [("Accept-Ranges", "bytes"), ("ETag", '"one"'), ("Content-Length", len(self.body) - start)]:
            self.send_header(name, str(value))
        self.end_headers()
        try:
            self.wfile.write(self.body[start:])
        except OSError:
            self.close_connection = True

    def log_message(self, *_):
        pass


def make_programs():
    listings = {"pausing": fenced("pausing-and-resuming-uploads.md"), "stream": fenced("uploading-streams-of-data.md"), "talk": talk()}
    used = 0
    for name in ["Stream", "Pausing", "Talk"]:
        def listing(match):
            nonlocal used
            used += 1
            return listings[match[1]][match[2]]
        code = re.sub(r" *// LISTING (\S+) (\S+)", listing, (HERE / f"{name}.swift").read_text())
        target = WORK / "package" / "Sources" / name.lower() / "main.swift"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(code)
    (WORK / "package" / "Package.swift").write_text(PACKAGE % ROOT)
    print(f"{used} listings in three programs")
    # SwiftNIO's, a declaration of Apple's own, and what needs a background session.
    print("left out:", ", ".join(sorted(set(listings["talk"]) - set(re.findall(r"talk (\S+)", (HERE / "Talk.swift").read_text())))))
    subprocess.run(
        [os.environ.get("SWIFT", "swift"), "build", "--package-path", WORK / "package", "--scratch-path", WORK / "build"],
        check=True)


def run(name: str, *arguments, **options) -> subprocess.Popen:
    return subprocess.Popen([WORK / "build" / "debug" / name, *map(str, arguments)], text=True, **options)


def check(claim: str, holds: bool, details=""):
    print("ok  " if holds else "FAIL", claim, "" if holds else details)
    if not holds:
        raise SystemExit(1)


def test_stream(sluice: Path, seconds: int):
    server = Server(sluice, "stream", STREAM_ADDRESS)
    program = run("stream", seconds)
    time.sleep(seconds / 2)
    server.kill()
    time.sleep(1)
    server.start()
    status = program.wait(seconds + TIME_LIMIT)
    server.kill()
    check("the program of the article ends without an error", status == 0, status)
    check("the server has one recording", len(server.recordings()) == 1, server.recordings())
    lines = server.recordings()[0].read_bytes().decode().split("\r\n")
    check("it ends with a whole line", lines.pop() == "")
    times = [int(time.mktime(time.strptime(line[4:23], "%Y-%m-%d %H:%M:%S"))) for line in lines if line.startswith("*** ")]
    check(f"it has {seconds} timestamps", len(times) == len(lines) and abs(len(times) - seconds) <= 1, lines)
    gaps = [b - a for a, b in zip(times, times[1:])]
    # Date's description has whole seconds, and the timer may fire a little before or after one begins.
    check("one per second, across a restart of the server", all(0 <= gap <= 2 for gap in gaps) and
          abs(times[-1] - times[0] - (len(times) - 1)) <= 1, gaps)


def test_pausing(sluice: Path):
    film = WORK / "film"
    film.write_bytes(os.urandom(60_000_000))
    server = Server(sluice, "pausing")
    program = run("pausing", "pause", f"{server.url}/paused", film)
    check("an upload is paused and resumed", program.wait(TIME_LIMIT) == 0)
    check("the server has all of it", [p.read_bytes() for p in server.recordings()] == [film.read_bytes()])
    film.write_bytes(os.urandom(400_000_000))
    program = run("pausing", "recover", f"{server.url}/recovered", film, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    # The server's file is there a little before the client knows the upload's URL.
    next(line for line in program.stdout if line.startswith("offered"))
    server.kill()
    line = next(line for line in program.stdout if line.startswith("failed"))
    check("an upload whose server has gone fails with resume data", line == "failed with resume data: true\n", line)
    server.start()
    program.communicate("\n", TIME_LIMIT)
    check("it is recovered when the server is back", program.returncode == 0)
    check("the server has all of that", film.read_bytes() in [p.read_bytes() for p in server.recordings()])
    server.kill()


def test_talk(sluice: Path):
    film = WORK / "film"
    film.write_bytes(os.urandom(30_000_000))
    server = Server(sluice, "talk")
    downloads = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Downloads)
    threading.Thread(target=downloads.serve_forever, daemon=True).start()
    program = run("talk", server.url, f"http://127.0.0.1:{downloads.server_port}/film", film, stdout=subprocess.PIPE)
    output, _ = program.communicate(timeout=TIME_LIMIT)
    check("the talk's listings run to their end", program.returncode == 0 and "the end" in output, output)
    check("every download that was not paused has the whole resource", "downloaded" in output and all(
        line == f"downloaded {len(Downloads.body)}" for line in output.splitlines() if line.startswith("downloaded")), output)
    stored = [p.read_bytes() for p in server.recordings()]
    check("begun, resumed and awaited uploads are stored", stored.count(film.read_bytes()) == 3, [len(b) for b in stored])
    server.kill()


def main():
    if not TEXTS.is_dir():
        print(f"skipped: {TEXTS} is missing, which has the texts")
        return
    sluice = Path(sys.argv[1]).resolve()
    WORK.mkdir(parents=True, exist_ok=True)
    make_programs()
    test_pausing(sluice)
    test_talk(sluice)
    test_stream(sluice, int(sys.argv[2]) if len(sys.argv) > 2 else 60)


main()
