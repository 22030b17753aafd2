"""Drawing one token from a distribution with one uniform number."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .spans import spanned


class UniformSource(Protocol):
    """Where uniforms come from: `numpy.random.Generator`, or a recorded stream that is being replayed."""

    def random(self) -> float:
        """The next number, uniform on [0, 1)."""


@spanned("sample")
def sample_token(p: NDArray[np.floating[Any]], u: float) -> int:
    """Inverse CDF: the first token (vocabulary order) whose cumulative mass exceeds `u * total`.

    Args: p [V], not necessarily normalised, at least one positive entry. u in [0, 1).
    Returns: a token with p > 0, always.
    """
    cumulative = np.cumsum(p, dtype=np.float64)
    token = int(np.searchsorted(cumulative, u * cumulative[-1], side="right"))
    if token == len(cumulative):  # u * total rounded up to total
        token = int(np.flatnonzero(p)[-1])
    return token


@spanned("sample")
def draw_distinct(q: NDArray[np.floating[Any]], count: int, rng: UniformSource) -> list[int]:
    """Draw without replacement, one uniform a token; fewer than `count` when q [V] has no more.

    Each draw is from q without the tokens already drawn, renormalised.
    """
    tokens = [sample_token(q, rng.random())]
    while len(tokens) < count:
        q = without(q, tokens[-1])
        if not q.any():
            break
        tokens.append(sample_token(q, rng.random()))
    return tokens


def without(q: NDArray[np.floating[Any]], token: int) -> NDArray[np.floating[Any]]:
    """q [V] with one token's mass removed, renormalised; all zero when nothing is left."""
    rest: NDArray[np.floating[Any]] = q.copy()
    rest[token] = 0.0
    mass = rest.sum()
    if mass > 0:
        rest /= mass
    return rest


def image_generator(seed: int, image_index: int) -> np.random.Generator:
    """One image's generator. It depends on (seed, image_index) alone, so an image is the same in any batch."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy=seed, spawn_key=(image_index,))))
