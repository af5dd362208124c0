#!/usr/bin/env python3
"""Installs the Debian package in a fresh root, and runs what it installs: `make test-deb`.

The root is made by mmdebstrap from Debian's mirror, with the packages that the package depends on and no others; where
the mirror cannot be reached (or with --root overlay) it is an overlay over this machine's own files.
What happens inside is in inside.sh: it runs in namespaces of its own for mounts and processes, so that whatever it
mounts and starts ends with it. Without root, or without namespaces, the test is skipped.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
MIRROR = "http://deb.debian.org/debian"
# For all that happens inside. A run takes a tenth of that.
LIMIT_SECONDS = 180
# For the making of the root.
ROOT_LIMIT_SECONDS = 600


def run(*command: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run(command, text=True, check=True, **options)


def output(*command: str) -> str:
    return run(*command, stdout=subprocess.PIPE).stdout.strip()


def build(version: str, directory: pathlib.Path) -> pathlib.Path:
    """The same files as a package of that version."""
    environment = os.environ | {"OUTPUT": str(directory)}
    return pathlib.Path(
        run(str(REPOSITORY / "packaging/build-deb.sh"), version, stdout=subprocess.PIPE, env=environment).stdout.strip()
    )


def dependencies(package: pathlib.Path) -> list[str]:
    fields = (
        output("dpkg-deb", "--field", str(package), "Depends")
        + ", "
        + output("dpkg-deb", "--field", str(package), "Pre-Depends")
    )
    return [re.split(r"[ (|]", field.strip())[0] for field in fields.split(",")]


def namespaces(*command: str) -> list[str]:
    """A command whose mounts and processes end with it."""
    return ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child=KILL", *command]


def is_reachable(suite: str) -> bool:
    try:
        with urllib.request.urlopen(f"{MIRROR}/dists/{suite}/InRelease", timeout=20) as response:
            return response.status == 200
    except OSError:
        return False


def make_root(directory: pathlib.Path, suite: str, package: pathlib.Path) -> None:
    packages = ",".join(dependencies(package))
    run(
        *namespaces("--mount-proc", "mmdebstrap", "--quiet", "--variant=apt", f"--include={packages}"),
        *(suite, str(directory), MIRROR),
        timeout=ROOT_LIMIT_SECONDS,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", choices=["mmdebstrap", "overlay"], default="mmdebstrap")
    arguments = parser.parse_args()
    if os.geteuid() != 0 or subprocess.run(namespaces("true"), stderr=subprocess.DEVNULL).returncode != 0:
        print("test-deb: skipped: it needs root and namespaces for mounts and processes")
        return 0
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="sluice-deb."))
    try:
        version = output(str(REPOSITORY / "packaging/version.sh"))
        packages = [build(f"{version}-{revision}", scratch) for revision in (1, 2)]
        run("lintian", "--allow-root", "--fail-on", "error,warning", str(packages[0]))
        root = scratch / "root"
        root.mkdir()
        root.chmod(0o755)
        suite = output("sh", "-c", ". /etc/os-release; echo $VERSION_CODENAME")
        is_fresh = arguments.root == "mmdebstrap" and is_reachable(suite)
        if is_fresh:
            make_root(root, suite, packages[0])
        elif arguments.root == "mmdebstrap":
            print(f"test-deb: {MIRROR} cannot be reached; an overlay over this machine's files is the root")
        shutil.copy(REPOSITORY / "packaging/inside.sh", scratch)
        kind = "fresh" if is_fresh else "overlay"
        try:
            subprocess.run(
                namespaces("sh", str(REPOSITORY / "packaging/enter.sh"), str(scratch), kind),
                stdin=subprocess.DEVNULL,
                timeout=LIMIT_SECONDS,
                check=True,
            )
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            print(f"test-deb: FAILED ({kind} root): {error}")
            return 1
        print(f"test-deb: passed ({kind} root); the package has {packages[0].stat().st_size:,} bytes")
        return 0
    finally:
        shutil.rmtree(scratch)


if __name__ == "__main__":
    sys.exit(main())
