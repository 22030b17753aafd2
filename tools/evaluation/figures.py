"""The plots of the report's page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..bench.statistics import Estimate
from .ablations import DELTAS, LENGTHS, RESAMPLING
from .findings import Drawn, Findings
from .plots import draw_points, panels
from .recorded import Recorded


def plot_schedules(path: Path, recorded: Recorded, rows: dict[str, list[Drawn]], ar: Drawn) -> None:
    """Drift on recorded rounds, drift as drawn, and the Fréchet distance over that of `ar`, by accepted length."""
    with panels(path, 3) as (left, middle, right):
        for number, (name, own) in enumerate(rows.items()):
            gains = range(len(recorded.deltas[name]))
            expected = [Estimate.of(*recorded.schedule_drift(name, gain)) for gain in gains]
            draw_points(left, [Estimate(recorded.length(gain)) for gain in gains], expected, name, number, "-")
            lengths = [drawn.length for drawn in own]
            draw_points(middle, lengths, [drawn.drift for drawn in own], name, number, "-")
            draw_points(right, lengths, [drawn.farther_than(ar) for drawn in own], name, number, "-")
        left.set(title="recorded rounds", ylabel="drift per token")
        middle.set(title="as drawn", ylabel="drift per token")
        right.set(title="as drawn", ylabel="Fréchet distance minus that of ar")
        right.axhline(0, color="0.6", zorder=0)
        for axis in (left, middle, right):
            axis.set_xlabel("accepted length")
        left.legend(fontsize="small")


def plot_residuals(path: Path, findings: Findings, ks: Sequence[int]) -> None:
    """Exact total variation of LANTERN++'s two residuals by k."""
    with panels(path, 1) as (axis,):
        for number, name in enumerate(RESAMPLING):
            drifts = [findings.recorded.drift(k, name) for k in ks]
            draw_points(axis, [Estimate(k) for k in ks], drifts, name, number, "-")
        axis.set(xlabel="k, neighbours", ylabel="total variation at a position", xscale="log")
        axis.set_xticks(ks, [str(k) for k in ks], minor=False)
        axis.legend()


def plot_lengths(path: Path, cells: dict[tuple[int, float | None], Drawn]) -> None:
    """Accepted length and speed by L, a line a delta."""
    with panels(path, 2) as (left, right):
        for number, delta in enumerate((None, *DELTAS)):
            own = [cells[length, delta] for length in LENGTHS]
            x = [Estimate(length) for length in LENGTHS]
            draw_points(left, x, [drawn.length for drawn in own], delta_name(delta), number, "-")
            draw_points(right, x, [drawn.speed for drawn in own], delta_name(delta), number, "-")
        left.set(xlabel="L", ylabel="accepted length", xticks=LENGTHS)
        right.set(xlabel="L", ylabel="speed vs ar", xticks=LENGTHS)
        left.legend(fontsize="small")


def delta_name(delta: float | None) -> str:
    """Of a column or a line."""
    return "lossless" if delta is None else f"delta {delta:g}"
