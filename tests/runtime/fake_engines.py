"""A target and a draft in NumPy, small enough to reason about and sensitive to every mask, position and cache row."""

from __future__ import annotations

import numpy as np
from coolsd_trt.runtime.condition import ClassCondition
from coolsd_trt.runtime.config import SamplingConfig, SpeculativeConfig
from coolsd_trt.runtime.protocols import ModelInfo, StepOutput
from numpy.typing import NDArray

HIDDEN = 8


class FakeTransformer:
    """hidden = sum over what a token sees of (embedding x position code); logits = a fixed map of hidden.

    As a draft it adds its token to the feature it is given, which is the target's next hidden state exactly, and
    `noise` of what its own cache holds.
    """

    def __init__(self, vocab: int, n_classes: int, noise: float | None = None, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.embedding = rng.normal(size=(vocab + n_classes + 1, HIDDEN))
        self.position = rng.normal(size=(512, HIDDEN))
        self.head = rng.normal(size=(HIDDEN, vocab)) * 1.5
        self.noise = noise
        self.cache = np.zeros((0, 0, HIDDEN))
        self.fed: list[int] = []

    @property
    def cache_length(self) -> int:
        return self.cache.shape[1]

    def allocate(self, rows: int, cache_length: int) -> None:
        self.cache = np.full((rows, cache_length, HIDDEN), 1e3)  # what was never written must never be seen

    def step(
        self,
        input_ids: NDArray[np.int64],
        position_ids: NDArray[np.int64],
        mask: NDArray[np.bool_],
        write_indices: NDArray[np.int64],
        features: NDArray[np.float32] | None = None,
    ) -> StepOutput:
        rows, length = input_ids.shape
        self.fed += input_ids.ravel().tolist()
        if self.noise is not None:
            position_ids = position_ids + 1  # the draft's token j is the target's j + 1
        new = self.embedding[input_ids] * self.position[position_ids]
        for row, start in enumerate(write_indices):
            self.cache[row, start : start + length] = new[row]
        seen = mask[:, 0].astype(float) @ self.cache[:rows]
        hidden = seen if self.noise is None else features + new
        scores = np.tanh(hidden) @ self.head
        if self.noise:
            scores = scores + self.noise * np.sin(seen) @ self.head[:, ::-1]
        return StepOutput(scores.astype(np.float32), hidden.astype(np.float32))

    def copy_row(self, source: int, destination: int) -> None:
        self.cache[destination] = self.cache[source]

    def compact(self, row: int, sources: NDArray[np.int64], destination: int) -> None:
        self.cache[row, destination : destination + len(sources)] = self.cache[row, sources]


class FakeDecoder:
    def decode(self, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
        return np.zeros((len(tokens), 3, 2, 2), dtype=np.float32)


class FakeEngines:
    """Engines of a model with `classes` classes and a grid of image tokens."""

    backend = "numpy"
    caption_projection = None
    image_encoder = None

    def __init__(self, vocab: int, grid: tuple[int, int], noise: float = 0.3, classes: int = 2) -> None:
        self.target = FakeTransformer(vocab, classes)
        self.draft = FakeTransformer(vocab, classes, noise)
        self.image_decoder = FakeDecoder()
        others = [[y for y in np.random.default_rng(x).permutation(vocab) if y != x] for x in range(vocab)]
        self.neighbors = np.array(others, dtype=np.uint16)
        self.info = ModelInfo(
            name="fake",
            vocab_size=vocab,
            hidden_size=HIDDEN,
            prefix_length=1,
            grid=grid,
            image_size=(2, 2),
            max_draft_length=16,
            condition=ClassCondition(
                names=tuple(f"class {i}" for i in range(classes)), id_offset=vocab, null_class=classes
            ),
            sampling=SamplingConfig(cfg_scale=1.5),
            speculative=SpeculativeConfig(),
        )

    def close(self) -> None:
        pass
