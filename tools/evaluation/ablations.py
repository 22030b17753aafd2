"""The settings of the paper's ablations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from ...runtime import SpeculativeConfig
from .equal_length import SCHEDULES

DRAFT_LENGTH = 5
# Accepted lengths at which schedules are compared, as multiples of that of `lossless`.
GAINS = (1.08, 1.16, 1.24)
LANTERN_LAMBDA = 5.0
# Neighbours: those whose law is written out, and those with which pictures are drawn.
LANTERN_KS, DRAWN_KS = (1, 2, 5, 10, 20, 50), (2, 10, 50)
RESAMPLING: tuple[Literal["optimal", "native"], ...] = ("optimal", "native")
TREES = (None, "mc_sim_7b_63", "naive_extend_57", "dynamic")
LENGTHS, DELTAS = (2, 3, 5, 7), (1.1, 1.5, 2.0)

AR = SpeculativeConfig(rule="ar")
LOSSLESS = SpeculativeConfig(rule="lossless", draft_length=DRAFT_LENGTH)


def schedule(name: str, delta: float) -> SpeculativeConfig:
    """A schedule of `equal_length.SCHEDULES`."""
    rule, floor = SCHEDULES[name]
    return SpeculativeConfig(rule=rule, delta=delta, floor=floor, draft_length=DRAFT_LENGTH)


def lantern(k: int, resampling: Literal["optimal", "native"]) -> SpeculativeConfig:
    """LANTERN++ with k neighbours."""
    return SpeculativeConfig(
        rule="lantern++",
        lantern_k=k,
        lantern_lambda=LANTERN_LAMBDA,
        resampling=resampling,
        draft_length=DRAFT_LENGTH,
    )


def shaped(rule: str, tree: str | None) -> SpeculativeConfig:
    """`lossless`, or `cool` at its default delta, on a tree; None = a chain."""
    return SpeculativeConfig(rule=rule, tree=tree, draft_length=DRAFT_LENGTH)


def swept(length: int, delta: float | None) -> SpeculativeConfig:
    """`cool` with a floor of 1, lossless without a delta."""
    if delta is None:
        return SpeculativeConfig(rule="lossless", draft_length=length)
    return SpeculativeConfig(rule="cool", delta=delta, draft_length=length)


def quality_settings(deltas: Mapping[str, Sequence[float]], ks: Sequence[int]) -> list[SpeculativeConfig]:
    """What is judged by its pictures: schedules at these deltas and residuals with so many neighbours."""
    return [
        LOSSLESS,
        *(schedule(name, delta) for name, own in deltas.items() for delta in own),
        *(lantern(k, resampling) for k in ks for resampling in RESAMPLING),
    ]


def speed_settings() -> list[SpeculativeConfig]:
    """What is judged by the clock: trees, and draft lengths with deltas."""
    return [
        *(shaped(rule, tree) for rule in ("lossless", "cool") for tree in TREES),
        *(swept(length, delta) for length in LENGTHS for delta in (None, *DELTAS)),
    ]
