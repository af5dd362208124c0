"""Installs rivals from PyPI in a separate environment below .build, never in the system."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

from benchmarks.common.harness import REPOSITORY, BenchmarkError

PLACE = REPOSITORY / ".build" / "benchmark-environment"
#: The measured versions. Later versions may perform differently.
VERSIONS = {
    "locust": "2.32.4",
    "uvicorn": "0.34.0",
    "uvloop": "0.21.0",
    "httptools": "0.6.4",
    "hypercorn": "0.17.3",
    "aiohttp": "3.11.11",
}


def versions() -> dict[str, str]:
    """The versions of the installed packages."""
    return {
        name: version for name, version in VERSIONS.items() if any(PLACE.glob(f"lib/*/site-packages/{name}-{version}*"))
    }


def program(name: str, *packages: str) -> Path:
    """The path of a program. Installs the packages, by their names in VERSIONS, if the program does not exist yet."""
    path = PLACE / "bin" / name
    if not path.exists():
        _install(*packages)
    if not path.exists():
        raise BenchmarkError(f"{', '.join(packages)} came without the program {name}")
    return path


def python_with(package: str) -> Path:
    """The path of a Python that can import the package."""
    if package not in versions():
        _install(package)
    return PLACE / "bin" / "python3"


def _install(*packages: str) -> None:
    print(f"installing {', '.join(packages)} into {PLACE.relative_to(REPOSITORY)}", file=sys.stderr)
    if not (PLACE / "bin" / "pip").exists():
        venv.create(PLACE, with_pip=True)
    wanted = [f"{package}=={VERSIONS[package]}" for package in packages]
    command = [str(PLACE / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", *wanted]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        raise BenchmarkError(f"cannot install {', '.join(wanted)}: {done.stderr.strip()[-400:]}")
