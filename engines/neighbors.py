"""The neighbour table of a bundle."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..runtime.errors import BundleError


def read_neighbors(path: Path, vocab_size: int) -> NDArray[np.uint16]:
    """[V, K] uint16, mapped, not read. Raises: BundleError when it is no table of codes 0 to V - 1."""
    try:
        table = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise BundleError(f"{path}: not a readable table ({error}). Build the bundle again.") from None
    fits = isinstance(table, np.ndarray) and table.dtype == np.uint16 and table.ndim == 2
    if not fits or len(table) != vocab_size or not 1 <= table.shape[1] < vocab_size or table.max() >= vocab_size:
        found = f"{table.dtype} {list(table.shape)}" if isinstance(table, np.ndarray) else "no array"
        raise BundleError(
            f"{path}: it holds {found}. Expected uint16 [{vocab_size}, neighbours], codes below {vocab_size}. "
            "Build the bundle again."
        )
    return table
