"""Canonical weights: what a graph builder asks for, whatever the checkpoint's own names and wrappers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class TransformerShape:
    """Sizes of a Llama-style transformer. hidden: H. ffn: SwiGLU width. grid: (rows, columns) of image tokens.

    zero_rows: positions before the first image cell, whose RoPE rows are zero: a target's condition, one less for
    a draft.
    """

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    ffn: int
    vocab: int
    grid: tuple[int, int]
    zero_rows: int
    norm_eps: float
    rope_base: float


@dataclass(frozen=True)
class LayerWeights:
    """One block. Matrices are [out, in]. attention_norm is None where the block has no input norm (EAGLE's first)."""

    q: Array
    k: Array
    v: Array
    o: Array
    gate: Array
    up: Array
    down: Array
    attention_norm: Array | None
    ffn_norm: Array


@dataclass(frozen=True)
class CaptionWeights:
    """fc1 [H, C], fc2 [H, H]. unconditional: [slots, C], the text features of the unconditional branch."""

    fc1: Array
    fc2: Array
    unconditional: Array


class TargetWeights(Protocol):
    """A target. Tensors are read when asked for, so a build holds one layer at a time.

    num_classes: 0 when it takes captions.
    """

    shape: TransformerShape
    num_classes: int

    def token_embedding(self) -> Array:
        """[V, H]"""

    def class_embedding(self) -> Array:
        """[num_classes + 1, H]; the last row is the null class."""

    def layer(self, index: int) -> LayerWeights: ...

    def final_norm(self) -> Array:
        """[H]"""

    def head(self) -> Array:
        """[V, H]"""


class DraftWeights(Protocol):
    """An EAGLE-1 draft; its logits come from the target's head."""

    shape: TransformerShape

    def token_embedding(self) -> Array:
        """[V, H], the draft's own table."""

    def fc(self) -> tuple[Array, Array | None]:
        """Weight [H, 2H] over concat(embedding, feature), and bias [H] where it has one."""

    def layer(self, index: int) -> LayerWeights: ...
