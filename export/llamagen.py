"""Class-conditional LlamaGen checkpoints, in the official key names."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from ..runtime.errors import InputError
from .checkpoint import Checkpoint, Shape
from .weights import Array, LayerWeights, TransformerShape

NORM_EPS = 1e-5
DEFAULT_BLOCK_SIZE = 256
# head_dim is 64 in every released size but the 3B, whose width is unique.
RELEASED_HEADS = {3200: 32}


class LlamaGenTarget:
    """`TargetWeights` of a LlamaGen c2i checkpoint.

    Sizes come from the tensors' shapes; what shapes can't tell (heads, grid) from `config.json`, else from the
    released models. Raises: InputError listing tensors that are missing or of the wrong shape.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        shapes = checkpoint.shapes
        checkpoint.require({name: shapes.get(name, ()) for name in _ALWAYS}, "LlamaGen c2i checkpoint")
        vocab, hidden = shapes["tok_embeddings.weight"]
        self.num_classes = shapes["cls_embedding.embedding_table.weight"][0] - 1
        layers = 1 + max(int(name.split(".")[1]) for name in shapes if name.startswith("layers."))
        heads = int(checkpoint.config.get("n_head", RELEASED_HEADS.get(hidden, hidden // 64)))
        if not heads or hidden % heads:
            raise InputError(
                f"{checkpoint.path}: width {hidden} does not divide into {heads} heads. Check config.json."
            )
        head_dim = hidden // heads
        self.shape = TransformerShape(
            layers=layers,
            heads=heads,
            kv_heads=(shapes["layers.0.attention.wqkv.weight"][0] - hidden) // (2 * head_dim),
            head_dim=head_dim,
            hidden=hidden,
            ffn=shapes["layers.0.feed_forward.w1.weight"][0],
            vocab=vocab,
            grid=_square_grid(checkpoint.path, int(checkpoint.config.get("block_size", DEFAULT_BLOCK_SIZE))),
            norm_eps=float(checkpoint.config.get("norm_eps", NORM_EPS)),
        )
        checkpoint.require(self._expected(), "LlamaGen c2i checkpoint")

    def token_embedding(self) -> Array:
        return self._checkpoint.tensor("tok_embeddings.weight")

    def class_embedding(self) -> Array:
        return self._checkpoint.tensor("cls_embedding.embedding_table.weight")

    def layer(self, index: int) -> LayerWeights:
        def get(name: str) -> Array:
            return self._checkpoint.tensor(f"layers.{index}.{name}.weight")

        s = self.shape
        q, k, v = np.split(get("attention.wqkv"), [s.hidden, s.hidden + s.kv_heads * s.head_dim])
        return LayerWeights(
            q=q,
            k=k,
            v=v,
            o=get("attention.wo"),
            gate=get("feed_forward.w1"),
            up=get("feed_forward.w3"),
            down=get("feed_forward.w2"),
            attention_norm=get("attention_norm"),
            ffn_norm=get("ffn_norm"),
        )

    def final_norm(self) -> Array:
        return self._checkpoint.tensor("norm.weight")

    def head(self) -> Array:
        return self._checkpoint.tensor("output.weight")

    def _expected(self) -> dict[str, Shape]:
        s = self.shape
        expected: dict[str, Shape] = {
            "cls_embedding.embedding_table.weight": (self.num_classes + 1, s.hidden),
            "tok_embeddings.weight": (s.vocab, s.hidden),
            "norm.weight": (s.hidden,),
            "output.weight": (s.vocab, s.hidden),
        }
        for i in range(s.layers):
            expected |= {
                f"layers.{i}.attention.wqkv.weight": (s.hidden + 2 * s.kv_heads * s.head_dim, s.hidden),
                f"layers.{i}.attention.wo.weight": (s.hidden, s.hidden),
                f"layers.{i}.feed_forward.w1.weight": (s.ffn, s.hidden),
                f"layers.{i}.feed_forward.w3.weight": (s.ffn, s.hidden),
                f"layers.{i}.feed_forward.w2.weight": (s.hidden, s.ffn),
                f"layers.{i}.attention_norm.weight": (s.hidden,),
                f"layers.{i}.ffn_norm.weight": (s.hidden,),
            }
        return expected


_ALWAYS = (
    "tok_embeddings.weight",
    "cls_embedding.embedding_table.weight",
    "layers.0.attention.wqkv.weight",
    "layers.0.feed_forward.w1.weight",
    "norm.weight",
    "output.weight",
)


def _square_grid(path: Path, block_size: int) -> tuple[int, int]:
    side = math.isqrt(block_size)
    if side * side != block_size:
        raise InputError(f"{path}: block_size {block_size} in config.json is not a square number of image tokens.")
    return side, side
