"""The few kinds of plot a report needs, as SVG. Colours and fonts come from the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 560, 220
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 14, 36


def share_bar(segments: Sequence[tuple[str, float, str, float]]) -> str:
    """One bar of (label, share of 1, colour class, opacity) segments."""
    x, drawn = 0.0, []
    for label, share, colour, opacity in segments:
        width = share * 1000
        title = f"<title>{escape(label)} {share:.1%}</title>"
        drawn.append(
            f'<rect class="{colour}" x="{x:.2f}" y="0" width="{max(width - 1, 0.3):.2f}" height="34" '
            f'fill-opacity="{opacity:.2f}">{title}</rect>'
        )
        x += width
    return f'<svg viewBox="0 0 1000 34" class="wide" preserveAspectRatio="none" role="img">{"".join(drawn)}</svg>'


def columns(labels: Sequence[str], values: Sequence[float], texts: Sequence[str], axis: str) -> str:
    """Vertical bars with a text over each."""
    frame = _Frame([0, max([*values, 1e-9]) * 1.12], axis)
    step = frame.inner / max(1, len(values))
    drawn = []
    for i, (label, value, text) in enumerate(zip(labels, values, texts, strict=True)):
        x, y = LEFT + (i + 0.15) * step, frame.y(value)
        middle = LEFT + (i + 0.5) * step
        drawn.append(
            f'<rect class="c1" x="{x:.1f}" y="{y:.1f}" width="{0.7 * step:.1f}" height="{frame.bottom - y:.1f}"/>'
            f'<text class="over" x="{middle:.1f}" y="{y - 4:.1f}">{escape(text)}</text>'
            f'<text class="tick" x="{middle:.1f}" y="{frame.bottom + 14:.1f}">{escape(label)}</text>'
        )
    return frame.close(drawn)


def lines(series: Mapping[str, Sequence[float]], axis: str) -> str:
    """Curves over 1, 2, ..., each with its name at its last point."""
    longest = max(len(values) for values in series.values())
    frame = _Frame([0, max(max(values) for values in series.values()) * 1.12], axis)
    step = frame.inner / longest
    drawn = [
        f'<text class="tick" x="{LEFT + (i + 0.5) * step:.1f}" y="{frame.bottom + 14:.1f}">{i + 1}</text>'
        for i in range(longest)
    ]
    for colour, (name, values) in enumerate(series.items(), 1):
        places = [(LEFT + (i + 0.5) * step, frame.y(value)) for i, value in enumerate(values)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        drawn.append(f'<polyline class="s{colour}" points="{path}"/>')
        drawn += [
            f'<circle class="c{colour}" cx="{x:.1f}" cy="{y:.1f}" r="3"><title>{escape(name)}: {value:.2f}</title>'
            "</circle>"
            for (x, y), value in zip(places, values, strict=True)
        ]
        x, y = places[-1]
        drawn.append(f'<text class="name t{colour}" x="{x:.1f}" y="{y - 8:.1f}">{escape(name)}</text>')
    return frame.close(drawn)


def dots(values: Sequence[float], axis: str, clip: float) -> str:
    """One dot per value, in order; values above `clip` are drawn at the top."""
    frame = _Frame([0, clip * 1.05], axis)
    step = frame.inner / max(1, len(values))
    drawn = [
        f'<circle class="c1" cx="{LEFT + (i + 0.5) * step:.1f}" cy="{frame.y(min(value, clip)):.1f}" r="1.8">'
        f"<title>{value:.2f}</title></circle>"
        for i, value in enumerate(values)
    ]
    return frame.close(drawn)


class _Frame:
    """Axes of one plot: a grid of round numbers, a title for the values."""

    def __init__(self, extent: Sequence[float], axis: str) -> None:
        self.low, self.high = extent
        self.axis = axis
        self.inner = WIDTH - LEFT - RIGHT
        self.bottom = HEIGHT - BOTTOM

    def y(self, value: float) -> float:
        return self.bottom - (value - self.low) / (self.high - self.low) * (self.bottom - TOP)

    def close(self, drawn: Sequence[str]) -> str:
        grid = []
        for value in _round_numbers(self.high):
            y = self.y(value)
            grid.append(
                f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
                f'<text class="value" x="{LEFT - 6}" y="{y + 3.5:.1f}">{value:g}</text>'
            )
        title = f'<text class="axis" x="{WIDTH / 2:.0f}" y="{HEIGHT - 4}">{escape(self.axis)}</text>'
        return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{"".join([*grid, *drawn, title])}</svg>'


def _round_numbers(high: float) -> list[float]:
    """About four grid values from 0 up to `high`."""
    rough = high / 4
    power = 10 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.8)
    return [round(i * step, 10) for i in range(int(high / step) + 1)]
