"""The Fréchet distance between two sets of features, each taken for a Gaussian (arXiv 1706.08500)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Gaussian:
    """mean [D] and covariance [D, D] float64."""

    mean: NDArray[np.float64]
    covariance: NDArray[np.float64]

    @classmethod
    def of(cls, features: NDArray[np.floating[Any]], weights: NDArray[np.floating[Any]] | None = None) -> Gaussian:
        """Of features [N, D] with weights [N], equal ones by default; N at least 2."""
        x = np.asarray(features, dtype=np.float64)
        w = np.full(len(x), 1 / len(x)) if weights is None else weights / weights.sum()
        mean = w @ x
        centred = x - mean
        # Unbiased for these weights; with equal ones it is the usual 1 / (N - 1).
        return cls(mean, (centred * w[:, None]).T @ centred / (1 - (w**2).sum()))


def frechet_distance(a: Gaussian, b: Gaussian) -> float:
    """`|m_a - m_b|^2 + tr(A + B - 2 (A B)^(1/2))`; the trace by way of `A^(1/2) B A^(1/2)`, which is symmetric."""
    values, vectors = np.linalg.eigh(a.covariance)
    root = (vectors * np.sqrt(values.clip(min=0))) @ vectors.T
    shared = np.sqrt(np.linalg.eigvalsh(root @ b.covariance @ root).clip(min=0)).sum()
    distance = ((a.mean - b.mean) ** 2).sum() + np.trace(a.covariance) + np.trace(b.covariance) - 2 * shared
    return float(max(distance, 0.0))
