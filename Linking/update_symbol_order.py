#!/usr/bin/env python3
"""update_symbol_order.py: which functions of `sluice` a stream really runs, for the linker to put side by side.

The kernel maps code 64 KiB at a time. What a live stream runs is 0.4 MB, scattered over the 5 MB that Swift's runtime
and ours make together: without an order nearly all of them become resident. This runs the release build's `sluice mic`
under callgrind (Debian's valgrind), collects the functions that were executed, and writes their symbols into
`symbol-order.txt`, which `make build` hands to the linker. Symbols that no longer exist are ignored there, so the list may
grow old; it only costs memory.

    make build && Linking/update_symbol_order.py URL DEVICE

URL is where a `sluice serve` listens, DEVICE an ALSA capture device.
"""

import bisect
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
COMMAND = HERE.parent / ".build/release/sluice"


def executed_addresses(url: str, device: str) -> set[int]:
    """Addresses of the instructions that two seconds of streaming execute in the command itself."""
    with tempfile.NamedTemporaryFile() as output:
        subprocess.run(
            ["valgrind", "--tool=callgrind", "--dump-instr=yes", "--compress-strings=no", "--compress-pos=no",
             f"--callgrind-out-file={output.name}", str(COMMAND), "mic", url, "--device", device, "--duration", "2s",
             "--progress", "none"],
            check=True,
        )
        addresses, ours = set(), False
        for line in Path(output.name).read_text(errors="replace").splitlines():
            if line.startswith("ob="):
                ours = line.endswith("/sluice")
            elif ours and re.match(r"0x[0-9a-f]+ ", line):
                addresses.add(int(line.split()[0], 16))
        return addresses


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    table = subprocess.run(["nm", "-n", "-S", "--defined-only", str(COMMAND)], check=True, capture_output=True, text=True)
    functions = [line.split() for line in table.stdout.splitlines()]
    functions = [(int(f[0], 16), f[3]) for f in functions if len(f) == 4 and f[2] in "tTwW"]
    starts = [start for start, _ in functions]
    names = {functions[bisect.bisect_right(starts, address) - 1][1] for address in executed_addresses(*sys.argv[1:])}
    # Swift's functions first: each has a section of its own, while the runtime's C++ comes an object file at a time.
    ordered = sorted(names, key=lambda name: (not name.startswith("$s"), name))
    (HERE / "symbol-order.txt").write_text("\n".join(ordered) + "\n")
    print(f"{len(ordered)} functions")


if __name__ == "__main__":
    main()
