"""LlamaGen's VQ tokenizers: VQ-16, VQ-8 and smaller relatives."""

from __future__ import annotations

import numpy as np

from ..runtime.errors import InputError
from .checkpoint import Checkpoint
from .vq_layout import Level, decoder_shapes, encoder_shapes
from .weights import Array

USAGE_COUNTS = "quantize.codebook_used"
NOT_DECODING = (USAGE_COUNTS, "encoder.", "quant_conv.")
CODEBOOK = "quantize.embedding.weight"


class VqTokenizer:
    """The tokenizer's tensors; which blocks exist, and how wide they are, is read off names and biases.

    Raises: InputError when it is not such a tokenizer, or its codebook does not have `vocab` entries.
    """

    def __init__(self, checkpoint: Checkpoint, vocab: int) -> None:
        self._checkpoint = checkpoint
        checkpoint.require_dimensions({CODEBOOK: 2}, "VQ image tokenizer")
        self._require_biases(("post_quant_conv.bias", "decoder.conv_blocks.0.res.0.conv2.bias"))
        entries, self._embed = checkpoint.shapes[CODEBOOK]
        if entries != vocab:
            raise InputError(
                f"{checkpoint.path}: the codebook has {entries} entries, the target predicts {vocab} tokens. "
                "Use the image tokenizer the target was trained with."
            )
        self._z = checkpoint.shapes["post_quant_conv.bias"][0]
        expected = decoder_shapes(self._embed, self._z, self._levels("decoder", "upsample"))
        checkpoint.require(expected, "VQ image tokenizer")

    def require_encoder(self) -> None:
        """Raises: InputError when the file has no encoder, or not a whole one."""
        self._require_biases(("encoder.conv_in.bias", "encoder.conv_blocks.0.res.0.conv2.bias"))
        expected = encoder_shapes(self._embed, self._z, self._levels("encoder", "downsample"))
        self._checkpoint.require(expected, "VQ image encoder")

    def codebook(self) -> Array:
        """[V, D] float32, rows of unit length: what codes are compared with and decoded from."""
        rows = self.tensor(CODEBOOK).astype(np.float32)
        unit: Array = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
        return unit

    def has(self, prefix: str) -> bool:
        """Whether a module of that name exists (it has a weight)."""
        return any(name.startswith(prefix + ".") for name in self._checkpoint.shapes)

    def count(self, prefix: str) -> int:
        """How many numbered modules `prefix.0`, `prefix.1`, ... exist."""
        return next(i for i in range(1000) if not self.has(f"{prefix}.{i}"))

    def tensor(self, name: str) -> Array:
        return self._checkpoint.tensor(name)

    def _require_biases(self, names: tuple[str, ...]) -> None:
        self._checkpoint.require_dimensions(dict.fromkeys(names, 1), "VQ image tokenizer")

    def _levels(self, side: str, resample: str) -> list[Level]:
        levels = []
        for i in range(self.count(f"{side}.conv_blocks")):
            name = f"{side}.conv_blocks.{i}"
            bias = f"{name}.res.0.conv2.bias"
            self._require_biases((bias,))
            levels.append(
                Level(
                    width=self._checkpoint.shapes[bias][0],
                    blocks=self.count(f"{name}.res"),
                    attention=self.has(f"{name}.attn"),
                    resample=self.has(f"{name}.{resample}"),
                )
            )
        return levels
