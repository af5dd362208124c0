"""The output of results, which is the same for every benchmark.

A benchmark measures within `Report.measuring`, adds its sections, and ends with the result of `Report.finish`. Sections
are made after measuring, from all measurements so far. After a failure half way, these are shown and stored, and
docs/benchmarks.md stays unchanged.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.common.document import Document, wrapped
from benchmarks.common.harness import BenchmarkError, end_on_signals
from benchmarks.common.machine import machine
from benchmarks.common.plots import Plot
from benchmarks.common.tables import Table


def add_arguments(parser: argparse.ArgumentParser, rounds: int | None = None, of: str = "") -> None:
    """Adds the options of every benchmark. `rounds` is the default of --rounds, and `of` describes the rounds. Without
    `rounds` there is no such option."""
    if rounds is not None:
        parser.add_argument("--rounds", type=int, default=rounds, help=f"{of} (default: {rounds})")
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    parser.add_argument("--write", action="store_true", help="write tables and plots into docs/benchmarks.md")


@dataclass(frozen=True)
class Section:
    """The content under one heading of the document. A table without rows is left out, because it has no results."""

    title: str
    note: str  # describes the measurement, in Markdown
    tables: Sequence[Table]
    remarks: Sequence[str] = ()  # about the tables: a line each in the terminal, one paragraph in the document
    details: Sequence[str] = ()  # lines only for the terminal
    plots: Sequence[Plot] = ()  # only for the document

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
        note, remarks = wrapped(self.note), wrapped(remarks and f"{remarks}.")
        paragraphs = (note, *(table.markdown() for table in self.measured()), remarks, *pictures)
        return "\n\n".join(paragraph for paragraph in paragraphs if paragraph)


class Report:
    """Collects the results of one benchmark."""

    def __init__(self, name: str, document: Document | None = None, figures_name: str = "figures") -> None:
        """`name` begins each message. `figures_name` is the name of the figures in JSON."""
        self.name = name
        self.sections: list[Section] = []
        #: Every figure, for --json: JSON values and dataclasses.
        self.figures: object = {}
        self._figures_name = figures_name
        self._document = document or Document()
        self._failures: list[str] = []

    @contextlib.contextmanager
    def measuring(self) -> Iterator[None]:
        """Measures within a `with` block. A BenchmarkError ends it early: the benchmark has then failed, and still
        shows the measurements so far. A signal ends the program, after every `finally`."""
        end_on_signals()
        try:
            yield
        except BenchmarkError as error:
            self.fail(error)

    def fail(self, error: BenchmarkError) -> None:
        """Records a failure after which the measurements continue."""
        self._failures.append(str(error))

    def finish(self, options: argparse.Namespace) -> int:
        """Shows, stores and writes the results, according to the options of `add_arguments`. Returns the exit code."""
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
        # Draw the plots before writing anything, because a failure must not leave new pictures beside old tables.
        with self.measuring():
            drawn = [[(plot, plot.svg()) for plot in section.plots if plot.curves] for section in sections]
        if self._failures:
            print(f"{self.name}: {self._document.name} is left as it was", file=sys.stderr)
            return
        for section, plots in zip(sections, drawn):
            pictures = [self._document.write_picture(plot.file, svg, plot.description) for plot, svg in plots]
            self._document.write_section(section.title, section.markdown(pictures), about)
