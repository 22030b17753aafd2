"""Checkpoints in torch's pickle format, read without running anything that is in them."""

from __future__ import annotations

import argparse
import re
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ..runtime.errors import InputError
from .checkpoint import Checkpoint, Shape

# The reference loader takes the first that exists; a checkpoint without any is the state dict itself (FSDP).
WRAPPERS = ("model", "module", "state_dict")


class TorchCheckpoint(Checkpoint):
    """A file, or several shards, loaded with `weights_only`: a payload is refused. Training extras (optimizer, args)
    are left alone.

    Raises: InputError when torch is missing, or a file is damaged, unsafe or no state dict.
    """

    def __init__(
        self, path: Path, weights: Iterable[Path], config: Mapping[str, Any], companions: Iterable[Path]
    ) -> None:
        self._weights = tuple(weights)
        self._tensors: dict[str, Any] = {}
        self._from_arguments: dict[str, Any] = {}
        self._open()
        super().__init__(path, {**self._from_arguments, **config}, (*self._weights, *companions))

    @property
    def shapes(self) -> Mapping[str, Shape]:
        return {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}

    def _open(self) -> None:
        if self._tensors and not all(map(zipfile.is_zipfile, self._weights)):
            return  # torch's old format can't be mapped: it is in memory as a whole
        self._tensors.clear()
        for file in self._weights:
            content = _load(file)
            self._tensors.update(_state_dict(file, content))
            self._from_arguments |= _grid_of(content.get("args"))

    def _read(self, name: str) -> NDArray[Any]:
        tensor = self._tensors[name].detach()
        value: NDArray[Any] = (tensor.float() if tensor.is_floating_point() else tensor).numpy()
        return value


def _state_dict(path: Path, content: Any) -> dict[str, Any]:
    """The tensors of a loaded file, by name."""
    for wrapper in WRAPPERS:
        if isinstance(content, dict) and isinstance(content.get(wrapper), dict):
            content = content[wrapper]
            break
    if not isinstance(content, dict) or not all(hasattr(value, "is_floating_point") for value in content.values()):
        raise InputError(f"{path}: not a state dict. Expected tensors by name, bare or in {', '.join(WRAPPERS)}.")
    return content


def _load(path: Path) -> Any:
    try:
        import torch
    except ImportError:
        raise InputError(
            f"{path}: reading a torch pickle needs torch, which is not installed. "
            "Install it (pip install 'coolsd-trt[torch]') or convert the file to .safetensors."
        ) from None
    try:
        # Training checkpoints carry their command line; a Namespace only holds attributes.
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(path, map_location="cpu", mmap=zipfile.is_zipfile(path), weights_only=True)
    except Exception as error:  # torch raises half a dozen types for a bad file
        foreign = re.search(r"GLOBAL (\S+)", str(error))
        if foreign:
            raise InputError(
                f"{path}: besides weights it holds an object of {foreign[1]}, which could run code. It was refused and "
                "nothing in it ran. Expected plain tensors: ask its author for a .safetensors file."
            ) from None
        raise InputError(
            f"{path}: torch can't read it as weights ({str(error).splitlines()[0]}). "
            "Expected a torch checkpoint; it may be truncated: download or copy it again."
        ) from None


def _grid_of(arguments: Any) -> dict[str, Any]:
    """The grid, which shapes can't tell, from the arguments of the training run where the file has them."""
    values = vars(arguments) if isinstance(arguments, argparse.Namespace) else arguments
    if not isinstance(values, dict):
        return {}
    size, cell = values.get("image_size"), values.get("downsample_size")
    return {"block_size": (size // cell) ** 2} if isinstance(size, int) and isinstance(cell, int) and cell else {}
