"""The goodness-of-fit test shared by the statistical tests."""

from __future__ import annotations

import numpy as np
from scipy import stats


def chi_square(observed: np.ndarray, law: np.ndarray) -> float:
    """p-value of counts against a law; cells that expect fewer than 5 are pooled."""
    expected = law / law.sum() * observed.sum()
    small = expected < 5
    pooled = [np.append(values[~small], values[small].sum()) for values in (observed, expected)]
    keep = pooled[1] > 0
    return float(stats.chisquare(pooled[0][keep], pooled[1][keep]).pvalue)
