"""Compares contenders: a table with the results of each, and the ratios with their targets."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from benchmarks.common.report import Section
from benchmarks.common.tables import Table, median_and_spread


@dataclass(frozen=True)
class Target:
    """A target for the ratio of our value to a rival's."""

    measure: str
    ours: str
    rival: str
    limit: float
    at_least: bool = False

    def verdict(self, ratios: list[float]) -> str:
        middle = statistics.median(ratios)
        met = middle >= self.limit if self.at_least else middle <= self.limit
        return f"{'≥' if self.at_least else '≤'} {self.limit:.2f} {'met' if met else 'MISSED'}"


#: The rounds of each contender, in order.
Rounds = dict[str, list[dict[str, object]]]


def _numbers(rounds: Rounds, key: str, what: str) -> list[float]:
    return [value for figures in rounds.get(key, []) if isinstance(value := figures.get(what), (int, float))]


def ratios(rounds: Rounds, target: Target) -> list[float]:
    """The ratios of ours to the rival's, round by round. Empty if one of them was not measured."""
    pairs = zip(_numbers(rounds, target.ours, target.measure), _numbers(rounds, target.rival, target.measure))
    return [ours / rival for ours, rival in pairs if rival > 0]


@dataclass
class Comparison:
    """The rounds of some contenders under the same conditions."""

    title: str
    note: str
    rounds: Rounds
    titles: dict[str, str]
    columns: tuple[tuple[str, str, int], ...]
    targets: tuple[Target, ...]

    def section(self) -> Section:
        return Section(self.title[0].upper() + self.title[1:], self.note, self.tables())

    def tables(self) -> list[Table]:
        header = [self.title, *(column[0] for column in self.columns)]
        rows = []
        for key in self.rounds:
            rows.append([self.titles[key], *(self._cell(key, what, digits) for _, what, digits in self.columns)])
        names = {what: name for name, what, _ in self.columns}
        verdicts = []
        for target in self.targets:
            if found := ratios(self.rounds, target):
                ours = f"{names[target.measure]}: {self.titles[target.ours]}"
                verdicts.append([ours, self.titles[target.rival], median_and_spread(found), target.verdict(found)])
        return [Table(header, rows), Table(["ratio of", "to", "median (spread)", "target"], verdicts)]

    def _cell(self, key: str, what: str, digits: int) -> str:
        values = _numbers(self.rounds, key, what)
        return median_and_spread(values, digits) if values else "–"
