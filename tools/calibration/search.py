"""The best draft length and schedule within a drift budget, from a trace and the machine's costs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ...runtime.config import SpeculativeConfig
from ...runtime.schedules import cool_schedule
from .costs import PassCosts
from .prediction import Prediction, predict
from .trace import Trace

DELTAS = np.concatenate([np.linspace(1.0, 2.0, 21), np.linspace(2.2, 4.0, 10)])
# 0 is uniform; at 3 nearly all relaxation is spent on the first token (front-loaded).
RATES = (0.0, 0.35, 0.7, 1.4, 3.0)


@dataclass(frozen=True)
class Candidate:
    """A setting with what it is predicted to do. speed_up: over plain autoregression on the same machine."""

    config: SpeculativeConfig
    prediction: Prediction
    speed_up: float


def candidates(trace: Trace, costs: PassCosts) -> list[Candidate]:
    """Every setting of the grid: lossless and floored `cool`, L = 1 .. the trace's, and `ar`."""
    found = [Candidate(SpeculativeConfig(rule="ar"), Prediction(1.0, 0.0), 1.0)]
    for length in range(1, trace.draft_length + 1):
        settings = [SpeculativeConfig(rule="lossless", draft_length=length)]
        settings += [
            SpeculativeConfig(rule="cool", delta=round(float(delta), 3), nu=nu, draft_length=length)
            for delta in DELTAS[1:]
            for nu in (RATES if length > 1 else RATES[:1])
        ]
        for config in settings:
            omega = np.ones(length) if config.rule == "lossless" else cool_schedule(length, config.delta, config.nu)
            prediction = predict(trace, omega)
            found.append(Candidate(config, prediction, costs.forecast(length, prediction.tokens).speed_up))
    return found


def best_within(found: Iterable[Candidate], drift_budget: float) -> Candidate:
    """The fastest candidate whose drift per token keeps the budget; `ar` when nothing is faster."""
    return max(
        (candidate for candidate in found if candidate.prediction.drift_per_token <= drift_budget),
        key=lambda candidate: candidate.speed_up,
    )


def frontier(found: Sequence[Candidate], budgets: Iterable[float]) -> list[tuple[float, Candidate]]:
    """The best candidate of each budget."""
    return [(budget, best_within(found, budget)) for budget in budgets]
