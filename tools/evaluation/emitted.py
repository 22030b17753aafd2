"""The law a position emits under any acceptance test, in full: for rules whose drift the online meter can't tell."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...runtime.acceptance import Acceptance
from ...runtime.law import Law

NEGLIGIBLE = 1e-9


def emitted_law(rule: Acceptance, p: Law, q: Law) -> NDArray[np.float64]:
    """`E(y) = q(y) f(y) + sum over x of q(x) (1 - f(x)) R_x(y)`, [V], with R_x the rule's residual after x fell.

    Rejections of less than 1e-9 of the mass are left out, and the law is normalised.
    """
    accepted = np.minimum([rule.weight(p, int(x)) for x in q.tokens], q.mass)
    law = np.zeros(p.size)
    law[q.tokens] = accepted
    for x, rejected in zip(q.tokens, q.mass - accepted, strict=True):
        if rejected > NEGLIGIBLE:
            residual = rule.residual(p, q, int(x))
            law[residual.tokens] += rejected * residual.mass
    return law / law.sum()


def total_variation(law: NDArray[np.float64], p: Law) -> float:
    """Half the L1 distance of a law [V] from p."""
    return float(np.abs(law - p.dense()).sum() / 2)
