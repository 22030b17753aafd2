"""Checkpoints of any released size with seeded random weights: for latency and memory, not for pictures."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..runtime.errors import InputError
from .checkpoint import Checkpoint, Shape
from .config_file import TargetConfig
from .eagle import draft_shapes
from .llamagen import target_shapes
from .naming import LLAMAGEN
from .vq import CODEBOOK
from .vq_layout import Level, decoder_shapes
from .weights import TransformerShape

VOCAB = 16384
NUM_CLASSES = 1000
CAPTION_SLOTS, CAPTION_WIDTH = 120, 2048


@dataclass(frozen=True)
class Size:
    """One released LlamaGen. grid: image tokens per side."""

    hidden: int
    layers: int
    heads: int
    ffn: int
    grid: int
    captions: bool = False


SIZES = {
    "c2i-B": Size(768, 12, 12, 2048, 16),
    "c2i-L": Size(1024, 24, 16, 2816, 16),
    "c2i-XL": Size(1280, 36, 20, 3584, 24),
    "c2i-XXL": Size(1536, 48, 24, 4096, 24),
    "c2i-3B": Size(3200, 24, 32, 8704, 24),
    "t2i-XL": Size(1280, 36, 20, 3584, 16, captions=True),
    "t2i-XL-512": Size(1280, 36, 20, 3584, 32, captions=True),
}


class RandomCheckpoint(Checkpoint):
    """Tensors of given shapes, made when they are asked for; the same for the same seed and name."""

    def __init__(self, name: str, shapes: Mapping[str, Shape], seed: int, config: Mapping[str, Any]) -> None:
        super().__init__(Path(name), config)
        self._shapes, self._seed = shapes, seed

    @property
    def shapes(self) -> Mapping[str, Shape]:
        return self._shapes

    def fingerprint(self) -> str:
        content = f"{self.path} {self._seed} {sorted(self._shapes.items())} {sorted(self.config.items())}"
        return hashlib.sha256(content.encode()).hexdigest()

    def _read(self, name: str) -> NDArray[np.float32]:
        shape = self._shapes[name]
        if len(shape) == 1:
            return np.full(shape, 0.0 if name.endswith("bias") else 1.0, dtype=np.float32)
        digest = hashlib.sha256(f"{self._seed} {name}".encode()).digest()
        rng = np.random.default_rng(int.from_bytes(digest[:8], "little"))
        value = rng.standard_normal(shape, dtype=np.float32)
        value *= np.float32(math.prod(shape[1:]) ** -0.5)
        return value


def random_checkpoints(size_name: str, seed: int) -> dict[str, Checkpoint]:
    """Target, draft and image_decoder of a listed size. Raises: InputError that lists them."""
    size = SIZES.get(size_name)
    if size is None:
        raise InputError(f"--random-weights {size_name!r}: no such size. Expected one of: {', '.join(SIZES)}.")
    shape = TransformerShape(
        layers=size.layers,
        heads=size.heads,
        kv_heads=size.heads,
        head_dim=size.hidden // size.heads,
        hidden=size.hidden,
        ffn=size.ffn,
        vocab=VOCAB,
        grid=(size.grid, size.grid),
        zero_rows=CAPTION_SLOTS if size.captions else 1,
        norm_eps=TargetConfig().norm_eps,
        rope_base=TargetConfig().rope_base,
    )
    classes, width = (0, CAPTION_WIDTH) if size.captions else (NUM_CLASSES, 0)
    target_config = {"name": f"random-{size_name}", "n_head": size.heads, "block_size": size.grid**2}
    draft_config = {"num_attention_heads": size.heads}
    return {
        "target": RandomCheckpoint(
            f"random-{size_name}", target_shapes(LLAMAGEN, shape, classes, width), seed, target_config
        ),
        "draft": RandomCheckpoint("random-draft", draft_shapes(replace(shape, layers=1)), seed, draft_config),
        "image_decoder": RandomCheckpoint("random-vq16", tokenizer_shapes(), seed, {}),
    }


def tokenizer_shapes(
    width: int = 128, multipliers: tuple[int, ...] = (1, 1, 2, 2, 4), z: int = 256, vocab: int = VOCAB
) -> dict[str, Shape]:
    """The decoder side of a VQ tokenizer, VQ-16 by default: three residual blocks a level, attention in the first."""
    last = len(multipliers) - 1
    levels = [Level(width * m, 3, attention=i == 0, resample=i < last) for i, m in enumerate(reversed(multipliers))]
    return {CODEBOOK: (vocab, 8), **decoder_shapes(8, z, levels)}
