#!/usr/bin/env python3
"""update_symbol_order.py: finds the functions of `sluice` that a stream runs, so that the linker places them together.

The kernel maps code 64 KiB at a time. A live stream runs 0.4 MB of code, which is scattered over the 5 MB of Swift's
runtime and the program. Without an order, nearly all of them become resident. This runs the release build's `sluice
mic` and `sluice load` under callgrind (Debian's valgrind), collects the functions that were executed, and writes their
symbols into `symbol-order.txt`, which `make build` passes to the linker. The linker ignores symbols that no longer
exist, so an old list only costs memory.

The functions that each message of a stream runs come first, because ten thousand streams run them all the time. The
rest of `sluice mic` follows, and then the functions that only a load test runs.

    make build && Linking/update_symbol_order.py URL DEVICE

URL is where a `sluice serve` listens, DEVICE an ALSA capture device.
"""

import bisect
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
COMMAND = HERE.parent / ".build/release/sluice"


LOAD_STREAMS, LOAD_SECONDS = 100, 6
# A function that runs at least this many instructions per message is placed at the front.
HOT = 10


def executed(*arguments: str) -> Counter[int]:
    """How often each instruction of the command itself was executed, by address."""
    with tempfile.NamedTemporaryFile() as output:
        subprocess.run(
            ["valgrind", "--tool=callgrind", "--dump-instr=yes", "--compress-strings=no", "--compress-pos=no",
             f"--callgrind-out-file={output.name}", str(COMMAND), *arguments, "--progress", "none"],
            check=True,
        )
        counts: Counter[int] = Counter()
        ours = is_call = False
        for line in Path(output.name).read_text(errors="replace").splitlines():
            if line.startswith("ob="):
                ours = line.endswith("/sluice")
            elif line.startswith("calls="):
                is_call = True
            elif re.match(r"0x[0-9a-f]+ ", line):
                words = line.split()
                # The line after a call's line has the callee's cost, which is counted there.
                if ours:
                    counts[int(words[0], 16)] += 0 if is_call else int(words[-1])
                is_call = False
        return counts


def functions_of(counts: Counter[int], table: list[tuple[int, str]]) -> Counter[str]:
    starts = [start for start, _ in table]
    functions: Counter[str] = Counter()
    for address, count in counts.items():
        functions[table[bisect.bisect_right(starts, address) - 1][1]] += count
    return functions


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    url, device = sys.argv[1:]
    symbols = subprocess.run(["nm", "-n", "-S", "--defined-only", str(COMMAND)], check=True, capture_output=True, text=True)
    lines = [line.split() for line in symbols.stdout.splitlines()]
    table = [(int(f[0], 16), f[3]) for f in lines if len(f) == 4 and f[2] in "tTwW"]
    microphone = functions_of(executed("mic", url, "--device", device, "--duration", "2s"), table)
    load = functions_of(
        executed("load", url, "--streams", str(LOAD_STREAMS), "--rate", "1000", "--chunk", "1s",
                 "--duration", f"{LOAD_SECONDS}s", "--resumable", "always"),
        table,
    )
    hot = HOT * LOAD_STREAMS * LOAD_SECONDS

    def place(name: str) -> tuple[int, bool, int, str]:
        group = 0 if load[name] >= hot else 1 if name in microphone else 2
        # Swift's functions first: each has a section of its own, while the runtime's C++ comes an object file at a
        # time.
        return group, not name.startswith("$s"), -load[name] if group == 0 else 0, name

    ordered = sorted({*microphone, *load}, key=place)
    (HERE / "symbol-order.txt").write_text("\n".join(ordered) + "\n")
    print(f"{len(ordered)} functions, {sum(place(name)[0] == 0 for name in ordered)} of them hot")


if __name__ == "__main__":
    main()
