#!/usr/bin/env python3
"""mutation.py: makes small changes to the code, one at a time, and reports those that no test notices.

`make mutation` runs it. A seeded choice of mutants of each module is compiled into one build of a copy of the tree.
Each of them is off unless the environment variable SLUICE_MUTANT names its number. Then the module's tests run once for
each mutant. A mutant that fails a test, crashes or hangs is killed. One that passes all tests has survived: a test is
missing, or the change makes no difference. The latter are listed in `equivalent.tsv`, each with the reason.

    make mutation MUTATION="--seed 7"                              300 mutants, chosen by seed 7
    make mutation MUTATION="--seed 7 --module LiveStreaming=40"    40 mutants of one module
    make mutation MUTATION="--list --module UploadServer=9999"     the mutants themselves, without running them

Exit code 0: in each module at least 95 % of the mutants were killed. 1: not so. 2: the tests fail without any mutant.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
WORK = ROOT / ".build/mutation"
TREE = WORK / "tree"
GOAL = 0.95

# How many mutants a module gets by default.
MODULES = {
    "StreamBuffers": 30,
    "ResumableUploads": 45,
    "AudioCapture": 30,
    "UploadClient": 45,
    "LiveStreaming": 50,
    "UploadServer": 70,
    "LoadTesting": 30,
}
# The tests that judge them: the module's own, and where two modules are one in use, those of both.
TESTS = {module: [f"{module}Tests"] for module in MODULES} | {
    "UploadClient": ["UploadClientTests", "LiveStreamingTests"]
}

# What is added to the copy's manifest.
SUBSET = """
func nameOfDependency(_ dependency: Target.Dependency) -> String {
  switch dependency {
  case .byNameItem(let name, _), .targetItem(let name, _): name
  default: ""
  }
}
var kept: Set<String> = [NAMES]
var count = 0
while kept.count > count {
  count = kept.count
  for target in package.targets where kept.contains(target.name) {
    kept.formUnion(target.dependencies.map(nameOfDependency))
  }
}
package.targets.removeAll { !kept.contains($0.name) }
package.products = []
"""

# The switch, in a file of its own in each module that has mutants.
SWITCH = """\
internal import Glibc

let activeMutant: Int = getenv("SLUICE_MUTANT").flatMap { Int(String(cString: $0)) } ?? -1

@inline(__always) func isMutant(_ number: Int) -> Bool { activeMutant == number }
"""


@dataclass
class Mutant:
    """A place in a file, and what stands there when the mutant is on."""

    module: str
    file: str
    line: int
    start: int
    end: int
    kind: str
    form: str
    declaration: str
    original: str
    mutated: str
    number: int = 0
    verdict: str = ""
    by: str = ""
    lines: range = field(default=range(0))

    @property
    def change(self) -> str:
        return f"{self.original}  →  {self.mutated or '(left out)'}"

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Names the mutant independently of line numbers."""
        return (self.file, self.declaration, self.original, self.mutated)

    def text(self, original: str) -> str:
        switch = f"isMutant({self.number})"
        match self.form:
            case "expression":
                return f"({switch} ? ({self.mutated}) : ({original}))"
            case "condition":
                return f"({switch} != ({original}))"
            case "removal":
                return f"if !{switch} {{ {original} }}"
            case "statement":
                return f"if {switch} {{ {self.mutated} }} else {{ {original} }}"
        raise ValueError(self.form)


def candidates(lister: Path, module: str, equivalent: set[tuple[str, str, str, str]]) -> list[Mutant]:
    """All mutants of a module but those that are known to make no difference."""
    files = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "Sources" / module).rglob("*.swift"))
    output = subprocess.run([lister, *files], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    found = [Mutant(module=module, **json.loads(line)) for line in output.splitlines()]
    return [mutant for mutant in found if mutant.key not in equivalent]


def choose(found: list[Mutant], count: int, chance: random.Random) -> list[Mutant]:
    """Up to `count` mutants, of which none lies within another."""
    chosen: list[Mutant] = []
    for mutant in chance.sample(found, len(found)):
        if len(chosen) == count:
            break
        # There are more literals than anything else, and most of them are sizes that no claim is about.
        if mutant.kind == "literal" and chance.random() > 0.4:
            continue
        if any(m.file == mutant.file and m.start < mutant.end and mutant.start < m.end for m in chosen):
            continue
        chosen.append(mutant)
    return chosen


def build_lister() -> Path:
    """Compiles `ListMutants.swift` against the parser of the toolchain."""
    lister = WORK / "list-mutants"
    source = HERE / "ListMutants.swift"
    if lister.exists() and lister.stat().st_mtime > source.stat().st_mtime:
        return lister
    swiftc = shutil.which("swiftc")
    if swiftc is None:
        sys.exit("cannot compile the list of mutants: swiftc is not in PATH. Install Swift 6.3.")
    libraries = Path(swiftc).resolve().parent.parent / "lib/swift/host"
    if not (libraries / "SwiftParser.swiftmodule").exists():
        sys.exit(
            f"cannot compile the list of mutants: no SwiftParser in {libraries}. Install a toolchain of swift.org."
        )
    WORK.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [
            "swiftc",
            "-O",
            "-I",
            libraries,
            "-L",
            libraries,
            "-lSwiftSyntax",
            "-lSwiftParser",
            "-lSwiftOperators",
            "-Xlinker",
            "-rpath",
            "-Xlinker",
            libraries,
            source,
            "-o",
            lister,
        ],
        check=True,
    )
    return lister


def copy_tree() -> None:
    """A copy of what git knows of, as it stands now; what was built there before stays."""
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    ).stdout.decode()
    known = {name for name in names.split("\0") if name}
    for path in [p for p in TREE.rglob("*") if p.is_file() and ".build" not in p.parts]:
        if str(path.relative_to(TREE)) not in known:
            path.unlink()
    for name in known:
        source, target = ROOT / name, TREE / name
        if source.is_file() and not (target.exists() and target.read_bytes() == source.read_bytes()):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


def keep_tests(modules: set[str]) -> None:
    """Leaves only these modules' tests in the copy's manifest, with the targets that they need."""
    names = ", ".join(f'"{name}"' for module in sorted(modules) for name in TESTS[module])
    with (TREE / "Package.swift").open("a") as manifest:
        manifest.write(SUBSET.replace("NAMES", names))


def write_mutants(mutants: list[Mutant]) -> None:
    """Puts the mutants into the copy, and notes on which lines each of them stands."""
    for module in {mutant.module for mutant in mutants}:
        (TREE / "Sources" / module / "MutationSwitch.swift").write_text(SWITCH)
    for file in {mutant.file for mutant in mutants}:
        text = (ROOT / file).read_bytes()
        for mutant in sorted((m for m in mutants if m.file == file), key=lambda m: -m.start):
            original = text[mutant.start : mutant.end].decode()
            first = text[: mutant.start].count(b"\n") + 1
            mutant.lines = range(first, first + original.count("\n") + 1)
            text = text[: mutant.start] + mutant.text(original).encode() + text[mutant.end :]
        (TREE / file).write_bytes(text)


def build(mutants: list[Mutant]) -> list[Mutant]:
    """Builds the tests. Drops the mutants that do not compile, and returns the others."""
    log = WORK / "build.log"
    while True:
        copy_tree()
        keep_tests({mutant.module for mutant in mutants})
        write_mutants(mutants)
        with log.open("w") as output:
            done = subprocess.run(["swift", "build", "--build-tests"], cwd=TREE, stdout=output, stderr=output)
        if done.returncode == 0:
            return mutants
        wrong = {
            (match["file"], int(match["line"]))
            for match in re.finditer(r"^(?P<file>/\S+\.swift):(?P<line>\d+):\d+: error:", log.read_text(), re.M)
        }
        broken = [m for m in mutants if any((str(TREE / m.file), line) in wrong for line in m.lines)]
        # Some errors are reported where what is missing is needed, behind the mutant: it is the nearest one before.
        for file, line in wrong if not broken else []:
            before = [m for m in mutants if str(TREE / m.file) == file and m.line <= line]
            broken += [max(before, key=lambda m: m.line)] if before else []
        if not broken:
            sys.exit(f"cannot build the mutants: no error is at one of them. See {log}.")
        print(f"  {len(broken)} mutants do not compile and are replaced", flush=True)
        mutants = [m for m in mutants if m not in broken]


class Tests:
    """Runs the tests of the build."""

    def __init__(self) -> None:
        binary = TREE / ".build/debug"
        self.bundle = next(binary.glob("*PackageTests.xctest"))

    def run(self, module: str, mutant: int, limit: float) -> tuple[str, str]:
        """Returns `passed`, `failed`, `crashed` or `hung`, and the line that says so."""
        tests = rf"^({'|'.join(TESTS[module])})\."
        process = subprocess.Popen(
            [self.bundle, "--testing-library", "swift-testing", "--filter", tests],
            cwd=TREE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            start_new_session=True, env=os.environ | {"SLUICE_MUTANT": str(mutant)},
        )  # fmt: skip
        is_late = threading.Event()

        def stop() -> None:
            is_late.set()
            self.end(process)

        timer = threading.Timer(limit, stop)
        timer.start()
        try:
            last = ""
            for line in process.stdout:
                last = line.strip() or last
                # The first failure settles it.
                if "recorded an issue" in line and line.startswith("✘"):
                    self.end(process)
                    return "failed", line.strip()
            code = process.wait()
        finally:
            timer.cancel()
            self.end(process)
        if is_late.is_set():
            return "hung", f"no end after {limit:.0f} s"
        return ("passed", "") if code == 0 else ("crashed", last)

    @staticmethod
    def end(process: subprocess.Popen[str]) -> None:
        """Ends the tests and the processes that they started."""
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()


def judge(mutants: list[Mutant], jobs: int) -> None:
    """Runs each mutant against its module's tests."""
    tests = Tests()
    limits: dict[str, float] = {}
    for module in sorted({mutant.module for mutant in mutants}):
        begun = time.monotonic()
        verdict, line = tests.run(module, -1, 1800)
        if verdict != "passed":
            print(f"the tests of {module} fail without any mutant: {line}", file=sys.stderr)
            sys.exit(2)
        limits[module] = max(60, 5 * (time.monotonic() - begun))
        print(f"  {module}: tests take {time.monotonic() - begun:.0f} s", flush=True)

    def run(mutant: Mutant) -> None:
        mutant.verdict, mutant.by = tests.run(mutant.module, mutant.number, limits[mutant.module])
        if mutant.verdict == "passed":
            print(f"SURVIVED {mutant.file}:{mutant.line} {mutant.declaration}: {mutant.change}", flush=True)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(run, mutants))


def report(mutants: list[Mutant], equivalent: int) -> bool:
    """Prints the score of each module; whether all reach the goal."""
    reached = True
    print(f"\n{'module':<20} {'mutants':>8} {'killed':>8} {'score':>8}")
    for module in sorted({mutant.module for mutant in mutants}):
        own = [mutant for mutant in mutants if mutant.module == module]
        killed = sum(mutant.verdict != "passed" for mutant in own)
        reached = reached and killed >= GOAL * len(own)
        print(f"{module:<20} {len(own):>8} {killed:>8} {killed / len(own):>8.1%}")
    print(f"{equivalent} mutants are listed as equivalent and were not run.")
    with (WORK / "verdicts.jsonl").open("w") as output:
        for mutant in mutants:
            output.write(json.dumps(vars(mutant) | {"lines": None}, ensure_ascii=False) + "\n")
    return reached


def main() -> None:
    parser = argparse.ArgumentParser(description="Reports small changes of the code that no test notices.")
    parser.add_argument("--seed", type=int, help="chooses the mutants; the default is a new one")
    parser.add_argument("--module", action="append", metavar="NAME[=N]", help="N mutants of this module")
    parser.add_argument("--jobs", type=int, default=2, help="how many mutants run at the same time; the default is 2")
    parser.add_argument("--list", action="store_true", help="list the mutants and stop")
    options = parser.parse_args()
    wanted = dict(MODULES)
    if options.module:
        pairs = [name.partition("=") for name in options.module]
        unknown = [name for name, _, _ in pairs if name not in MODULES]
        if unknown:
            parser.error(f"unknown module: {unknown[0]}. Choose from {', '.join(MODULES)}.")
        wanted = {name: int(count or MODULES[name]) for name, _, count in pairs}

    with (HERE / "equivalent.tsv").open(newline="") as lines:
        rows = [row for row in csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE) if row and row[0][:1] != "#"]
    equivalent = {(row[0], row[1], row[2], row[3]) for row in rows}

    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1_000_000)
    print(f"seed {seed}", flush=True)
    chance = random.Random(seed)
    lister = build_lister()
    mutants: list[Mutant] = []
    for module, count in wanted.items():
        # Some do not compile.
        mutants += choose(candidates(lister, module, equivalent), count + count // 4, chance)
    for number, mutant in enumerate(mutants):
        mutant.number = number
    if options.list:
        for mutant in mutants:
            print(f"{mutant.file}:{mutant.line} {mutant.declaration}: {mutant.change}")
        return
    built = build(mutants)
    chosen = [m for module, count in wanted.items() for m in [m for m in built if m.module == module][:count]]
    judge(chosen, options.jobs)
    sys.exit(0 if report(chosen, len(rows)) else 1)


if __name__ == "__main__":
    main()
