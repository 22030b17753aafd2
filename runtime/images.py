"""Pixels: decoder output to uint8, grids, and PNG files that carry the parameters they were made with."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import InputError
from .files import replacing_file

METADATA_KEY = "coolsd-trt"


def to_uint8(pixels: NDArray[np.floating[Any]]) -> NDArray[np.uint8]:
    """[N, 3, H, W] in [-1, 1] -> [N, H, W, 3] uint8, as LlamaGen's demo writes them: clamp, then round half up."""
    unit = (np.clip(pixels, -1.0, 1.0) + 1.0) / 2.0
    images: NDArray[np.uint8] = np.floor(unit * 255.0 + 0.5).astype(np.uint8).transpose(0, 2, 3, 1)
    return images


def from_uint8(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """[N, H, W, 3] uint8 -> [N, 3, H, W] float32 in [-1, 1], as LlamaGen's tokenizer is trained on them."""
    pixels = np.ascontiguousarray(images.transpose(0, 3, 1, 2), dtype=np.float32)
    pixels /= 127.5
    pixels -= 1
    return pixels


def make_grid(images: Sequence[NDArray[np.uint8]], columns: int | None = None, gap: int = 2) -> NDArray[np.uint8]:
    """Images of one size side by side on white, `columns` a row (default: as square as possible)."""
    columns = columns or int(np.ceil(np.sqrt(len(images))))
    rows = -(-len(images) // columns)
    height, width, _ = images[0].shape
    canvas = np.full((rows * (height + gap) - gap, columns * (width + gap) - gap, 3), 255, dtype=np.uint8)
    for i, image in enumerate(images):
        top, left = (i // columns) * (height + gap), (i % columns) * (width + gap)
        canvas[top : top + height, left : left + width] = image
    return canvas


def save_png(path: Path, image: NDArray[np.uint8], parameters: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
    """Write [H, W, 3] uint8 to `path`, all or nothing. `parameters` become a JSON text chunk.

    Raises: InputError when it can't be written.
    """
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    info = PngInfo()
    info.add_text(METADATA_KEY, json.dumps(parameters))
    with replacing_file(path) as temporary:
        Image.fromarray(image).save(temporary, format="PNG", pnginfo=info)


def read_parameters(path: Path) -> Any:
    """The parameters a PNG of ours carries. Raises: InputError when the file is not a PNG or carries none."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            text = image.info.get(METADATA_KEY)
        parameters = None if text is None else json.loads(text)
    # Pillow raises all of these for pictures that are broken, or unpack to more than it allows.
    except (OSError, ValueError, SyntaxError, RecursionError, Image.DecompressionBombError) as error:
        raise InputError(f"{path}: not a readable picture ({error}). Expected a PNG written by coolsd-trt.") from None
    if text is None:
        raise InputError(f"{path}: the picture carries no {METADATA_KEY!r} parameters. Expected a PNG of coolsd-trt.")
    return parameters
