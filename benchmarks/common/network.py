"""Provides a separate loopback network for the fault table, with send buffers of at most 64 KiB."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import struct
import sys
from pathlib import Path

SEND_BUFFER = 64 * 1024
# Set in the process that runs inside the namespace.
_MARK = "SLUICE_BENCHMARK_NETWORK"
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1


def enter_bounded_network() -> bool:
    """Restarts this program in a network namespace with bounded send buffers, and returns True there.

    Contenders have no option for SO_SNDBUF, and the kernel increases it to megabytes. If namespaces are not permitted,
    this prints a message and returns False. Stalls then affect the contenders later, but all of them equally.
    """
    if _MARK not in os.environ:
        unshare = shutil.which("unshare")
        if unshare:
            rights = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
            try_out = os.spawnv(os.P_WAIT, unshare, ["unshare", *rights, "--net", "true"])
            if try_out == 0:
                again = [sys.executable, *sys.orig_argv[1:]]
                os.execve(unshare, ["unshare", *rights, "--net", "--", *again], {**os.environ, _MARK: "1"})
        print("no network namespace: the kernel chooses the sizes of the send buffers", file=sys.stderr)
        return False
    _raise_loopback()
    Path("/proc/sys/net/ipv4/tcp_wmem").write_text(f"4096 16384 {SEND_BUFFER}")
    return True


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        # struct ifreq: the name, then the flags (netdevice(7)).
        answer = fcntl.ioctl(any_socket, _SIOCGIFFLAGS, struct.pack("16sH14x", b"lo", 0))
        flags = struct.unpack("16sH14x", answer)[1]
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | _IFF_UP))
