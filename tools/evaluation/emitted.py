"""The law a position emits under any acceptance test, written out: for rules whose drift the online meter can't tell."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...runtime.acceptance import Acceptance

Distribution = NDArray[np.floating[Any]]
NEGLIGIBLE = 1e-9


def emitted_law(rule: Acceptance, p: Distribution, q: Distribution) -> NDArray[np.float64]:
    """`E(y) = q(y) f(y) + sum over x of q(x) (1 - f(x)) R_x(y)`, [V], with R_x the rule's residual after x fell.

    Rejections of less than 1e-9 of the mass are left out, and the law is normalised.
    """
    tokens = np.flatnonzero(q)
    accepted = np.minimum([rule.weight(p, int(x)) for x in tokens], q[tokens])
    law = np.zeros(len(p))
    law[tokens] = accepted
    for x, rejected in zip(tokens, q[tokens] - accepted, strict=True):
        if rejected > NEGLIGIBLE:
            law += rejected * rule.residual(p, q, int(x))
    return law / law.sum()


def total_variation(a: Distribution, b: Distribution) -> float:
    """Half the L1 distance of two laws [V]."""
    return float(np.abs(a - b).sum() / 2)
