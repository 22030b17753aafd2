"""What relaxation costs: the exact total variation between the law a position emits and the target's p."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Distribution = NDArray[np.floating[Any]]


def acceptance_probability(p: Distribution, q: Distribution, omega: float = 1.0) -> float:
    """`beta(omega) = sum_x min(q, omega p)`: the chance that a token drafted from q is accepted. p, q: [V]."""
    return float(np.minimum(1.0, np.minimum(q, omega * p).sum(dtype=np.float64)))


def position_drift(p: Distribution, q: Distribution, omega: float = 1.0) -> float:
    """Total variation of the emitted law from p: `beta(omega) - beta(1)` for omega > 1, exactly 0 otherwise. p, q: [V].

    Summed over the positions a round reaches it bounds (in expectation) the round's distance from the target.
    """
    if omega <= 1:
        return 0.0
    return float(np.maximum(0.0, acceptance_probability(p, q, omega) - acceptance_probability(p, q, 1.0)))
