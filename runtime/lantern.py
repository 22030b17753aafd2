"""LANTERN and LANTERN++: a drafted token may borrow the target's mass of its neighbours in the VQ codebook."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .drift import acceptance_probability
from .law import Law
from .resampling import residual_distribution

Distribution = NDArray[np.floating[Any]]
NeighborTable = NDArray[np.uint16]

# Rows of the table that are looked up at once: bounds memory at 1024 x k numbers.
BLOCK = 1024


@dataclass(frozen=True)
class NeighborAcceptance:
    """`a(x) = p(x) + c(x)`, c(x) the largest `p(n_1) + ... + p(n_m)`, m <= k, that is at most `delta + excess p(x)`.

    n_1, n_2, ... are x's nearest codes. LANTERN (arXiv 2410.03355) bounds c by delta alone, LANTERN++ (arXiv
    2502.06352) by excess = lambda - 1. table: [V, >= k], nearest first, a code itself left out.

    Optimal resampling [derived]: a >= p, hence `[p - min(q, a)]_+ = [p - q]_+` for any such a; and the excess of the
    emitted law over p sits where q > p, hence `TV = beta - beta(1) = sum over {q > p} of min(q - p, c)`.
    native: the authors' own residual instead; its TV depends on which token fell and is not computed.
    beyond_support: let a token with p = 0 (outside top-k, say) stand on what it borrows, as the released code does. No
    rule of the registry sets it; it is for repeating runs of that code.
    """

    table: NeighborTable
    k: int
    delta: float = 0.0
    excess: float = 0.0
    native: bool = False
    beyond_support: bool = False

    @property
    def lossy(self) -> bool:
        return self.k > 0 and (self.native or self.delta > 0 or self.excess > 0)

    def weight(self, p: Law, token: int) -> float:
        own = p[token]
        if own == 0 and not self.beyond_support:
            return 0.0
        return own + float(self._borrowed(p.dense(), np.array([token]))[0][0])

    def measure(self, p: Law, q: Law) -> tuple[float, float]:
        return self._measure(p.dense(), q.dense())

    def _measure(self, p: Distribution, q: Distribution) -> tuple[float, float]:
        beta, drift = acceptance_probability(p, q), 0.0
        if self.lossy:
            relaxed = np.flatnonzero((q > p) & ((p > 0) | self.beyond_support))
            for block in np.split(relaxed, range(BLOCK, len(relaxed), BLOCK)):
                drift += float(np.minimum(q[block] - p[block], self._borrowed(p, block)[0]).sum())
        return min(1.0, beta + drift), float("nan") if self.lossy and self.native else drift

    def residual(self, p: Law, q: Law, rejected: int) -> Law:
        residual = self._native_residual if self.native else self._optimal_residual
        return Law.of_dense(residual(p.dense(), q.dense(), rejected))

    def _optimal_residual(self, p: Distribution, q: Distribution, rejected: int) -> NDArray[np.float64]:
        return residual_distribution(p, q)

    def _native_residual(self, p: Distribution, q: Distribution, rejected: int) -> NDArray[np.float64]:
        """`Norm([p - q]_+)` with q zeroed at the k + 1 codes nearest to `rejected` (k + 1 is the released code's, not
        the papers') if any prefix fitted the bound, even one without mass. A token that was chosen, not drawn (q is
        one-hot), has p zeroed there instead. Where nothing is left p stays, not the released code's uniform law."""
        if not self._borrowed(p, np.array([rejected]))[1][0]:
            return residual_distribution(p, q)
        kept = np.ones(len(p), dtype=bool)
        kept[self.table[rejected, : self.k + 1]] = False
        if q[rejected] < 1:
            return residual_distribution(p, q * kept)
        kept[rejected] = False
        return residual_distribution(p * kept if np.any(p * kept) else p, q)

    def _borrowed(self, p: Distribution, tokens: NDArray[np.int64]) -> tuple[Distribution, NDArray[np.bool_]]:
        """c of each token, and whether any prefix fitted the bound: [n] and [n]."""
        if not self.k:
            return np.zeros(len(tokens)), np.zeros(len(tokens), dtype=bool)
        sums = np.cumsum(p[self.table[tokens, : self.k]], axis=1, dtype=np.float64)
        fits = sums <= (self.delta + self.excess * p[tokens])[:, None]
        return np.where(fits, sums, 0.0).max(axis=1), fits[:, 0]
