"""Entries of a KV cache moved on the GPU."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from .cuda import Cuda


def compact_caches(
    cuda: Cuda,
    caches: Iterable[int],
    row_shape: tuple[int, int, int],
    itemsize: int,
    row: int,
    sources: NDArray[np.int64],
    destination: int,
) -> None:
    """Queue `CachedTransformer.compact` for caches [rows, kv_heads, cache_length, head_dim] in device memory.

    sources ascend and none lies before its destination, so going in that order overwrites no entry before it is
    moved; and a copy never overlaps itself, because it moves one entry of every head.
    Args: caches: addresses; row_shape: (kv_heads, cache_length, head_dim).
    """
    heads, length, width = row_shape
    entry = width * itemsize
    moves = [(int(source), destination + k) for k, source in enumerate(sources) if source != destination + k]
    for cache in caches:
        base = cache + row * heads * length * entry
        for source, place in moves:
            cuda.move_strided(base + place * entry, base + source * entry, entry, length * entry, heads)
