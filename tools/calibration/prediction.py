"""What a schedule would do on a trace: tokens and drift per round, without running it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .trace import OMEGAS, Trace


@dataclass(frozen=True)
class Prediction:
    """tokens: expected tokens per target pass (plain autoregression is 1). drift: total variation per round, summed
    over the positions it reaches."""

    tokens: float
    drift: float

    @property
    def drift_per_token(self) -> float:
        return self.drift / self.tokens


def predict(trace: Trace, omega: NDArray[np.float64]) -> Prediction:
    """Evaluate omega [L], L at most the trace's.

    A round reaches position i with probability `prod_{j<i} min(1, omega_j p_j(x_j)/q_j(x_j))` given its drafted
    tokens; there it accepts with beta_i and drifts by `beta_i(omega_i) - beta_i(1)`. Averaged over the trace this is
    unbiased for rounds that start where the trace's do.
    """
    tokens, drift = expected_rounds(trace, omega)
    return Prediction(float(tokens.mean()), float(drift.mean()))


def expected_rounds(trace: Trace, omega: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Tokens and drift that each round of the trace is expected to yield: [rounds], [rounds]; see `predict`."""
    length = len(omega)
    stands = np.minimum(1.0, omega * trace.ratio[:, :length])
    reach = np.concatenate([np.ones((len(stands), 1)), np.cumprod(stands, axis=1)[:, :-1]], axis=1)
    beta = _interpolate(trace.beta[:, :length], omega, trace.ratio.shape[0])
    drift = np.where(omega > 1, beta - trace.beta[:, :length, 0], 0.0)
    # The trace has beta from omega = 1 on; below, whether the drafted token stands is as good on average.
    accepted = np.where(omega < 1, stands, beta)
    return 1.0 + (reach * accepted).sum(axis=1), (reach * drift).sum(axis=1)


def _interpolate(beta: NDArray[np.float64], omega: NDArray[np.float64], rounds: int) -> NDArray[np.float64]:
    """beta [rounds, L, len(OMEGAS)] at omega [L] >= 1, linear between the grid's points -> [rounds, L]."""
    clipped = np.clip(omega, OMEGAS[0], OMEGAS[-1])
    right = np.clip(np.searchsorted(OMEGAS, clipped), 1, len(OMEGAS) - 1)
    weight = (clipped - OMEGAS[right - 1]) / (OMEGAS[right] - OMEGAS[right - 1])
    positions = np.arange(len(omega))
    return (1 - weight) * beta[:, positions, right - 1] + weight * beta[:, positions, right]
