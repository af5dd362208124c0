#!/usr/bin/env python3
"""mutation.py: makes small changes to the code, one at a time, and reports those that no test notices.

`make mutation` runs it. A seeded choice of mutants of each module is compiled into one build of a copy of the tree.
Each of them is off unless the environment variable SLUICE_MUTANT names its number. Then the module's tests run once for
each mutant. A mutant is killed if tests fail, crash or hang in two runs of at most three. If they only wait in vain, they
must also pass without the mutant at that moment, because a busy machine kills nothing. All others have survived: a test
is missing, or the change makes no difference. The latter are listed in `equivalent.tsv`, each with the reason.

    make mutation MUTATION="--seed 7"                              some 500 mutants, chosen by seed 7
    make mutation MUTATION="--seed 7 --module LiveStreaming=40"    40 mutants of one module
    make mutation MUTATION=--again                                 those that survived last time, with the tests of now
    make mutation MUTATION="--list --module UploadServer=9999"     the mutants themselves, without running them
    make mutation MUTATION="--unreached --module Spool=9999"       those that no test reaches; each suite runs once

Exit code 0: in each module at least 95 % of the mutants were killed, or all are reached. 1: not so. 2: the tests fail without any mutant.
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

# How tests report that they have waited without success, perhaps because the machine is busy.
LATE = re.compile(r"never|did not come|not come|no (signal|end|answer|progress)|timed out|time limit|too late|temporarily")

# Suites that take less than this, in seconds, run together before the others.
QUICK = 3

# How many mutants a module gets by default. Those of the data's safety come first.
MODULES = {
    "ResumableServing": 25,
    "StreamStore": 25,
    "StreamServing": 10,
    "DiskFiles": 10,
    "UploadServer": 10,
    "LiveStreaming": 50,
    "UploadClient": 45,
    "ResumableUploads": 45,
    "StreamBuffers": 30,
    "AudioCapture": 30,
    "LoadTesting": 15,
    "LoadReports": 15,
    "EventLoops": 20,
    "HTTPServer": 20,
    "HTTPMessages": 10,
    "MicrophoneStreaming": 10,
    "Spool": 20,
    "SpooledStreams": 15,
    "Recordings": 10,
    "Downloads": 15,
    "JetStream": 10,
    "LogServing": 15,
    "LogCollecting": 15,
    "TransferAgent": 20,
    "TransferClient": 5,
    "FoundationUploadsCore": 30,
    "Digests": 5,
    "JSONLines": 5,
    "JSONDocuments": 5,
    "Metrics": 5,
}
# Modules without code of their own to judge: C libraries, a facade, and the command, whose tests are of processes.
EXEMPT = re.compile(r"C[A-Z]\w+|FoundationUploads|sluice")
# The tests that judge them, as modules or single suites: the module's own, and where two modules are one in use, those
# of both.
TESTS = {module: [f"{module}Tests"] for module in MODULES} | {
    "Recordings": ["RecordingsTests", "UploadServerTests.VerificationTests"],
    **{part: ["UploadServerTests"] for part in ("ResumableServing", "StreamStore", "StreamServing", "DiskFiles")},
    "JetStream": ["JetStreamTests", "UploadServerTests.StorageGuardTests", "UploadServerTests.BrokerStorageTests"],
    # Most claims about collectors are about the command, which runs in a process of its own.
    "LogCollecting": ["LogCollectingTests"] + [
        f"CommandTests.Collect{part}Tests"
        for part in ("", "Checkpoint", "Damage", "Expiry", "Fault", "Overlap", "ReturnedStore", "Rewind", "Stranger", "Wait")
    ],
    "LogServing": ["LogServingTests", "CommandTests.StoreTests", "CommandTests.StoreDurabilityTests"],
    "UploadClient": ["UploadClientTests", "LiveStreamingTests", "DownloadsTests"],
    "Downloads": ["DownloadsTests", "TransferAgentTests"],
    "TransferClient": ["TransferClientTests", "TransferAgentTests"],
    "HTTPMessages": ["HTTPMessagesTests", "HTTPServerTests"],
    "HTTPServer": ["HTTPServerTests", "UploadServerTests"],
    "FoundationUploadsCore": ["FoundationUploadsTests"],
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
    kept.formUnion((target.plugins ?? []).map { usage in if case .plugin(let name, _) = usage { name } else { "" } })
  }
}
package.targets.removeAll { !kept.contains($0.name) }
package.products.removeAll { !([PRODUCTS] as [String]).contains($0.name) }
"""

# Products that a module's tests load while they run, each with its target: the microphone is a plugin of ALSA.
PRODUCTS = {"AudioCapture": ["TestDevice"], "MicrophoneStreaming": ["TestDevice"]}

# The switch, in a file of its own in each module that has mutants. A run without a mutant marks in a file which of them
# it reaches, one byte for each.
SWITCH = """\
internal import Glibc

let activeMutant: Int = getenv("SLUICE_MUTANT").flatMap { Int(String(cString: $0)) } ?? -1

nonisolated(unsafe) let reachedMutants: UnsafeMutablePointer<UInt8>? = {
  guard let path = getenv("SLUICE_MUTANTS_REACHED") else { return nil }
  let file = open(path, O_RDWR | O_CLOEXEC)
  defer { close(file) }
  guard let map = mmap(nil, REACHABLE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0), map != MAP_FAILED else { return nil }
  return map.assumingMemoryBound(to: UInt8.self)
}()

@inline(__always) func isMutant(_ number: Int) -> Bool {
  reachedMutants?[number] = 1
  return activeMutant == number
}
"""
REACHABLE = 1 << 16


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


def copy_tree(mutants: list[Mutant]) -> None:
    """A copy of what git knows of, as it stands now, with the mutants; what was built there before stays."""
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    ).stdout.decode()
    known = {name for name in names.split("\0") if name}
    changed = mutated(mutants)
    for path in [p for p in TREE.rglob("*") if p.is_file()]:
        name = path.relative_to(TREE)
        if name.parts[0] != ".build" and str(name) not in known | changed.keys():
            path.unlink()
    for name in known | changed.keys():
        source, target = ROOT / name, TREE / name
        if name not in changed and not source.is_file():
            continue
        content = changed[name] if name in changed else source.read_bytes()
        # An unchanged file keeps its date, so that it is not compiled again.
        if not (target.exists() and target.read_bytes() == content):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            if source.exists():
                target.chmod(source.stat().st_mode)


def literals(names: set[str]) -> str:
    """Swift's literals of these names, for an array."""
    return ", ".join(f'"{name}"' for name in sorted(names))


def mutated(mutants: list[Mutant]) -> dict[str, bytes]:
    """The files that the copy has otherwise than the tree. Notes on which lines each mutant stands."""
    # Only these modules' tests stay in the manifest, with the targets that they need.
    modules = {mutant.module for mutant in mutants}
    products = {name for module in modules for name in PRODUCTS.get(module, [])}
    targets = products | {name.partition(".")[0] for module in modules for name in TESTS[module]}
    manifest = (ROOT / "Package.swift").read_text()
    manifest += SUBSET.replace("NAMES", literals(targets)).replace("PRODUCTS", literals(products))
    changed = {"Package.swift": manifest.encode()}
    for module in modules:
        changed[f"Sources/{module}/MutationSwitch.swift"] = SWITCH.replace("REACHABLE", str(REACHABLE)).encode()
    for file in {mutant.file for mutant in mutants}:
        text = (ROOT / file).read_bytes()
        for mutant in sorted((m for m in mutants if m.file == file), key=lambda m: -m.start):
            original = text[mutant.start : mutant.end].decode()
            first = text[: mutant.start].count(b"\n") + 1
            mutant.lines = range(first, first + original.count("\n") + 1)
            text = text[: mutant.start] + mutant.text(original).encode() + text[mutant.end :]
        changed[file] = text
    return changed


def build(mutants: list[Mutant]) -> list[Mutant]:
    """Builds the tests. Drops the mutants that do not compile, and returns the others."""
    log = WORK / "build.log"
    while True:
        copy_tree(mutants)
        with log.open("w") as output:
            done = subprocess.run(["swift", "build", "--build-tests"], cwd=TREE, stdout=output, stderr=output)
        if done.returncode == 0:
            return mutants
        wrong = {
            (match["file"], int(match["line"]))
            for match in re.finditer(r"^(?P<file>/\S+\.swift):(?P<line>\d+):\d+: error:", log.read_text(), re.M)
        }
        broken = [m for m in mutants if any((str(TREE / m.file), line) in wrong for line in m.lines)]
        # Some errors are reported where what is missing is needed, behind the mutant, or at the switch around it.
        for file, line in wrong if not broken else []:
            own = [m for m in mutants if str(TREE / m.file) == file]
            broken += [min(own, key=lambda m: abs(m.line - line))] if own else []
        if not broken:
            sys.exit(f"cannot build the mutants: no error is at one of them. See {log}.")
        print(f"  {len(broken)} mutants do not compile and are replaced", flush=True)
        mutants = [m for m in mutants if m not in broken]


@dataclass
class Suite:
    """A suite of tests, what it costs, and which mutants it reaches."""

    name: str
    seconds: float
    reached: bytes

    def own(self, mutant: Mutant) -> bool:
        """Whether it is named after the mutant's file or type."""
        words = {Path(mutant.file).stem.partition("+")[0], mutant.declaration.partition(".")[0]}
        return any(word and word in self.name for word in words)


class Tests:
    """Runs the tests of the build. A suite hangs that takes three times as long as without a mutant, at least `limit`."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        binary = TREE / ".build/debug"
        self.bundle = next(binary.glob("*PackageTests.xctest"))
        # By their names: some suites judge several modules.
        self.measured: dict[str, Suite] = {}

    def suites(self, module: str) -> list[str]:
        """The suites that judge a module's mutants, as filters."""
        listed = subprocess.run(
            [self.bundle, "--testing-library", "swift-testing", "--list-tests"],
            cwd=TREE, check=True, capture_output=True, text=True,
        ).stdout  # fmt: skip
        # Suites within others on their own: the outer one would take as long as all of them.
        tests = [line.partition("(")[0] for line in listed.splitlines()]
        names = {test.rpartition("/")[0] or test for test in tests}
        return sorted(name for name in names if {name, name.partition(".")[0]} & set(TESTS[module]))

    def measure(self, module: str) -> list[Suite]:
        """Runs each suite without a mutant; what fails twice ends the program."""
        found = []
        for name in self.suites(module):
            if name in self.measured:
                found.append(self.measured[name])
                continue
            for attempt in range(3):
                marks = WORK / "reached"
                marks.write_bytes(bytes(REACHABLE))
                begun = time.monotonic()
                verdict, line = self.run([name], -1, 1800, marks)
                if verdict == "passed":
                    break
                print(f"  without any mutant: {name}: {line}", flush=True)
            else:
                print(f"the tests of {module} fail without any mutant: {line}", file=sys.stderr)
                sys.exit(2)
            self.measured[name] = Suite(name, time.monotonic() - begun, marks.read_bytes())
            found.append(self.measured[name])
        return found

    def run(self, suites: list[str], mutant: int, limit: float, marks: Path | None = None) -> tuple[str, str]:
        """Returns `passed`, `failed`, `crashed` or `hung`, and the line that says so."""
        tests = rf"^({'|'.join(re.escape(suite) for suite in suites)})[/(]"
        environment = os.environ | {"SLUICE_MUTANT": str(mutant)}
        process = subprocess.Popen(
            [self.bundle, "--testing-library", "swift-testing", "--filter", tests],
            cwd=TREE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            start_new_session=True, env=environment | ({"SLUICE_MUTANTS_REACHED": str(marks)} if marks else {}),
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
                line = re.sub(r"\x1b\[[0-9;]*m", "", line)
                last = line.strip() or last
                # The first failure settles it.
                if "recorded an issue" in line and line.startswith("✘"):
                    self.end(process)
                    return "failed", line.strip()[:300]
            code = process.wait()
        finally:
            timer.cancel()
            self.end(process)
        if is_late.is_set():
            return "hung", f"no end of {', '.join(suites)} after {limit:.0f} s"
        return ("passed", "") if code == 0 else ("crashed", last)

    def judge(self, mutant: Mutant, suites: list[Suite]) -> tuple[str, str]:
        """Runs the suites that reach a mutant: first those of its file, then the quick ones, then the others."""
        reaching = [suite for suite in suites if suite.reached[mutant.number]]
        if not reaching:
            return "passed", "no test reaches it"
        reaching.sort(key=lambda suite: suite.seconds)
        own = [suite for suite in reaching if suite.own(mutant)]
        quick = [suite for suite in reaching if suite.seconds < QUICK and suite not in own]
        slow = [suite for suite in reaching if suite not in own and suite not in quick]
        note = ""
        for group in filter(None, (own, quick, slow)):
            names = [suite.name for suite in group]
            limit = max(self.limit, 3 * sum(suite.seconds for suite in group))
            verdict, line = self.agree(names, mutant.number, limit)
            if verdict != "passed":
                return verdict, line
            note = note or line
        return "passed", note

    def agree(self, names: list[str], mutant: int, limit: float) -> tuple[str, str]:
        """Runs suites once if they pass, and otherwise up to three times: two failures kill the mutant.

        A single failure may come from a busy machine. If the suites were late twice, they also have to pass without it.
        """
        failures: list[tuple[str, str]] = []
        passes = 0
        while len(failures) < 2:
            verdict, line = self.run(names, mutant, limit)
            if verdict != "passed":
                failures.append((verdict, line))
            elif failures and not passes:
                passes += 1
            else:
                return "passed", ""
        if all(verdict == "hung" or LATE.search(line) for verdict, line in failures):
            for _ in range(2):
                if self.run(names, -1, limit)[0] == "passed":
                    return failures[-1]
            return "passed", "the same tests fail without it"
        return failures[-1]

    @staticmethod
    def end(process: subprocess.Popen[str]) -> None:
        """Ends the tests and the processes that they started."""
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()


def judge(mutants: list[Mutant], jobs: int, limit: float, built: list[Mutant]) -> None:
    """Runs each mutant against its module's tests."""
    tests = Tests(limit)
    for module in dict.fromkeys(mutant.module for mutant in mutants):
        suites = tests.measure(module)
        print(f"  {module}: tests take {sum(suite.seconds for suite in suites):.0f} s", flush=True)

        def run(mutant: Mutant) -> None:
            begun = time.monotonic()
            mutant.verdict, mutant.by = tests.judge(mutant, suites)
            print(f"  {mutant.verdict} {mutant.number} {time.monotonic() - begun:.0f} s {mutant.by}", flush=True)
            if mutant.verdict == "passed":
                reason = f" ({mutant.by})" if mutant.by else ""
                print(f"SURVIVED {mutant.file}:{mutant.line} {mutant.declaration}: {mutant.change}{reason}", flush=True)

        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(run, [mutant for mutant in mutants if mutant.module == module]))
        report([mutant for mutant in mutants if mutant.module == module])
        save(built)


def list_unreached(mutants: list[Mutant], limit: float) -> bool:
    """Prints the mutants that no suite of their module reaches; whether there is none."""
    tests = Tests(limit)
    count = 0
    for module in dict.fromkeys(mutant.module for mutant in mutants):
        suites = tests.measure(module)
        for mutant in mutants:
            if mutant.module == module and not any(suite.reached[mutant.number] for suite in suites):
                count += 1
                print(f"UNREACHED {mutant.file}:{mutant.line} {mutant.declaration}: {mutant.change}", flush=True)
    print(f"{count} of {len(mutants)} mutants are not reached")
    return count == 0


def report(mutants: list[Mutant]) -> bool:
    """Prints the score of each module; whether all reach the goal."""
    reached = True
    print(f"\n{'module':<20} {'mutants':>8} {'killed':>8} {'score':>8}")
    for module in sorted({mutant.module for mutant in mutants}):
        own = [mutant for mutant in mutants if mutant.module == module]
        killed = sum(mutant.verdict != "passed" for mutant in own)
        reached = reached and killed >= GOAL * len(own)
        print(f"{module:<20} {len(own):>8} {killed:>8} {killed / len(own):>8.1%}")
    return reached


def save(mutants: list[Mutant]) -> None:
    """Notes what was built and what became of it, for `--again`."""
    with (WORK / "verdicts.jsonl").open("w") as output:
        for mutant in mutants:
            output.write(json.dumps(vars(mutant) | {"lines": None}, ensure_ascii=False) + "\n")


def survivors() -> tuple[list[Mutant], list[Mutant]]:
    """What was built last time, and those of it that survived."""
    built = [Mutant(**json.loads(line)) for line in (WORK / "verdicts.jsonl").read_text().splitlines()]
    for mutant in built:
        text = (ROOT / mutant.file).read_bytes()[mutant.start : mutant.end].decode(errors="replace")
        if " ".join(text.split()) != " ".join(mutant.original.split()):
            sys.exit(f"cannot run the survivors again: {mutant.file} has changed. Choose again, with the same seed.")
    return built, [mutant for mutant in built if mutant.verdict == "passed"]


def main() -> None:
    parser = argparse.ArgumentParser(description="Reports small changes of the code that no test notices.")
    parser.add_argument("--seed", type=int, help="chooses the mutants; the default is a new one")
    parser.add_argument("--module", action="append", metavar="NAME[=N]", help="N mutants of this module")
    parser.add_argument("--jobs", type=int, default=2, help="how many mutants run at the same time; the default is 2")
    parser.add_argument("--limit", type=float, default=60, metavar="S", help="seconds before a suite may count as hung; 60")
    parser.add_argument("--list", action="store_true", help="list the mutants and stop")
    parser.add_argument("--unreached", action="store_true", help="list the mutants that no test reaches, and stop")
    parser.add_argument("--again", action="store_true", help="run those that survived last time with the tests of now")
    options = parser.parse_args()
    missing = [name for name in sorted(os.listdir(ROOT / "Sources"))
               if not name.startswith(".") and not EXEMPT.fullmatch(name) and name not in MODULES]
    if missing:
        parser.error(f"no number of mutants for {', '.join(missing)}. Add a row to MODULES.")
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

    if options.again:
        built, chosen = survivors()
        build(built)
        judge(chosen, options.jobs, options.limit, built)
        sys.exit(0 if report(chosen) else 1)

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
    if options.unreached:
        sys.exit(0 if list_unreached(chosen, options.limit) else 1)
    judge(chosen, options.jobs, options.limit, built)
    reached = report(chosen)
    print(f"{len(rows)} mutants are listed as equivalent and were not run.")
    sys.exit(0 if reached else 1)


if __name__ == "__main__":
    main()
