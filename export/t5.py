"""T5 encoders (flan-t5, t5 v1.1) in the format of a transformers folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..runtime.errors import InputError
from .checkpoint import Checkpoint, Shape
from .config_file import TextEncoderConfig, read_config
from .naming import count_layers
from .weights import Array

TOKENIZER = "tokenizer.json"
BLOCKS = "encoder.block."
# T5 writes its embedding under either name.
EMBEDDINGS = ("shared.weight", "encoder.embed_tokens.weight")
BIAS = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"


class T5Encoder:
    """The encoder's tensors. Decoder tensors of the same file are left alone.

    Raises: InputError when it is another architecture, or tensors are missing or of the wrong shape.
    """

    def __init__(self, checkpoint: Checkpoint, feature_size: int) -> None:
        self._checkpoint = checkpoint
        shapes = checkpoint.shapes
        self._embedding = next((name for name in EMBEDDINGS if name in shapes), EMBEDDINGS[0])
        gate = f"{BLOCKS}0.layer.1.DenseReluDense.wi_0.weight"
        query = f"{BLOCKS}0.layer.0.SelfAttention.q.weight"
        checkpoint.require_dimensions(dict.fromkeys((self._embedding, BIAS, gate, query), 2), "T5 text encoder")
        config = read_config(TextEncoderConfig, checkpoint)
        self.vocab, self.hidden = shapes[self._embedding]
        if self.hidden != feature_size:
            raise InputError(
                f"{checkpoint.path}: the text encoder's width is {self.hidden}, the target wants {feature_size}. "
                "Use the one it was trained with (flan-t5-xl for LlamaGen t2i)."
            )
        self.layers = count_layers(checkpoint, BLOCKS)
        self._buckets, self.heads = shapes[BIAS]
        self.inner = shapes[query][0]
        self._ffn = shapes[gate][0]
        self._max_distance, self.norm_eps = config.max_distance, config.norm_eps
        if self._max_distance <= self._buckets // 4:
            raise InputError(
                f"{checkpoint.path}: relative_attention_max_distance {self._max_distance} in config.json is too small "
                f"for {self._buckets} buckets."
            )
        checkpoint.require(self._expected(), "T5 text encoder")

    @property
    def tokenizer(self) -> Path:
        """The `tokenizer.json` beside the weights. Raises: InputError when it is not there."""
        path = self._checkpoint.path.with_name(TOKENIZER)
        if not path.is_file():
            raise InputError(f"{path}: no such file. The text encoder's folder must hold its fast tokenizer.")
        return path

    def token_embedding(self) -> Array:
        return self._checkpoint.tensor(self._embedding)

    def attention(self, layer: int, part: str) -> Array:
        """part: q, k, v or o."""
        return self._checkpoint.tensor(f"{BLOCKS}{layer}.layer.0.SelfAttention.{part}.weight")

    def feed_forward(self, layer: int, part: str) -> Array:
        """part: wi_0 (the gate), wi_1 or wo."""
        return self._checkpoint.tensor(f"{BLOCKS}{layer}.layer.1.DenseReluDense.{part}.weight")

    def norm(self, layer: int, half: int) -> Array:
        """half: 0 before attention, 1 before the feed-forward."""
        return self._checkpoint.tensor(f"{BLOCKS}{layer}.layer.{half}.layer_norm.weight")

    def final_norm(self) -> Array:
        return self._checkpoint.tensor("encoder.final_layer_norm.weight")

    def position_bias(self, length: int) -> NDArray[np.float32]:
        """[heads, length, length]: what every layer adds to its scores for key position - query position."""
        offset = np.arange(length)[None] - np.arange(length)[:, None]
        half = self._buckets // 2
        exact = half // 2
        distance = np.abs(offset)
        # Far distances share buckets that widen logarithmically.
        ratio = np.log(np.maximum(distance, 1) / exact) / np.log(self._max_distance / exact)
        far = np.minimum(exact + (ratio * (half - exact)).astype(np.int64), half - 1)
        bucket = np.where(distance < exact, distance, far) + np.where(offset > 0, half, 0)
        table = np.asarray(self._checkpoint.tensor(BIAS), dtype=np.float32)
        return np.ascontiguousarray(table[bucket].transpose(2, 0, 1))

    def _expected(self) -> dict[str, Shape]:
        expected: dict[str, Shape] = {"encoder.final_layer_norm.weight": (self.hidden,)}
        for i in range(self.layers):
            attention, dense = f"{BLOCKS}{i}.layer.0.", f"{BLOCKS}{i}.layer.1."
            expected |= {f"{attention}SelfAttention.{part}.weight": (self.inner, self.hidden) for part in "qkv"}
            expected |= {
                f"{attention}SelfAttention.o.weight": (self.hidden, self.inner),
                f"{attention}layer_norm.weight": (self.hidden,),
                f"{dense}DenseReluDense.wi_0.weight": (self._ffn, self.hidden),
                f"{dense}DenseReluDense.wi_1.weight": (self._ffn, self.hidden),
                f"{dense}DenseReluDense.wo.weight": (self.hidden, self._ffn),
                f"{dense}layer_norm.weight": (self.hidden,),
            }
        return expected
