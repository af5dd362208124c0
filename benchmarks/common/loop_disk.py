"""Mounts a separate ext4 file system from a file. Its device counts the bytes that are written to it."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from benchmarks.common.harness import BenchmarkError

SECTOR = 512


class LoopDisk:
    """A separate file system on a loop device (loop(4)), which is mounted during a `with` block. Requires root."""

    def __init__(self, directory: Path, size: int, *options: str) -> None:
        """`directory` receives the mount point and the image, which grows to at most `size` bytes. `options` are passed
        to mkfs.ext4(8)."""
        self._image = directory / "disk.ext4"
        self._size = size
        self._options = options
        self.path = directory / "disk"
        self._device = ""

    def __enter__(self) -> Self:
        with open(self._image, "wb") as image:
            image.truncate(self._size)
        self.path.mkdir()
        # Write all tables now, not later in the background, so that only the measured programs write afterwards.
        extended = "lazy_itable_init=0,lazy_journal_init=0"
        self._call("mkfs.ext4", "-q", "-E", extended, *self._options, str(self._image))
        self._call("mount", "-o", "loop,noatime", str(self._image), str(self.path))
        self._device = Path(self._call("findmnt", "-no", "SOURCE", str(self.path)).strip()).name
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(BenchmarkError):
            self._call("umount", str(self.path))

    def written(self) -> int:
        """The bytes written to the device so far, including those of the file system itself."""
        # The seventh value is the number of sectors written (Documentation/block/stat).
        return int(Path(f"/sys/block/{self._device}/stat").read_text().split()[6]) * SECTOR

    def synchronize(self) -> None:
        """Writes all pending data. Python offers only sync(2), which does this for all disks."""
        os.sync()

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Lets every writer wait in the kernel during a `with` block. Earlier writes are on the disk by then."""
        self._call("fsfreeze", "--freeze", str(self.path))
        try:
            yield
        finally:
            self._call("fsfreeze", "--unfreeze", str(self.path))

    @staticmethod
    def _call(*command: str) -> str:
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            raise BenchmarkError(f"no program {command[0]!r}: apt-get install e2fsprogs mount") from None
        if done.returncode != 0:
            raise BenchmarkError(f"{command[0]}: {done.stderr.strip()}. Run it as root, where a file can be mounted.")
        return done.stdout
