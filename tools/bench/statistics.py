"""Intervals for figures that are ratios of sums over images."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

RESAMPLES = 2000


@dataclass(frozen=True)
class Estimate:
    """A figure with its 95 % bootstrap interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"


def ratio_of_sums(numerators: ArrayLike, denominators: ArrayLike, seed: int = 0) -> Estimate:
    """`sum(numerators) / sum(denominators)`, resampling the pairs (images) with replacement."""
    pairs: NDArray[np.float64] = np.stack([np.asarray(numerators, float), np.asarray(denominators, float)])
    picks = np.random.default_rng(seed).integers(0, pairs.shape[1], (RESAMPLES, pairs.shape[1]))
    resampled = pairs[:, picks].sum(axis=2)
    low, high = np.percentile(resampled[0] / resampled[1], [2.5, 97.5])
    return Estimate(float(pairs[0].sum() / pairs[1].sum()), float(low), float(high))


def ratio_of_medians(numerators: ArrayLike, denominators: ArrayLike, seed: int = 0) -> Estimate:
    """`median(numerators) / median(denominators)` of two independent samples, each resampled with replacement."""
    rng = np.random.default_rng(seed)
    samples = [np.asarray(values, dtype=np.float64) for values in (numerators, denominators)]
    medians = [_resampled_medians(sample, rng) for sample in samples]
    low, high = np.percentile(medians[0] / medians[1], [2.5, 97.5])
    return Estimate(float(np.median(samples[0]) / np.median(samples[1])), float(low), float(high))


def _resampled_medians(sample: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    """Medians of resamples without making them: the middle one of n uniform ranks has a beta distribution."""
    middle = (len(sample) + 1) / 2
    ranks = rng.beta(middle, middle, RESAMPLES)
    return np.asarray(np.quantile(sample, ranks, method="inverted_cdf"))
