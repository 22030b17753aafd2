"""How large a build is before it begins: weights to read, bytes to write."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ..runtime.errors import BundleError
from .checkpoint import Checkpoint
from .graph.precision import Precision
from .t5 import EMBEDDINGS
from .vq import NOT_DECODING, USAGE_COUNTS
from .weights import TransformerShape

# Tensors that belong into the file and not into the bundle.
KNOWN_EXTRAS: dict[str, tuple[str, ...]] = {
    "image_decoder": NOT_DECODING,
    "text_encoder": ("decoder.", "lm_head.", *EMBEDDINGS),
}


def weights_to_read(sources: Mapping[str, Checkpoint], image_encoder: bool) -> dict[str, int]:
    """Elements that the bundle is made from, by role. image_encoder: the tokenizer's encoder side is part of it."""
    extras = {**KNOWN_EXTRAS, "image_decoder": (USAGE_COUNTS,) if image_encoder else NOT_DECODING}
    return {
        role: sum(
            math.prod(shape) for name, shape in source.shapes.items() if not name.startswith(extras.get(role, ()))
        )
        for role, source in sources.items()
    }


def check_disk(out: Path, weights: Mapping[str, int], shape: TransformerShape, precision: Precision) -> None:
    """Raises: BundleError when `out` has no room for the bundle."""
    table = shape.vocab * shape.hidden
    needed = 0.0
    for role, elements in weights.items():
        if role in ("target", "draft"):
            # Embeddings are not quantised; the draft has the target's head, too.
            matrices = elements - (table if role == "target" else 0)
            needed += matrices * precision.bits / 8 + table * np.dtype(precision.float_type).itemsize
        else:
            needed += elements * 4
    folder = next(path for path in out.absolute().parents if path.exists())
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise BundleError(
            f"{out}: the build needs about {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free there. "
            "Free some space or choose another --out."
        )
