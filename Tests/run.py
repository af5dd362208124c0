#!/usr/bin/env python3
"""Runs `swift test` with these arguments, and repeats what failed at the end, where it is seen.

The process of an exit test has no output. The failures that it threw precede the others.

With --built, the tests in .build/debug run as they are, without SwiftPM, of which only one at a time may use them.
With --late, all output appears when the tests have ended, so that it does not mix with that of tests beside them.

With --repeat, at most three tests that failed run again, each three times alone and with the same random cases. If
all of that passes, the run passes, and the last lines name these tests: they depend on something that they should
not. A defect that shows every time, a crash and a test that does not end are never forgiven.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree

SWIFT = os.environ.get("SWIFT", "swift")
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILT = os.path.join(ROOT, ".build/debug/sluicePackageTests.xctest")
COLOR = re.compile(r"\x1b\[[0-9;]*m")
FORGIVEN, TIMES = 3, 3
# Lines of an issue that are repeated.
DETAILS = 60


def default_signals():
    """A shell that runs a command in the background ignores these for it, and the tests send them to the command."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


def last_failures(path):
    """The last failures that each process threw, also those that a test expected."""
    try:
        with open(path, errors="replace") as file:
            by_process = {}
            for line in file:
                # Some failures have several lines.
                if line.startswith("process "):
                    by_process.setdefault(line.split(":")[0], []).append(line)
    except OSError:
        return []
    last = [line for lines in by_process.values() for line in lines[-2:]]
    return ["The last failures that each process threw, exit tests included:\n", *last[-60:]]


def run(arguments):
    """Gives the exit status, the lines about failures (reports of ThreadSanitizer whole), and the tests that failed;
    None if nobody knows which."""
    is_built, is_late = "--built" in arguments, "--late" in arguments
    arguments = [argument for argument in arguments if argument not in ("--built", "--late")]
    command = [BUILT, "--testing-library", "swift-testing"] if is_built else [SWIFT, "test"]
    with tempfile.TemporaryDirectory() as directory:
        report = os.path.join(directory, "report.xml")
        thrown = os.path.join(directory, "failures.txt")
        output, lines = [], []
        process = subprocess.Popen(
            [*command, *arguments, "--xunit-output", report],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            preexec_fn=default_signals, env={**os.environ, "SLUICE_TEST_FAILURES": thrown})
        details, sanitizer = 0, False
        try:
            for line in process.stdout:
                line = COLOR.sub("", line)
                if is_late:
                    output.append(line)
                else:
                    sys.stdout.write(line)
                    sys.stdout.flush()
                if "WARNING: ThreadSanitizer" in line or sanitizer:
                    sanitizer = not line.startswith("SUMMARY: ThreadSanitizer")
                    lines.append(line)
                elif re.search(r"^✘|recorded an issue|\bFatal error\b|^error: |Test run with 0 tests", line):
                    details = DETAILS if "recorded an issue" in line else 0
                    lines.append(line)
                elif details and not re.match("[◇✔􀟈]|process ", line):
                    # The description of a value, or a comment.
                    details -= 1
                    lines.append(line)
                else:
                    details = 0
        finally:
            sys.stdout.write("".join(output))
            sys.stdout.flush()
        status = process.wait()
        lines = last_failures(thrown) + ["\nWhat failed:\n"] + lines
        try:
            written = report if is_built else report.replace(".xml", "-swift-testing.xml")
            root = ElementTree.parse(written).getroot()
        except (OSError, ElementTree.ParseError):
            return status, lines, None
        failed = [
            case.get("classname") + "/" + case.get("name").split("(")[0]
            for case in root.iter("testcase") if case.find("failure") is not None]
        return status, lines, failed


def main():
    repeats = "--repeat" in sys.argv
    arguments = [argument for argument in sys.argv[1:] if argument != "--repeat"]
    status, lines, failed = run(arguments)
    if status == 0:
        return 0
    print("".join(lines))
    if not repeats or status < 0 or not failed or len(failed) > FORGIVEN:
        count = "an unknown number of" if failed is None else len(failed)
        print(f"the tests ended with {status}, and {count} tests failed: {', '.join(failed or [])}")
        return status
    without_filter = [
        argument for before, argument in zip([""] + arguments, arguments)
        if not {"--filter", "--skip"} & {before, argument}]
    for test in failed:
        for _ in range(TIMES):
            # The report has a dot before a suite in another one, and the filter needs a slash.
            name = re.escape(test).replace(r"\.", "[./]")
            again, repeated, _ = run([*without_filter, "--filter", "^" + name + r"\("])
            if again != 0 or any("Test run with 0 tests" in line for line in repeated):
                print("".join(lines) + f"\n{test} failed again:\n" + "".join(repeated))
                return status
    print("".join(lines))
    for test in failed:
        print(f"{test} failed once, and then passed {TIMES} times alone. It is unsteady: find out why.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
