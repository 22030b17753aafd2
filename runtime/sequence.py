"""One image in the making, and the batch of those that are generated together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .condition import Prompt
from .sampling import UniformSource
from .stats import ImageStats


class ImageSequence:
    """The tokens of one image, its own generator and its counters.

    The last emitted token is *pending*: it is known, but no engine has cached it yet.
    """

    def __init__(self, prompt: Prompt, n_tokens: int, rng: UniformSource, draft_length: int) -> None:
        self.prompt = prompt
        self.rng = rng
        self.tokens = np.zeros(n_tokens, dtype=np.int64)
        self.stats = ImageStats(draft_length)
        self.last_emitted: list[int] = []

    @property
    def prefix_length(self) -> int:
        return len(self.prompt.mask)

    @property
    def emitted(self) -> int:
        return self.stats.n_tokens

    @property
    def remaining(self) -> int:
        return len(self.tokens) - self.emitted

    @property
    def pending(self) -> int:
        return int(self.tokens[self.emitted - 1])

    @property
    def cached(self) -> int:
        """Valid positions of the target's cache: the condition and every emitted token but the pending one."""
        return self.prefix_length + self.emitted - 1

    def emit(self, tokens: Sequence[int]) -> None:
        """Append what one target pass yielded."""
        start = self.emitted
        self.tokens[start : start + len(tokens)] = tokens
        self.stats.n_tokens += len(tokens)
        self.stats.target_passes += 1
        self.last_emitted = list(tokens)


class Batch:
    """Images that share passes. Image i owns the engine rows [i * branches, (i + 1) * branches): cond, then uncond.

    features: [rows, S, H], the target's hidden states of the last pass; entry j of a row belongs to the j-th token
    of `last_emitted` (it is what that token was predicted from).
    """

    def __init__(self, sequences: list[ImageSequence], branches: int) -> None:
        self.sequences = sequences
        self.branches = branches
        self.features: NDArray[np.float32] = np.empty((0, 0, 0), dtype=np.float32)

    def __len__(self) -> int:
        return len(self.sequences)

    def rows(self, i: int) -> slice:
        """The engine rows of image i."""
        return slice(i * self.branches, (i + 1) * self.branches)

    @property
    def stats(self) -> list[ImageStats]:
        return [sequence.stats for sequence in self.sequences]

    def per_row(self, values: ArrayLike) -> NDArray[np.int64]:
        """One value (or equally long list of values) per image -> one per engine row."""
        return np.repeat(np.asarray(values, dtype=np.int64), self.branches, axis=0)

    @property
    def visible(self) -> NDArray[np.bool_]:
        """[rows, P] condition positions that image tokens may attend to."""
        visible: NDArray[np.bool_] = np.stack([sequence.prompt.visible for sequence in self.sequences])
        return np.repeat(visible, self.branches, axis=0)

    @property
    def emitted(self) -> NDArray[np.int64]:
        """[N] tokens emitted so far: the index of the image token that comes next."""
        return np.array([sequence.emitted for sequence in self.sequences], dtype=np.int64)

    @property
    def cached(self) -> NDArray[np.int64]:
        """[rows] valid positions of the target's cache."""
        return self.per_row([sequence.cached for sequence in self.sequences])
