"""What is emitted after a rejection: the residual distribution that minimises the total-variation bias."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import InputError


def residual_distribution(
    p: NDArray[np.floating[Any]], q: NDArray[np.floating[Any]], omega: float = 1.0
) -> NDArray[np.float64]:
    """`G = Norm([p - min(q, omega p)]_+)` (COOL-SD's optimal resampling).

    For omega >= 1 this is the classical `Norm([p - q]_+)`; for omega < 1 it is not, and using that one would be
    biased. The mass vanishes only where a rejection has probability ~0; then p itself is returned.

    Args: p, q [V], the target's and the draft's distribution. omega > 0.
    Returns: [V] float64 summing to 1, zero wherever p is zero.
    Raises: InputError when p has no mass, or something is not a finite number.
    """
    p = np.asarray(p, dtype=np.float64)
    residual: NDArray[np.float64] = p - np.minimum(q, omega * p)
    np.maximum(residual, 0.0, out=residual)
    mass = residual.sum()
    if mass <= 0:
        residual, mass = p.copy(), p.sum()
    if not mass > 0:  # NaN too
        raise InputError(f"residual_distribution got p of mass {p.sum()}, omega = {omega}. Expected numbers above 0.")
    residual /= mass
    return residual
