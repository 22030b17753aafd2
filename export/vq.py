"""LlamaGen's VQ tokenizers: VQ-16, VQ-8 and smaller relatives."""

from __future__ import annotations

import numpy as np

from ..runtime.errors import InputError
from .checkpoint import Checkpoint
from .weights import Array

_ALWAYS = (
    "quantize.embedding.weight",
    "post_quant_conv.weight",
    "decoder.conv_in.weight",
    "decoder.mid.0.conv1.weight",
    "decoder.conv_blocks.0.res.0.conv1.weight",
    "decoder.norm_out.weight",
    "decoder.conv_out.weight",
)
_ENCODER = (
    "encoder.conv_in.weight",
    "encoder.mid.0.conv1.weight",
    "encoder.conv_blocks.0.res.0.conv1.weight",
    "encoder.conv_out.weight",
    "quant_conv.weight",
)
# The codebook's usage counts, and what only encodes.
NOT_DECODING = ("quantize.codebook_used", "encoder.", "quant_conv.")


class VqTokenizer:
    """The tokenizer's tensors; which blocks exist is read off the names.

    Raises: InputError when it is not such a tokenizer, or its codebook does not have `vocab` entries.
    """

    def __init__(self, checkpoint: Checkpoint, vocab: int) -> None:
        self._checkpoint = checkpoint
        checkpoint.require({name: checkpoint.shapes.get(name, ()) for name in _ALWAYS}, "VQ image tokenizer")
        entries = checkpoint.shapes["quantize.embedding.weight"][0]
        if entries != vocab:
            raise InputError(
                f"{checkpoint.path}: the codebook has {entries} entries, the target predicts {vocab} tokens. "
                "Use the image tokenizer the target was trained with."
            )

    def require_encoder(self) -> None:
        """Raises: InputError when the file has no encoder."""
        shapes = self._checkpoint.shapes
        self._checkpoint.require({name: shapes.get(name, ()) for name in _ENCODER}, "VQ image encoder")

    def codebook(self) -> Array:
        """[V, D] float32, rows of unit length: what codes are compared with and decoded from."""
        rows = self.tensor("quantize.embedding.weight").astype(np.float32)
        unit: Array = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
        return unit

    def has(self, prefix: str) -> bool:
        """Whether a module of that name exists (it has a weight)."""
        return any(name.startswith(prefix + ".") for name in self._checkpoint.shapes)

    def count(self, prefix: str) -> int:
        """How many numbered modules `prefix.0`, `prefix.1`, ... exist."""
        return next(i for i in range(1000) if not self.has(f"{prefix}.{i}"))

    def tensor(self, name: str) -> Array:
        """Raises: InputError naming the file when it lacks the tensor."""
        self._checkpoint.require({name: self._checkpoint.shapes.get(name, ())}, "VQ image tokenizer")
        return self._checkpoint.tensor(name)
