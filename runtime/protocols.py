"""What the runtime needs of its engines. Backends implement these; the runtime never imports a backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from .condition import CaptionProjection, ClassCondition, Condition
from .config import SamplingConfig, SpeculativeConfig


@dataclass(frozen=True)
class ModelInfo:
    """The facts of a model pair that the host side needs.

    vocab_size: V. hidden_size: H. prefix_length: condition positions before the first image token. grid: (rows,
    columns) of image tokens. image_size: (height, width) of a picture in pixels. max_draft_length: spare cache and RoPE
    positions past the image. condition: what pictures are made from. sampling, speculative: the bundle's defaults.
    """

    name: str
    vocab_size: int
    hidden_size: int
    prefix_length: int
    grid: tuple[int, int]
    image_size: tuple[int, int]
    max_draft_length: int
    condition: Condition
    sampling: SamplingConfig
    speculative: SpeculativeConfig

    @property
    def n_tokens(self) -> int:
        """Image tokens of one picture."""
        return self.grid[0] * self.grid[1]

    @property
    def class_names(self) -> tuple[str, ...]:
        """Index = class id; empty for models that take captions."""
        return self.condition.names if isinstance(self.condition, ClassCondition) else ()


@dataclass(frozen=True)
class StepOutput:
    """logits [R, S, V] and hidden [R, S, H] float32. Both are overwritten by the engine's next step."""

    logits: NDArray[np.float32]
    hidden: NDArray[np.float32]


class CachedTransformer(Protocol):
    """A target or draft with a static KV cache of [rows, cache_length] positions, written in place."""

    @property
    def cache_length(self) -> int:
        """Positions per row of the cache allocated last, at least as many as asked; 0 before the first `allocate`."""

    def allocate(self, rows: int, cache_length: int) -> None:
        """Make room for `rows` sequences of `cache_length` positions; what was cached before is lost."""

    def step(
        self,
        input_ids: NDArray[np.int64],
        position_ids: NDArray[np.int64],
        mask: NDArray[np.bool_],
        write_indices: NDArray[np.int64],
        features: NDArray[np.float32] | None = None,
    ) -> StepOutput:
        """Run S tokens of each row and write their keys and values at `write_indices`.

        Args: input_ids, position_ids [R, S]; mask [R, 1, S, cache_length], True = attend; write_indices [R];
        features [R, S, H], for drafts, and for the positions of a caption (`condition.NO_TOKEN`).
        R may be smaller than the allocated rows: the first R are used.
        Rolling back is passing a smaller write index later.
        """

    def copy_row(self, source: int, destination: int) -> None:
        """Copy one row's cache over another's."""

    def compact(self, row: int, sources: NDArray[np.int64], destination: int) -> None:
        """Move a row's cache entries at positions `sources` to `destination`, `destination + 1`, ..."""


@dataclass(frozen=True)
class ChainInput:
    """A chain of L tokens for each of N images on R rows (image i owns R / N of them, the conditional one first).

    First comes the catch-up: input_ids [R, M] and features [R, M, H], of which row r has counts[r], padded at the end;
    they continue a cache of lengths[r] positions. Then tokens are sampled: uniforms [L, N] float64, guided [L, N] bool,
    whether guidance applies to that token; sampling, of those that the draft `samples`.
    """

    input_ids: NDArray[np.int64]
    features: NDArray[np.float32]
    lengths: NDArray[np.int64]
    counts: NDArray[np.int64]
    uniforms: NDArray[np.float64]
    guided: NDArray[np.bool_]
    sampling: SamplingConfig


@dataclass(frozen=True)
class ChainOutput:
    """tokens [L, N] int64; q [L, N, V] float64 or float32, the laws they were drawn from; sums are 1 within
    rounding. Overwritten by the next chain."""

    tokens: NDArray[np.int64]
    q: NDArray[np.floating[Any]]


@runtime_checkable
class ChainDraft(CachedTransformer, Protocol):
    """A draft that can also run a whole chain in one call, sampling on the way."""

    @property
    def longest_chain(self) -> int:
        """The greatest L it can."""

    def samples(self, sampling: SamplingConfig) -> bool:
        """Whether it can sample with these settings."""

    def chain(self, chain: ChainInput) -> ChainOutput:
        """Draft the chain. What it leaves in the cache behind lengths + counts is to be overwritten."""


class ImageDecoder(Protocol):
    """Image tokens to pixels."""

    def decode(self, tokens: NDArray[np.int64]) -> NDArray[np.floating[Any]]:
        """[N, rows * columns] tokens in raster order -> [N, 3, height, width] float, nominally in [-1, 1]."""


class ImageEncoder(Protocol):
    """Pixels to image tokens."""

    def encode(self, pixels: NDArray[np.float32]) -> NDArray[np.int64]:
        """[N, 3, height, width] in [-1, 1] -> [N, rows * columns] tokens in raster order."""


class TextEncoder(Protocol):
    """Captions to text features."""

    def encode(self, captions: Sequence[str]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Features [N, T, C] and mask [N, T], padded on the right."""


class Engines(Protocol):
    """What `Pipeline` owns: the engines of one bundle on one backend."""

    @property
    def info(self) -> ModelInfo: ...

    @property
    def backend(self) -> str: ...

    @property
    def backend_reason(self) -> str:
        """Why this backend, and what stood in the way of those that were tried before it."""

    @property
    def target(self) -> CachedTransformer: ...

    @property
    def draft(self) -> CachedTransformer | None: ...

    @property
    def image_decoder(self) -> ImageDecoder: ...

    @property
    def image_encoder(self) -> ImageEncoder | None: ...

    @property
    def caption_projection(self) -> CaptionProjection | None: ...

    @property
    def text_encoder(self) -> TextEncoder | None: ...

    @property
    def neighbors(self) -> NDArray[np.uint16] | None:
        """[V, K] each code's nearest other codes, nearest first; None in a bundle without the table. May be mapped."""

    def close(self) -> None:
        """Free everything; calling it twice is fine."""
