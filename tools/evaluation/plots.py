"""Plots of what is traded for what. matplotlib is needed only here."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...runtime.errors import InputError
from ...runtime.files import replacing_file
from ..bench.statistics import Estimate
from .table import TITLES, Row

SUFFIXES = (".png", ".svg")
MARKERS = "osD^vP*X<>"


def check_plot(path: Path | None) -> None:
    """Before any work. Raises: InputError for another kind of file, or without matplotlib."""
    if path is None:
        return
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"--plot {path}: a file ending in {path.suffix or 'nothing'}. Expected .png or .svg.")
    require_matplotlib("--plot")


def require_matplotlib(what: str) -> None:
    """Raises: InputError that says what to install."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise InputError(f"{what}: matplotlib is missing. Install it: pip install 'coolsd-trt[plot]'") from None


@contextmanager
def panels(path: Path, count: int) -> Iterator[Sequence[Any]]:
    """`count` axes side by side, saved to the file when the block ends well."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4 * count, 4.6), layout="constrained")
    axes = figure.subplots(1, count, squeeze=False)[0]
    for axis in axes:
        axis.grid(alpha=0.3)
        axis.set_axisbelow(True)
    yield axes
    with replacing_file(path) as temporary:
        figure.savefig(temporary, dpi=120, format=path.suffix[1:].casefold())


def pareto_plot(rows: Sequence[Row], path: Path) -> None:
    """Speed against drift, and against the Fréchet distance or FID where it is known; the frontier is drawn."""
    costs = ["drift_per_token", *(name for name in ("frechet", "fid") if name in rows[0].figures)]
    with panels(path, len(costs)) as axes:
        for axis, cost in zip(axes, costs, strict=True):
            known = [row for row in rows if not math.isnan(row.figures[cost].value)]
            scatter(axis, known, "speed_up", cost)
            best = frontier(known, "speed_up", cost)
            steps = [row.figures["speed_up"].value for row in best], [row.figures[cost].value for row in best]
            axis.step(*steps, where="pre", color="0.6", zorder=0, label="frontier")
        axes[-1].legend(fontsize="small")


def scatter(axis: Any, rows: Sequence[Row], x: str, y: str) -> None:
    """One mark a setting with its intervals, one colour and marker a rule."""
    rules = list(dict.fromkeys(row.contender.config.rule for row in rows))
    for number, rule in enumerate(rules):
        own = [row for row in rows if row.contender.config.rule == rule]
        draw_points(axis, [row.figures[x] for row in own], [row.figures[y] for row in own], rule, number)
    axis.set(xlabel=TITLES[x], ylabel=TITLES[y])


def draw_points(
    axis: Any, x: Sequence[Estimate], y: Sequence[Estimate], name: str, number: int, line: str = "none"
) -> None:
    """Marks with error bars; `number` chooses colour and marker."""
    axis.errorbar(
        [point.value for point in x],
        [point.value for point in y],
        xerr=_bars(x),
        yerr=_bars(y),
        linestyle=line,
        marker=MARKERS[number % len(MARKERS)],
        markersize=5,
        linewidth=1,
        capsize=2,
        color=f"C{number % 10}",
        label=name,
    )


def frontier(rows: Sequence[Row], gain: str, cost: str) -> list[Row]:
    """The rows that no other beats in both, the cheapest first."""
    ordered = sorted(rows, key=lambda row: (row.figures[cost].value, -row.figures[gain].value))
    best: list[Row] = []
    for row in ordered:
        if not best or row.figures[gain].value > best[-1].figures[gain].value:
            best.append(row)
    return best


def _bars(points: Sequence[Estimate]) -> list[list[float]]:
    """Lengths below and above; none where the bounds are unknown."""
    return [
        [0.0 if math.isnan(point.low) else max(0.0, point.value - point.low) for point in points],
        [0.0 if math.isnan(point.high) else max(0.0, point.high - point.value) for point in points],
    ]
