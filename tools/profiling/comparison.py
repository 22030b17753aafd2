"""Two profiles side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..bench.statistics import Estimate, ratio_of_medians
from .report import Report


@dataclass(frozen=True)
class Ratio:
    """A figure of two profiles. estimate: after / before, with an interval that covers what varied within the runs and
    not what differed between them (another load on the machine, say). Its ends are equal where there is none."""

    name: str
    before: float
    after: float
    estimate: Estimate


def compare_reports(before: Report, after: Report) -> list[Ratio]:
    """Round, plain step, parts, pictures, accepted length and memory, after over before."""
    pairs = [
        ("round, ms", before.speed.round_ms, after.speed.round_ms),
        ("plain step, ms", before.speed.plain_ms, after.speed.plain_ms),
        ("picture, s", before.speed.image_seconds, after.speed.image_seconds),
    ]
    pairs += [
        (f"{part.name}, ms", before.part_ms[part.name], after.part_ms[part.name])
        for part in before.parts
        if part.name in after.part_ms
    ]
    measured = [_ratio(name, a, b) for name, a, b in pairs if np.median(a) > 0]
    scalars = {
        "tokens/s": (before.speed.tokens_per_second, after.speed.tokens_per_second),
        "accepted length": (before.acceptance.accepted_length, after.acceptance.accepted_length),
        "c(T) of a whole round": (_cost(before), _cost(after)),
        "peak memory, MB": (before.memory.peak / 1e6, after.memory.peak / 1e6),
    }
    return measured + [Ratio(name, a, b, Estimate(b / a, b / a, b / a)) for name, (a, b) in scalars.items()]


def _ratio(name: str, before: Sequence[float], after: Sequence[float]) -> Ratio:
    return Ratio(name, float(np.median(before)), float(np.median(after)), ratio_of_medians(after, before))


def _cost(report: Report) -> float:
    target = report.costs.target
    return target[min(report.setup.tokens_per_pass, len(target)) - 1] / target[0]
