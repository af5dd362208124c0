"""What every benchmark has in common once it measures something else than the others: how its results come out.

A benchmark measures within `Report.measuring`, adds its sections, and ends with what `Report.finish` returns. Sections
are made after measuring, from whatever was measured until then: where something failed half way, that much is shown and
stored, and docs/benchmarks.md keeps what it had.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.common.document import Document
from benchmarks.common.harness import BenchmarkError, end_on_signals
from benchmarks.common.machine import machine
from benchmarks.common.plots import Plot
from benchmarks.common.tables import Table


def add_arguments(parser: argparse.ArgumentParser, rounds: int | None = None, of: str = "") -> None:
    """The options of every benchmark. `rounds` is how many there are without --rounds, and `of` tells of what; there is
    no such option where it is None."""
    if rounds is not None:
        parser.add_argument("--rounds", type=int, default=rounds, help=f"{of} (default: {rounds})")
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    parser.add_argument("--write", action="store_true", help="write tables and plots into docs/benchmarks.md")


@dataclass(frozen=True)
class Section:
    """What stands under one heading of the document. A table without rows is left out: nothing was measured for it."""

    title: str
    note: str  # what was measured and how, in Markdown
    tables: Sequence[Table]
    remarks: Sequence[str] = ()  # on the tables: a line each in the terminal, one paragraph in the document
    details: Sequence[str] = ()  # lines for the terminal alone
    plots: Sequence[Plot] = ()  # for the document alone

    def measured(self) -> list[Table]:
        return [table for table in self.tables if table.rows]

    def is_empty(self) -> bool:
        return not self.measured() and not any(self.remarks)

    def text(self) -> str:
        lines = "\n".join(line for line in [*self.remarks, *self.details] if line)
        return "\n\n".join(part for part in (self.note, *(table.text() for table in self.measured()), lines) if part)

    def markdown(self, pictures: Sequence[str]) -> str:
        """`pictures` are lines that show the plots."""
        remarks = "; ".join(remark.removesuffix(".") for remark in self.remarks if remark)
        paragraphs = (self.note, *(table.markdown() for table in self.measured()), remarks and f"{remarks}.", *pictures)
        return "\n\n".join(paragraph for paragraph in paragraphs if paragraph)


class Report:
    """Collects what one benchmark found."""

    def __init__(self, name: str, document: Document | None = None, figures_name: str = "figures") -> None:
        """`name` begins each message; `figures_name` is what the figures are called in JSON."""
        self.name = name
        self.sections: list[Section] = []
        #: Every figure, for --json: whatever JSON can hold, and dataclasses.
        self.figures: object = {}
        self._figures_name = figures_name
        self._document = document or Document()
        self._failures: list[str] = []

    @contextlib.contextmanager
    def measuring(self) -> Iterator[None]:
        """For the time of a `with` block, which a BenchmarkError ends early: the benchmark has then failed, and goes on
        to show what was measured until then. A signal ends the program, after every `finally`."""
        end_on_signals()
        try:
            yield
        except BenchmarkError as error:
            self.fail(error)

    def fail(self, error: BenchmarkError) -> None:
        """Notes a failure after which there is more to measure."""
        self._failures.append(str(error))

    def finish(self, options: argparse.Namespace) -> int:
        """Shows, stores and writes all this, as `add_arguments`' options say; returns the exit code."""
        about = machine()
        print("; ".join(f"{name} {value}" for name, value in about.items() if value), end="\n\n")
        sections = [section for section in self.sections if not section.is_empty()]
        for section in sections:
            print(section.text(), end="\n\n")
        if options.json:
            found = {"machine": about, self._figures_name: self.figures}
            options.json.write_text(json.dumps(found, indent=2, default=asdict) + "\n")
        if options.write:
            self._write(sections, about)
        for failure in self._failures:
            print(f"{self.name}: {failure}", file=sys.stderr)
        return 1 if self._failures else 0

    def _write(self, sections: Sequence[Section], about: dict[str, str]) -> None:
        # Drawn before anything is written: a failure must not leave new pictures beside old tables.
        with self.measuring():
            drawn = [[(plot, plot.svg()) for plot in section.plots if plot.curves] for section in sections]
        if self._failures:
            print(f"{self.name}: {self._document.name} is left as it was", file=sys.stderr)
            return
        for section, plots in zip(sections, drawn):
            pictures = [self._document.write_picture(plot.file, svg, plot.description) for plot, svg in plots]
            self._document.write_section(section.title, section.markdown(pictures), about)
