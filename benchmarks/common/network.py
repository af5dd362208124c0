"""A network of our own for the fault table: loopback whose senders cannot put more than 64 KiB into their sockets."""

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
    """Runs this program again in a network namespace with bounded send buffers; returns there.

    A contender cannot be told its SO_SNDBUF, and the kernel grows it to megabytes. Where namespaces are not permitted
    it says so and returns False: stalls are then felt later, by everyone alike.
    """
    if _MARK not in os.environ:
        unshare = shutil.which("unshare")
        if unshare:
            rights = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
            try_out = os.spawnv(os.P_WAIT, unshare, ["unshare", *rights, "--net", "true"])
            if try_out == 0:
                again = [sys.executable, *sys.orig_argv[1:]]
                os.execve(unshare, ["unshare", *rights, "--net", "--", *again], {**os.environ, _MARK: "1"})
        print("no network namespace: the senders' socket buffers are the kernel's own", file=sys.stderr)
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
