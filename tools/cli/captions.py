"""`--caption-features FILE.npz`: captions that were encoded elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from zipfile import BadZipFile, is_zipfile

import numpy as np
from numpy.typing import NDArray

from ...runtime.errors import InputError

OPTION = "--caption-features"


def read_caption_features(path: Path) -> tuple[NDArray[np.floating[Any]], NDArray[Any] | None]:
    """Features [N, T, C] and mask [N, T] (None when there is none) of an .npz, told apart by their dimensions.

    Raises: InputError when the file is not an .npz with one array of three dimensions and at most one of two.
    """
    if not path.is_file():
        raise InputError(f"{OPTION} {path}: no such file.")
    if not is_zipfile(path):
        raise InputError(f"{OPTION} {path}: not an .npz file. Expected what `numpy.savez` writes.")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, BadZipFile) as error:
        raise InputError(f"{OPTION} {path}: not a readable .npz file ({error}).") from None
    features = [array for array in arrays.values() if array.ndim == 3]
    masks = [array for array in arrays.values() if array.ndim == 2]
    if len(features) != 1 or len(masks) > 1:
        found = ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items()) or "nothing"
        raise InputError(
            f"{OPTION} {path}: it holds {found}. Expected one array [captions, tokens, width], the text encoder's "
            "output padded on the right, and optionally its mask [captions, tokens]."
        )
    return features[0], masks[0] if masks else None
