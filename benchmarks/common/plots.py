"""Plots of what was measured, as SVG beside docs/benchmarks.md, by matplotlib (Debian: python3-matplotlib)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.common.harness import BenchmarkError
from benchmarks.common.report import DOCUMENT


@dataclass(frozen=True)
class Curve:
    """Points of one contender, in the order of x."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


def write_plot(file: str, x_axis: str, y_axis: str, curves: Sequence[Curve]) -> str:
    """Writes docs/benchmarks/FILE.svg, both axes logarithmic; returns the line of Markdown that shows it."""
    try:
        import matplotlib
    except ImportError:
        raise BenchmarkError("no matplotlib: apt-get install python3-matplotlib, and /usr/bin/python3") from None
    matplotlib.use("svg")
    from matplotlib import pyplot, ticker

    # The same figures give the same file: neither times nor random names in it, and text as text.
    pyplot.rcParams.update({"svg.hashsalt": file, "svg.fonttype": "none", "font.size": 9})
    figure, axes = pyplot.subplots(figsize=(6.4, 3.6), layout="constrained")
    for marker, curve in zip("osD^vP*X" * 2, curves):
        axes.plot(curve.x, curve.y, marker=marker, markersize=4, linewidth=1.2, label=curve.name)
    axes.set(xscale="log", yscale="log", xlabel=x_axis, ylabel=y_axis)
    # 10, 20, 50, 100, …, as numbers: a decade alone says little where the figures span less than two.
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_locator(ticker.NullLocator())
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, which="major", linewidth=0.4)
    axes.legend(frameon=False, fontsize=8)
    directory = DOCUMENT.with_suffix("")
    directory.mkdir(exist_ok=True)
    figure.savefig(directory / f"{file}.svg", metadata={"Date": None}, facecolor="white")
    pyplot.close(figure)
    return f"![{y_axis}, by {x_axis}]({directory.name}/{file}.svg)"
