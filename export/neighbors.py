"""The neighbour table of LANTERN: each codebook entry's nearest other entries."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..engines.bundle import record_file
from ..engines.manifest import FileRecord
from ..runtime.errors import InputError
from .weights import Array

DEFAULT_COLUMNS = 1000
LARGEST_VOCABULARY = 1 << 16
# Distances held at once: 64 MiB of float64.
BLOCK_DISTANCES = 1 << 23


def write_neighbors(path: Path, codebook: Array, columns: int) -> FileRecord:
    """Write `nearest_codes(codebook, columns)` as .npy."""
    np.save(path, nearest_codes(codebook, columns))
    return record_file(path)


def nearest_codes(codebook: Array, columns: int) -> NDArray[np.uint16]:
    """The `columns` nearest other rows of every row, nearest first, ties by index.

    Distance is L2 between *raw* rows, though the image decoder normalises them: LANTERN's table is made so.
    Args: codebook [V, D]. Returns: [V, min(columns, V - 1)] uint16.
    Raises: InputError when V does not fit uint16.
    """
    vocab = len(codebook)
    if vocab > LARGEST_VOCABULARY:
        raise InputError(f"the codebook has {vocab} entries. A neighbour table holds at most {LARGEST_VOCABULARY}.")
    columns = min(columns, vocab - 1)
    rows = np.asarray(codebook, dtype=np.float64)
    half_norms = (rows * rows).sum(axis=1) / 2
    table = np.empty((vocab, columns), dtype=np.uint16)
    block = max(1, BLOCK_DISTANCES // vocab)
    for first in range(0, vocab, block):
        # |x - y|^2 / 2 less |x|^2 / 2, which is the same for every y
        distances = half_norms - rows[first : first + block] @ rows.T
        own = np.arange(len(distances))
        distances[own, first + own] = np.inf
        # The cut comes before the sort: V log V on every row is most of the work, and most of it is thrown away.
        nearest = np.sort(np.argpartition(distances, columns - 1, axis=1)[:, :columns], axis=1)
        order = np.argsort(np.take_along_axis(distances, nearest, axis=1), axis=1, kind="stable")
        table[first : first + block] = np.take_along_axis(nearest, order, axis=1)
    return table
