"""The acceptance test of one drafted token, and the relaxed test of COOL-SD."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from .drift import acceptance_probability, position_drift
from .law import Law
from .resampling import residual_distribution


class Acceptance(Protocol):
    """How a token x drawn from q is tested against p: it stands with probability `f(x) = min(1, a(x) / q(x))`.

    A rule is its weight a. Accepted mass `m = q f = min(q, a)`, acceptance probability `beta = sum m` and the optimal
    residual `Norm([p - m]_+)` follow from it. a(x) is 0 wherever p(x) is, so no token outside p's support ever stands.
    Among siblings of a tree p is what earlier rejections left of the target, q the draft's law without those siblings.
    """

    @property
    def lossy(self) -> bool:
        """True when the emitted law can differ from p."""

    def weight(self, p: Law, token: int) -> float:
        """a(token), >= 0."""

    def measure(self, p: Law, q: Law) -> tuple[float, float]:
        """beta, and the total variation of the emitted law from p (NaN where a rule can't tell)."""

    def residual(self, p: Law, q: Law, rejected: int) -> Law:
        """The law of what is emitted, or tested next, after `rejected` fell."""


@dataclass(frozen=True)
class Relaxation:
    """`a = omega p`: COOL-SD (arXiv 2601.09212); omega = 1 is speculative sampling (arXiv 2211.17192).

    Where p is zero so are the accepted mass and the residual: both are computed on p's survivors alone.
    """

    omega: float

    @property
    def lossy(self) -> bool:
        return self.omega > 1

    def weight(self, p: Law, token: int) -> float:
        return self.omega * p[token]

    def measure(self, p: Law, q: Law) -> tuple[float, float]:
        q_mass = q.at(p.tokens)
        return acceptance_probability(p.mass, q_mass, self.omega), position_drift(p.mass, q_mass, self.omega)

    def residual(self, p: Law, q: Law, rejected: int) -> Law:
        return Law(p.tokens, residual_distribution(p.mass, q.at(p.tokens), self.omega), p.size)
