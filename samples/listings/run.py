#!/usr/bin/env python3
"""Runs the listings against `sluice serve`, and checks that the server stored what they sent.

    run.py TOOLS LISTINGS

TOOLS is the directory with sluice, testmic-control and libTestDevice.so, LISTINGS the one with the built listings.
`make listings` builds both.
"""

import hashlib
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TIME_LIMIT = 60


def wait_for(what, find):
    """Polls until `find` returns a value, because files and logs offer no event to wait for."""
    end = time.monotonic() + TIME_LIMIT
    while time.monotonic() < end:
        if found := find():
            return found
        time.sleep(0.02)
    raise SystemExit(f"{what} did not come within {TIME_LIMIT} s")


class Bed:
    """A server, a film, and a sound card."""

    def __init__(self, directory: Path, tools: Path, listings: Path):
        self.directory, self.listings = directory, listings
        self.store = directory / "store"
        self.store.mkdir()
        # Large enough to be paused half way.
        self.film = os.urandom(60_000_000)
        (directory / "film.mkv").write_bytes(self.film)
        control = directory / "microphone"
        subprocess.run([tools / "testmic-control", control, "show"], check=True, stdout=subprocess.DEVNULL)
        (directory / "asound.conf").write_text(
            f'</usr/share/alsa/alsa.conf>\npcm_type.testmic {{ lib "{tools}/libTestDevice.so" }}\n'
            "pcm.!hw { @args [ CARD ] @args.CARD { type string } type testmic "
            f'control "{control}" seed 1 }}\n')
        log = directory / "server.log"
        self.server = subprocess.Popen(
            [tools / "sluice", "serve", "--listen", "127.0.0.1:0", "--directory", self.store, "--allow-download"],
            stdout=subprocess.DEVNULL, stderr=log.open("w"))
        self.url = "http://" + wait_for("the server", lambda: re.search(r"listening on (?:http://)?(\S+)", log.read_text()))[1]

    def start(self, name: str) -> subprocess.Popen:
        environment = os.environ | {"ALSA_CONFIG_PATH": str(self.directory / "asound.conf")}
        return subprocess.Popen(
            [self.listings / name, f"{self.url}/{name}"], cwd=self.directory, env=environment,
            stdout=subprocess.PIPE, text=True)

    def stored(self, name: str) -> list[bytes]:
        """The contents of the files that the server has from a listing, complete or not."""
        return [path.read_bytes() for path in self.store.iterdir() if path.name.startswith(name) and path.is_file() and path.suffix != ".sidecar"]

    def completes(self, name: str):
        """An upload that ends by itself."""
        process = self.start(name)
        output = process.communicate(timeout=TIME_LIMIT)[0]
        assert process.returncode == 0, f"{name} ended with {process.returncode}"
        assert self.stored(name) == [self.film], f"{name} did not store the film"
        print(f"{name}: complete\n  " + output.strip().replace("\n", "\n  "))

    def downloads(self, name: str):
        """A download of the file that the first listing has uploaded."""
        stored = next(path.name for path in self.store.iterdir() if path.name.startswith("upload-file") and path.suffix != ".sidecar")
        directory = self.directory / f"downloads of {name}"
        directory.mkdir()
        process = subprocess.run([self.listings / name, f"{self.url}/{stored}"], cwd=directory, timeout=TIME_LIMIT,
                                 capture_output=True, text=True)
        assert process.returncode == 0, f"{name} ended with {process.returncode}"
        assert (directory / "film.mkv").read_bytes() == self.film, f"{name} did not download the film"
        print(f"{name}: complete")

    def streams(self, name: str, is_enough):
        """A stream without an end, which is stopped when enough bytes are stored."""
        process = self.start(name)
        try:
            found = wait_for(f"what {name} streams", lambda: next(filter(is_enough, self.stored(name)), None))
            assert process.poll() is None, f"{name} ended with {process.returncode}"
        finally:
            process.terminate()
            process.communicate()
        print(f"{name}: {len(found)} bytes stored")

    def ends(self, name: str, content: bytes):
        """A stream that ends by itself."""
        process = self.start(name)
        process.communicate(timeout=TIME_LIMIT)
        assert process.returncode == 0, f"{name} ended with {process.returncode}"
        assert self.stored(name) == [content], f"{name} stored {self.stored(name)}"
        print(f"{name}: complete")

    def drains(self, name: str):
        """A server that prints its events, and ends with success after SIGTERM."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = f"127.0.0.1:{free.getsockname()[1]}"
        process = subprocess.Popen([self.listings / name, address], cwd=self.directory, stdout=subprocess.PIPE, text=True)
        try:
            subprocess.run(["curl", "--silent", "--fail", "--retry", "20", "--retry-connrefused", "--retry-delay", "1",
                            "--max-time", str(TIME_LIMIT), "--upload-file", "film.mkv", f"http://{address}/film"],
                           cwd=self.directory, check=True, stdout=subprocess.DEVNULL)
            process.terminate()
            output = process.communicate(timeout=TIME_LIMIT)[0]
        finally:
            process.kill()
        assert process.returncode == 0, f"{name} ended with {process.returncode}"
        assert '"event":"ended"' in output, f"{name} printed {output}"
        print(f"{name}: drained")

    def loads(self, name: str):
        """A load test, in which every stream is acknowledged and stored."""
        process = self.start(name)
        output = process.communicate(timeout=TIME_LIMIT)[0]
        assert process.returncode == 0, f"{name} ended with {process.returncode}"
        count = len(self.stored(name))
        assert count == 100 and "100 started" in output, f"{name} stored {count} streams:\n{output}"
        print(f"{name}: {count} streams stored")

    def serves(self, name: str):
        """A server with a custom handler, which answers an upload from curl with its checksum."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = f"127.0.0.1:{free.getsockname()[1]}"
        process = subprocess.Popen([self.listings / name, address], cwd=self.directory)
        upload = ["curl", "--silent", "--retry", "20", "--retry-connrefused", "--retry-delay", "1", "--max-time",
                  str(TIME_LIMIT), "--upload-file", "film.mkv", f"http://{address}/checksum"]
        try:
            answer = subprocess.run(upload, cwd=self.directory, check=True, capture_output=True, text=True).stdout
        finally:
            process.terminate()
            process.wait()
        assert answer == hashlib.sha256(self.film).hexdigest(), f"{name} answered {answer}"
        print(f"{name}: {answer}")


def main():
    tools, listings = (Path(path).resolve() for path in sys.argv[1:3])
    libraries = subprocess.run(["ldd", listings / "upload-file"], check=True, capture_output=True, text=True).stdout
    assert "libcurl" in libraries and "libasound" not in libraries, "a program that uploads a file loads libasound"
    with tempfile.TemporaryDirectory() as directory:
        bed = Bed(Path(directory), tools, listings)
        try:
            bed.completes("upload-file")
            bed.completes("resume-upload")
            bed.completes("survive-crash")
            bed.downloads("download-file")
            bed.downloads("resume-download")
            line = rb"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d \+0000\n"
            bed.streams("stream-lines", lambda found: re.fullmatch(b"(" + line + b"){2,}", found))
            bed.ends("stream-sequence", b"line 1\nline 2\nline 3\n")
            bed.ends("stream-configured", b"line 1\nline 2\n")
            bed.serves("serve-checksum")
            bed.drains("serve-configured")
            bed.serves("serve-resumable")
            bed.loads("load-test")
            bed.streams("stream-microphone", lambda found: found.startswith(b"RIFF") and len(found) > 48_000)
        finally:
            bed.server.terminate()
            bed.server.wait()


if __name__ == "__main__":
    main()
