"""Relaxation schedules omega[L]: how far the acceptance test is relaxed at each draft position (1 = exact)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .errors import InputError


def annealing(draft_length: int, nu: float) -> NDArray[np.float64]:
    """`exp(-nu*i - mu)` of the paper's schedule, with the mu that makes its *mean* over i = 1..L equal 1.

    That the normaliser is the mean (not the sum) is read from a secondary source; it lives only here.
    """
    # Counted from 0, so that the first does not underflow however steep it is.
    weights = np.exp(-nu * np.arange(draft_length))
    normalised: NDArray[np.float64] = weights / weights.mean()
    return normalised


def cool_schedule(
    draft_length: int, delta: float = 1.1, nu: float = 0.7, floor: float | None = 1.0
) -> NDArray[np.float64]:
    """COOL-SD's annealed relaxation, `omega_i = delta * exp(-nu*i - mu)` (arXiv 2601.09212).

    Args:
        draft_length: L >= 1.
        delta: mean of the unfloored schedule; above 1 is lossy.
        nu: annealing rate, 0 gives the uniform schedule.
        floor: least omega. At omega <= 1 the emitted law is exactly p, so values below 1 only lose acceptance:
            1.0 (default) adds no drift and is never slower. None reproduces the paper.
    Returns: omega [L] float64.
    Raises: InputError when delta makes a factor that is not a finite number.
    """
    return _checked(delta * annealing(draft_length, nu), floor)


def linear_schedule(draft_length: int, delta: float = 1.1, floor: float | None = None) -> NDArray[np.float64]:
    """Linear decay with mean delta, reaching zero one position past the draft: `2 delta (L+1-i) / (L+1)`.

    Returns: omega [L] float64, raised to `floor` where given.
    """
    remaining = np.arange(draft_length, 0, -1)
    return _checked(2 * delta * remaining / (draft_length + 1), floor)


def uniform_schedule(draft_length: int, delta: float = 1.1) -> NDArray[np.float64]:
    """The same relaxation everywhere (UniformRSD in the paper's ablation). Returns: omega [L] float64, all delta."""
    return _checked(np.full(draft_length, delta, dtype=np.float64), None)


def _checked(omega: NDArray[np.float64], floor: float | None) -> NDArray[np.float64]:
    """omega, raised to the floor. Annealing may take late positions of an unfloored schedule down to 0."""
    if not np.isfinite(omega).all() or (omega < 0).any():
        raise InputError(f"the schedule is {omega.tolist()}. Expected finite factors, at least 0: lower delta.")
    return omega if floor is None else np.maximum(omega, floor)
