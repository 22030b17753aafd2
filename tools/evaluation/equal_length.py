"""Schedules compared where they accept equally much: the delta that gives a length, and the drift at a length."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ...runtime.schedules import cool_schedule, linear_schedule, uniform_schedule
from ..bench.contenders import Sample
from ..bench.statistics import RESAMPLES, Estimate, Resampled, resampled_images
from ..calibration.prediction import predict
from ..calibration.trace import Trace

# The paper's three, and the annealed one with a floor of 1: (rule, floor) and omega [L] of (L, delta).
SCHEDULES: dict[str, tuple[str, float | None]] = {
    "exponential": ("cool", None),
    "linear": ("linear", None),
    "uniform": ("uniform", 1.0),
    "exponential, floor 1": ("cool", 1.0),
}
OMEGA: dict[str, Callable[[int, float], NDArray[np.float64]]] = {
    "exponential": lambda length, delta: cool_schedule(length, delta, floor=None),
    "linear": linear_schedule,
    "uniform": uniform_schedule,
    "exponential, floor 1": cool_schedule,
}
LARGEST_DELTA = 16.0


def delta_for(trace: Trace, schedule: str, tokens: float) -> float:
    """The delta at which a schedule is predicted to emit so many tokens a round, by bisection, to 1e-3."""
    low, high = 0.05, LARGEST_DELTA
    while high - low > 1e-3:
        middle = (low + high) / 2
        if predict(trace, OMEGA[schedule](trace.draft_length, middle)).tokens < tokens:
            low = middle
        else:
            high = middle
    return round((low + high) / 2, 3)


def drift_at(samples: Sequence[Sample], length: float) -> Resampled:
    """Drift per token of a schedule at an accepted length, and the same on resampled images [RESAMPLES].

    samples: the schedule at several deltas, on the same images. The least-squares line through them is read off.
    """
    images = len(samples[0].tokens)
    value = _line_at(samples, length, np.arange(images)[None])[0]
    return float(value), _line_at(samples, length, resampled_images(images, RESAMPLES))


def difference(a: Resampled, b: Resampled) -> Estimate:
    """a - b of two figures on the same resampled images."""
    return Estimate.of(a[0] - b[0], a[1] - b[1])


def _line_at(samples: Sequence[Sample], length: float, picks: NDArray[np.int64]) -> NDArray[np.float64]:
    """picks: [R, images] -> [R]."""
    x, y = np.array([_length_and_drift(sample, picks) for sample in samples]).swapaxes(0, 1)
    centred = x - x.mean(axis=0)
    slope = (centred * y).sum(axis=0) / (centred**2).sum(axis=0)
    return np.asarray(y.mean(axis=0) + slope * (length - x.mean(axis=0)))


def _length_and_drift(sample: Sample, picks: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    tokens, passes, drift = (
        np.array(values, dtype=float)[picks].sum(axis=1) for values in (sample.tokens, sample.passes, sample.drift)
    )
    return tokens / passes, drift / tokens
