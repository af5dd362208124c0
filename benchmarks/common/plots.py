"""Plots of measurements as SVG, drawn by matplotlib (Debian: python3-matplotlib)."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.common.harness import BenchmarkError


@dataclass(frozen=True)
class Curve:
    """Points of one contender, in the order of x."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True)
class Plot:
    """Curves in one pair of logarithmic axes."""

    file: str  # its name, without the suffix
    x_axis: str
    y_axis: str
    curves: Sequence[Curve]

    @property
    def description(self) -> str:
        return f"{self.y_axis}, by {self.x_axis}"

    def svg(self) -> bytes:
        """Draws the plot. Raises BenchmarkError if matplotlib is missing."""
        try:
            import matplotlib
        except ImportError:
            raise BenchmarkError("no matplotlib: apt-get install python3-matplotlib; use /usr/bin/python3") from None
        matplotlib.use("svg")
        from matplotlib import pyplot, ticker

        # The same figures must give the same file, so it contains neither times nor random names. Text stays text.
        pyplot.rcParams.update({"svg.hashsalt": self.file, "svg.fonttype": "none", "font.size": 9})
        figure, axes = pyplot.subplots(figsize=(6.4, 3.6), layout="constrained")
        for marker, curve in zip("osD^vP*X" * 2, self.curves):
            axes.plot(curve.x, curve.y, marker=marker, markersize=4, linewidth=1.2, label=curve.name)
        axes.set(xscale="log", yscale="log", xlabel=self.x_axis, ylabel=self.y_axis)
        # Labels at 10, 20, 50, 100 and so on, because decades alone are too few if the figures span less than two.
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter("{x:g}")
            axis.set_minor_locator(ticker.NullLocator())
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(True, which="major", linewidth=0.4)
        axes.legend(frameon=False, fontsize=8)
        drawn = io.BytesIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None}, facecolor="white")
        pyplot.close(figure)
        return drawn.getvalue()
