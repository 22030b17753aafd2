"""Recorded spans to rounds, and the time of each round to its parts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ...runtime.spans import Span

PREFILL, ROUND = "prefill", "round"
# Of what an engine waits for, the part the GPU worked: see `engines.trt.clock`.
GPU = "gpu"
OUTSIDE = "between phases"


@dataclass(frozen=True)
class Round:
    """One target pass with what belongs to it. parts: nanoseconds by part, which add up to the whole.

    A part is `phase/work`, like `host/warp`: time within that phase and within no deeper span; what a phase does
    itself is `phase/rest`.
    """

    span: Span
    parts: dict[str, int] = field(default_factory=dict)

    @property
    def nanoseconds(self) -> int:
        return self.span.end - self.span.start

    @property
    def images(self) -> int:
        """Images that shared it."""
        return self.span.images or 1


def outside_in(spans: Iterable[Span]) -> list[Span]:
    """By start; a span before those it contains."""
    return sorted(spans, key=lambda s: (s.start, -s.end, s.depth))


def rounds(spans: Iterable[Span], kind: str = ROUND) -> list[Round]:
    """The rounds (or prefills) among recorded spans, in order."""
    found: list[Round] = []
    path: list[Span] = []
    for span in outside_in(spans):
        while path and path[-1].end <= span.start:
            path.pop()
        if not path and span.name == kind:
            found.append(Round(span))
        path.append(span)
        if path[0].name == kind:
            duration = span.end - span.start
            _charge(found[-1], path, duration)
            if len(path) > 1:  # what a span contains is not its own time
                _charge(found[-1], path[:-1], -duration)
    return found


def part_matrix(found: Sequence[Round]) -> dict[str, NDArray[np.float64]]:
    """Part -> [rounds] seconds, largest part first; 0 where a round has none of it."""
    names = {name for round_ in found for name in round_.parts}
    columns = {name: np.array([round_.parts.get(name, 0) for round_ in found]) / 1e9 for name in names}
    return dict(sorted(columns.items(), key=lambda item: -item[1].sum()))


def _charge(round_: Round, path: Sequence[Span], nanoseconds: int) -> None:
    names = [span.name for span in path[1:]]
    part = OUTSIDE if not names else f"{names[0]}/{names[-1] if len(names) > 1 else 'rest'}"
    round_.parts[part] = round_.parts.get(part, 0) + nanoseconds
