"""Intervals for figures of a set of images."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

RESAMPLES = 2000
# A figure, and its values on resampled images [R]; those of several settings are paired.
Resampled = tuple[float, NDArray[np.float64]]


@dataclass(frozen=True)
class Estimate:
    """A figure with its 95 % bootstrap interval; the bounds are NaN where there is none."""

    value: float
    low: float = math.nan
    high: float = math.nan

    def __str__(self) -> str:
        if math.isnan(self.value):
            return "unknown"
        return f"{self.value:.3g}" if math.isnan(self.low) else f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"

    @classmethod
    def of(cls, value: float, resampled: NDArray[np.float64], centred: bool = False) -> Estimate:
        """From the figure's values on resampled images.

        centred: move the interval by the bootstrap's own bias, for figures that duplicates push one way (the Fréchet
        distance); it is then about the figure at this number of images.
        """
        low, high = np.percentile(resampled, [2.5, 97.5])
        shift = float(value - resampled.mean()) if centred else 0.0
        return cls(float(value), float(low) + shift, float(high) + shift)


def ratio_of_sums(numerators: ArrayLike, denominators: ArrayLike, seed: int = 0) -> Estimate:
    """`sum(numerators) / sum(denominators)`, resampling the pairs (images) with replacement."""
    pairs: NDArray[np.float64] = np.stack([np.asarray(numerators, float), np.asarray(denominators, float)])
    picks = resampled_images(pairs.shape[1], RESAMPLES, seed)
    resampled = pairs[:, picks].sum(axis=2)
    return Estimate.of(pairs[0].sum() / pairs[1].sum(), resampled[0] / resampled[1])


def ratio_of_medians(numerators: ArrayLike, denominators: ArrayLike, seed: int = 0) -> Estimate:
    """`median(numerators) / median(denominators)` of two independent samples, each resampled with replacement."""
    rng = np.random.default_rng(seed)
    samples = [np.asarray(values, dtype=np.float64) for values in (numerators, denominators)]
    medians = [_resampled_medians(sample, rng) for sample in samples]
    return Estimate.of(float(np.median(samples[0]) / np.median(samples[1])), medians[0] / medians[1])


def _resampled_medians(sample: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    """Medians of resamples without making them: the middle one of n uniform ranks has a beta distribution."""
    middle = (len(sample) + 1) / 2
    ranks = rng.beta(middle, middle, RESAMPLES)
    return np.asarray(np.quantile(sample, ranks, method="inverted_cdf"))


def resampled_images(images: int, resamples: int, seed: int = 0) -> NDArray[np.int64]:
    """[resamples, images] indices drawn with replacement; the same for equal arguments, so that figures of several
    settings on the same images can be paired."""
    return np.random.default_rng(seed).integers(0, images, (resamples, images))
