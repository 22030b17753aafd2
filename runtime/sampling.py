"""Drawing tokens with uniform numbers."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

# NumPy would import this when it is first used, and its Cython code swallows a Ctrl-C that comes meanwhile.
import numpy.random
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


def image_generator(seed: int, image_index: int) -> numpy.random.Generator:
    """One image's generator. It depends on (seed, image_index) alone, so an image is the same in any batch."""
    return numpy.random.Generator(numpy.random.PCG64(numpy.random.SeedSequence(entropy=seed, spawn_key=(image_index,))))
