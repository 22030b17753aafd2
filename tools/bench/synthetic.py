"""Official-looking checkpoint files of random weights, as large as the real ones, written tensor by tensor."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np

from ...export.checkpoint import Checkpoint
from ...export.random_weights import random_checkpoints


def write_checkpoints(size: str, folder: Path, seed: int = 0) -> dict[str, Path]:
    """Target, draft and image decoder of a released size as float32 safetensors with their config.json.

    Returns: their folders by role. Raises: InputError for an unknown size.
    """
    paths = {}
    for role, checkpoint in random_checkpoints(size, seed).items():
        paths[role] = folder / role
        paths[role].mkdir(parents=True)
        write_safetensors(paths[role] / "model.safetensors", checkpoint)
        (paths[role] / "config.json").write_text(json.dumps(dict(checkpoint.config)))
    return paths


def write_safetensors(path: Path, checkpoint: Checkpoint) -> None:
    """The format: length of the header as 8 bytes, the header as JSON, the tensors one behind the other."""
    header, offset = {}, 0
    for name, shape in checkpoint.shapes.items():
        end = offset + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in header:
            file.write(np.ascontiguousarray(checkpoint.tensor(name), dtype=np.float32).data)
