#!/usr/bin/env python3
"""Tests that results are shown, stored and written as measured: `python3 -m benchmarks.tests.test_reporting`.

Nothing is measured here, and nothing needs to be built.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import unittest
from collections.abc import Sequence
from dataclasses import dataclass
from unittest import mock

from benchmarks.common.document import Document
from benchmarks.common.harness import BenchmarkError, scratch_directory
from benchmarks.common.plots import Curve, Plot
from benchmarks.common.report import Report, Section, add_arguments
from benchmarks.common.tables import Table
from benchmarks.live import faults
from benchmarks.live.comparison import Comparison, Target
from benchmarks.live.contenders import ARECORD, FFMPEG, Contender
from benchmarks.live.losses import Outcome
from benchmarks.load import libcurl, testers
from benchmarks.load import rivals as load_testers
from benchmarks.load.rate_receiver import Window
from benchmarks.recovery import recovery
from benchmarks.recovery.interrupted_rivals import Return
from benchmarks.recovery.session import Outages
from benchmarks.resumable import memory, throughput
from benchmarks.serve import rivals as servers
from benchmarks.serve.bulk import BulkFigures

MACHINE = {"processor": "a slide rule", "curl": "", "load": "0.00"}
BEFORE = "# Benchmarks\n\n## Others\n\nby hand\n\n## Speed\n\nold\n\n## Last\n\nby hand, too\n"


@dataclass
class Figures:
    bytes_per_s: float


class UndrawnPlot(Plot):
    def svg(self) -> bytes:
        raise BenchmarkError("no ink")


class Reports(unittest.TestCase):
    def setUp(self) -> None:
        self.directory = self.enterContext(scratch_directory())
        self.document = Document(self.directory / "benchmarks.md")
        self.document.path.write_text(BEFORE)
        self.enterContext(mock.patch("benchmarks.common.report.machine", lambda: dict(MACHINE)))

    def parsed(self, *words: str, rounds: int | None = None) -> argparse.Namespace:
        parser = argparse.ArgumentParser()
        add_arguments(parser, rounds, "turns")
        return parser.parse_args([*words, "--json", str(self.directory / "json")])

    def run_benchmark(
        self, *words: str, error: BaseException | None = None, plots: Sequence[Plot] = ()
    ) -> tuple[int, str, str]:
        """Measures two contenders, with `error` between them. Returns the exit code, standard output and error."""
        report = Report("speed", self.document)
        rows: list[list[str]] = []
        figures: dict[str, Figures] = {}
        with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(io.StringIO()) as complained:
            with report.measuring():
                for number, name in enumerate(("first | ours", "second")):
                    if number and error:
                        raise error
                    rows.append([name, "7.0"])
                    figures[name] = Figures(7)
            table, empty = Table(["speed", "B/s"], rows), Table(["never measured"], [])
            section = Section("Speed", "By a stopwatch.", [empty, table], ["it is fast.", "met"], ["seed 4"], plots)
            report.sections = [section, Section("Nothing", "Not measured.", [empty])]
            report.figures = figures
            code = report.finish(self.parsed(*words))
        return code, said.getvalue(), complained.getvalue()

    def stored(self) -> dict[str, object]:
        found = json.loads((self.directory / "json").read_text())
        assert isinstance(found, dict)
        return found

    def files(self) -> list[str]:
        """The names of all files except the JSON."""
        return sorted(path.name for path in self.directory.rglob("*") if path.is_file() and path.name != "json")

    def test_what_was_measured_is_shown_stored_and_written_in_place_of_what_was_there(self) -> None:
        plot = Plot("speed", "bytes", "B/s", [Curve("ours", [1, 10], [2, 20])])
        code, said, complained = self.run_benchmark("--write", plots=[plot])
        self.assertEqual((code, complained), (0, ""))
        shown = (
            "processor a slide rule; load 0.00\n\nBy a stopwatch.\n\n"
            "speed         B/s\nfirst | ours  7.0\nsecond        7.0\n\nit is fast.\nmet\nseed 4\n\n"
        )
        self.assertTrue(said.startswith(shown), said)
        figures = {"first | ours": {"bytes_per_s": 7}, "second": {"bytes_per_s": 7}}
        self.assertEqual(self.stored(), {"machine": MACHINE, "figures": figures})
        section = (
            "## Speed\n\nBy a stopwatch.\n\n"
            "| speed | B/s |\n| --- | ---: |\n| first \\| ours | 7.0 |\n| second | 7.0 |\n\n"
            "it is fast; met.\n\n![B/s, by bytes](benchmarks/speed.svg)\n\n"
            "Measured on: processor a slide rule; load 0.00.\n\n"
        )
        self.assertEqual(self.document.path.read_text(), BEFORE.replace("## Speed\n\nold\n\n", section))
        self.assertEqual(self.files(), ["benchmarks.md", "speed.svg"])

    def test_a_failure_half_way_leaves_the_document_alone_and_shows_what_was_measured(self) -> None:
        plot = Plot("speed", "bytes", "B/s", [Curve("ours", [1, 10], [2, 20])])
        code, said, complained = self.run_benchmark("--write", error=BenchmarkError("no second"), plots=[plot])
        self.assertEqual(code, 1)
        self.assertIn("speed         B/s\nfirst | ours  7.0\n\n", said)
        self.assertIn("speed: no second\n", complained)
        self.assertIn("is left as it was", complained)
        self.assertEqual(self.stored(), {"machine": MACHINE, "figures": {"first | ours": {"bytes_per_s": 7}}})
        self.assertEqual((self.document.path.read_text(), self.files()), (BEFORE, ["benchmarks.md"]))

    def test_nothing_is_written_that_was_not_asked_for(self) -> None:
        self.assertEqual(self.run_benchmark()[0], 0)
        self.assertEqual((self.document.path.read_text(), self.files()), (BEFORE, ["benchmarks.md"]))

    def test_a_plot_that_cannot_be_drawn_leaves_neither_pictures_nor_tables(self) -> None:
        curves = [Curve("ours", [1, 10], [2, 20])]
        plots = [Plot("drawn", "x", "y", curves), UndrawnPlot("undrawn", "x", "y", curves)]
        code, _, complained = self.run_benchmark("--write", plots=plots)
        self.assertEqual((code, "speed: no ink\n" in complained), (1, True))
        self.assertEqual((self.document.path.read_text(), self.files()), (BEFORE, ["benchmarks.md"]))

    def test_an_interrupted_benchmark_shows_nothing_and_passes_the_interruption_on(self) -> None:
        with self.assertRaises(KeyboardInterrupt):
            self.run_benchmark("--write", error=KeyboardInterrupt())
        self.assertEqual((self.document.path.read_text(), self.files()), (BEFORE, ["benchmarks.md"]))

    def test_only_what_has_rounds_can_be_asked_for_them(self) -> None:
        self.assertEqual(self.parsed(rounds=5).rounds, 5)
        with self.assertRaises(SystemExit), contextlib.redirect_stderr(io.StringIO()):
            self.parsed("--rounds", "5")


class WhatWasMeasuredUntilAFailure(unittest.TestCase):
    """The tables of each benchmark can be made from incomplete results, and have a row for each measured contender."""

    def titles(self, table: Table) -> list[str]:
        for row in table.rows:
            self.assertEqual(len(row), len(table.header))
        return [row[0] for row in table.rows]

    def test_live(self) -> None:
        names = {key: key.upper() for key in "abc"}
        columns = (("delay ms", "delay", 1), ("syscalls/s", "syscalls", 0))
        targets = (Target("delay", "a", "b", 1.0), Target("delay", "a", "c", 1.0), Target("syscalls", "a", "b", 1.0))
        rounds: dict[str, list[dict[str, object]]] = {"a": [{"delay": 4.0}, {"delay": 9.0}], "b": [{"delay": 2}]}
        shown, ratios = Comparison("live", "", rounds, names, columns, targets).tables()
        self.assertEqual(shown.rows, [["A", "6.5 (4.0–9.0)", "–"], ["B", "2.0", "–"]])
        self.assertEqual(ratios.rows, [["delay ms: A", "B", "2.00", "≤ 1.00 MISSED"]])

    def test_faults(self) -> None:
        outcome = Outcome(12.0, 0.0, True, "error", "broken pipe", 1)
        outcomes: faults.Outcomes = {"reset": {ARECORD.key: [outcome]}, "late": {}}
        table = faults.table(outcomes, [ARECORD, FFMPEG])
        self.assertEqual(table.rows, [["TCP connection reset", "12 ms, ended, reports an error", "–"]])
        self.assertEqual(faults.details(outcomes), ["reset, arecord: [12] ms, 0 ms twice; broken pipe"])

    def test_faults_of_which_one_fails(self) -> None:
        outcome = Outcome(12.0, 0.0, True, "error", "broken pipe", 1)

        def conclude(scene: mock.Mock) -> Outcome:
            if scene.contender is FFMPEG:
                raise error
            return outcome

        def scene(contender: Contender, *_: object) -> mock.Mock:
            return mock.Mock(contender=contender, said=lambda: "")

        found: dict[str, list[Outcome]] = {}
        with (
            scratch_directory() as scratch,
            mock.patch.object(faults, "Scene", scene),
            mock.patch.object(faults, "conclude", conclude),
            mock.patch.dict(faults.FAULTS, {"reset": ("", lambda _: None)}),
        ):
            error: Exception = BenchmarkError("no body")
            with self.assertRaisesRegex(BenchmarkError, "ffmpeg fifo, 10 ms, reset: no body"):
                faults.play("reset", [FFMPEG, ARECORD], scratch, scratch, found)
            self.assertEqual(found, {ARECORD.key: [outcome]})
            # A programming error ends the benchmark, even if it happens on another thread.
            error = KeyError("a mistake")
            with self.assertRaises(KeyError):
                faults.play("reset", [FFMPEG, ARECORD], scratch, scratch, found)

    def test_throughput(self) -> None:
        figures = throughput.Figures(100.0, 1.0, 1.0, 8.0)
        found = [
            throughput.PairRounds("disk", {"ours": [figures, figures], "curl": [figures]}),
            throughput.PairRounds("memory", {"ours": [figures], "curl": []}),
        ]
        uploads, ratios = throughput.tables(found)
        self.assertEqual(self.titles(uploads), ["ours, disk", "curl, disk", "ours, memory"])
        self.assertEqual(self.titles(ratios), ["ours / curl, disk"])

    def test_memory(self) -> None:
        self.assertEqual(memory.table({"put": []}).rows, [])

    def test_load(self) -> None:
        figures = libcurl.Figures(*[1.0] * 7)
        whole, part, none = (libcurl.Load(streams, 1000, 1.0) for streams in (1, 2, 3))
        ours, theirs = (each.title for each in libcurl.PAIR)
        found: dict[libcurl.Load, libcurl.Rounds] = {
            whole: {ours: [figures, figures], theirs: [figures]},
            part: {ours: [figures], theirs: []},
            none: {ours: [], theirs: []},
        }
        generators, ratios = libcurl.tables(found)
        self.assertEqual([title.split(", ")[0] for title in self.titles(generators)], [whole.title] * 2 + [part.title])
        self.assertEqual(self.titles(ratios), [whole.title])
        self.assertEqual([list(curve.x) for curve in libcurl.plots(found)[0].curves], [[1], [1]])

    def test_load_testers(self) -> None:
        ours, theirs = (each for each in testers.TESTERS if each.key in ("sluice", "locust"))
        window = Window(1.0, 10, 10, 10, 320_000, 0, 32_000.0, 250.0, 0.1)
        point = load_testers.Point(10, window, 1.0, 1.0, 1)
        found, report = load_testers.Growths(), Report("rivals")
        outcomes = [point, point, BenchmarkError("no receiver")]
        with (
            scratch_directory() as scratch,
            mock.patch.object(load_testers, "measure", side_effect=outcomes),
            mock.patch("benchmarks.common.report.machine", lambda: dict(MACHINE)),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            found.measure(ours, [10], 1.0, scratch, report)
            self.assertIn("sluice load 10, no other tester held any", found.verdict())
            found.measure(theirs, [10, 20], 1.0, scratch, report)
            code = report.finish(argparse.Namespace(json=None, write=False))
        self.assertEqual(
            [(row[1], row[-1]) for row in found.rows], [("10", "the largest number tried"), ("10", "no receiver")]
        )
        # There is no verdict if the measurement of a tester is incomplete.
        self.assertEqual((found.verdict(), code), ("", 1))

    def test_recovery(self) -> None:
        load = recovery.loads("paced")[0]
        returned = Return(3.0, 4.0, 0, 0)
        found = recovery.Found({load.title: Outages(), "them": [returned], "others": []}, {("10", load): Outages()})
        section = found.section(argparse.Namespace(events=2, down=1.0, least_down=0.5, seed=1))
        self.assertEqual([self.titles(table) for table in section.tables], [["them"], []])
        self.assertEqual(section.remarks, [])

    def test_servers(self) -> None:
        figures = BulkFigures(100.0, 1.0)
        found = {f"{servers.OURS}/1": [figures], f"{servers.NGINX}/1": [figures] * 2, f"{servers.NGINX}/4": [figures]}
        table = servers.bulk_table(found)
        self.assertEqual([row[-1] for row in table.rows], ["–", "1.00; ≥ 1.0 met", "–"])


if __name__ == "__main__":
    unittest.main()
