"""Tables of figures, for the terminal and for Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """A header and rows with the same number of cells. The first cell names the subject of the row, the others are
    figures."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def text(self) -> str:
        """Columns aligned with spaces: the first to the left, figures to the right."""
        lines = [self.header, *self.rows]
        widths = [max(len(line[column]) for line in lines) for column in range(len(self.header))]
        return "\n".join(
            "  ".join(
                [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:]))]
            ).rstrip()
            for line in lines
        )

    def markdown(self) -> str:
        rule = ["---"] + ["---:"] * (len(self.header) - 1)
        lines = [[cell.replace("|", r"\|") for cell in line] for line in [self.header, rule, *self.rows]]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def median_and_spread(values: Sequence[float], digits: int = 2) -> str:
    """The median, and the minimum and the maximum if they differ."""
    middle = f"{statistics.median(values):.{digits}f}"
    least, most = (f"{value:.{digits}f}" for value in (min(values), max(values)))
    return middle if least == most else f"{middle} ({least}–{most})"
