"""A distribution kept as its survivors: the tokens that top-k and top-p left, and their mass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .sampling import UniformSource, sample_token


@dataclass(frozen=True)
class Law:
    """A distribution over V tokens that is zero outside its survivors.

    tokens: [n] int64, ascending. mass: [n] float64, summing to 1 (all zero: nothing is left). size: V.
    Sums over the vocabulary become sums over n entries, which is what makes verification cheap under top-k.
    """

    tokens: NDArray[np.int64]
    mass: NDArray[np.float64]
    size: int

    @classmethod
    def of_dense(cls, p: NDArray[np.floating[Any]]) -> Law:
        """p [V], zeros included."""
        tokens = np.flatnonzero(p)
        return cls(tokens, p[tokens].astype(np.float64), len(p))

    @classmethod
    def one_hot(cls, token: int, size: int) -> Law:
        """All mass on one token."""
        return cls(np.array([token]), np.ones(1), size)

    def __getitem__(self, token: int) -> float:
        place = int(np.searchsorted(self.tokens, token))
        held = place < len(self.tokens) and self.tokens[place] == token
        return float(self.mass[place]) if held else 0.0

    @property
    def empty(self) -> bool:
        """True when no token has mass."""
        return not self.mass.any()

    def dense(self) -> NDArray[np.float64]:
        """[V] float64."""
        p = np.zeros(self.size)
        p[self.tokens] = self.mass
        return p

    def at(self, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """The mass of each of `tokens` [m], 0 where it did not survive."""
        if len(self.tokens) == self.size:
            return self.mass if len(tokens) == self.size else self.mass[tokens]
        return self.dense()[tokens]

    def sample(self, u: float) -> int:
        """The token at `u` of the cumulative mass in vocabulary order, see `sampling.sample_token`."""
        return int(self.tokens[sample_token(self.mass, u)])

    def without(self, token: int) -> Law:
        """With one token's mass removed, renormalised; empty when nothing is left."""
        rest = np.where(self.tokens == token, 0.0, self.mass)
        total = rest.sum()
        return Law(self.tokens, rest / total if total > 0 else rest, self.size)

    def draw_distinct(self, count: int, rng: UniformSource) -> list[int]:
        """Draw without replacement, one uniform a token; fewer than `count` when there are no more.

        Each draw is from what the tokens already drawn leave, renormalised.
        """
        law, tokens = self, [self.sample(rng.random())]
        while len(tokens) < count:
            law = law.without(tokens[-1])
            if law.empty:
                break
            tokens.append(law.sample(rng.random()))
        return tokens
