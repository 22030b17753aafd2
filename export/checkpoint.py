"""Opening checkpoint files: safetensors (mapped, read tensor by tensor) and torch pickles (weights only)."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..engines.bundle import sha256_file
from ..runtime.errors import InputError

Shape = tuple[int, ...]
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
# The reference loader takes the first that exists; a checkpoint without any is the state dict itself (FSDP).
WRAPPERS = ("model", "module", "state_dict")


class Checkpoint(ABC):
    """Named tensors of one file, with the `config.json` beside it (empty when there is none)."""

    def __init__(self, path: Path, config: Mapping[str, Any], companions: Iterable[Path]) -> None:
        self.path = path
        self.config = config
        self._companions = tuple(companions)

    @property
    @abstractmethod
    def shapes(self) -> Mapping[str, Shape]:
        """Shape of every tensor, by name."""

    @abstractmethod
    def tensor(self, name: str) -> NDArray[Any]:
        """Read one tensor. Raises: InputError when it holds a NaN or an infinity."""

    def require(self, expected: Mapping[str, Shape], what: str) -> None:
        """Raises: InputError that lists missing tensors, or tensors of another shape than expected."""
        missing = [name for name in expected if name not in self.shapes]
        if missing:
            raise InputError(
                f"{self.path}: not a complete {what}, {len(missing)} of {len(expected)} tensors are missing: "
                f"{_listed(missing)}. Check that the file is the whole checkpoint."
            )
        wrong = [
            f"{name} is {list(self.shapes[name])}, expected {list(shape)}"
            for name, shape in expected.items()
            if tuple(self.shapes[name]) != tuple(shape)
        ]
        if wrong:
            raise InputError(f"{self.path}: tensors of a {what} have the wrong shape: {_listed(wrong)}.")

    def fingerprint(self) -> str:
        """sha256 over the weights file and its companions (config.json, class names)."""
        digest = hashlib.sha256()
        for path in (self.path, *self._companions):
            digest.update(f"{path.name} {sha256_file(path)}\n".encode())
        return digest.hexdigest()

    def _finite(self, name: str, value: NDArray[Any]) -> NDArray[Any]:
        if not np.isfinite(value).all():
            raise InputError(f"{self.path}: tensor {name} holds NaN or infinity. Expected finite weights.")
        return value


class SafetensorsCheckpoint(Checkpoint):
    """A .safetensors file; nothing is read before it is asked for."""

    def __init__(self, path: Path, config: Mapping[str, Any], companions: Iterable[Path]) -> None:
        super().__init__(path, config, companions)
        from safetensors import SafetensorError, safe_open

        try:
            self._file = safe_open(str(path), framework="numpy")
        except (SafetensorError, OSError) as error:
            raise InputError(f"{path}: not a readable safetensors file ({error}). Check that it is complete.") from None
        self._shapes = {name: tuple(self._file.get_slice(name).get_shape()) for name in self._file.keys()}  # noqa: SIM118

    @property
    def shapes(self) -> Mapping[str, Shape]:
        return self._shapes

    def tensor(self, name: str) -> NDArray[Any]:
        return self._finite(name, self._file.get_tensor(name))


class TorchCheckpoint(Checkpoint):
    """A torch pickle, loaded with `weights_only`: a payload is refused and nothing in it runs."""

    def __init__(self, path: Path, config: Mapping[str, Any], companions: Iterable[Path]) -> None:
        super().__init__(path, config, companions)
        try:
            import torch
        except ImportError:
            raise InputError(
                f"{path}: reading a torch pickle needs torch, which is not installed. "
                "Install it (pip install 'coolsd-trt[torch]') or convert the file to .safetensors."
            ) from None
        try:
            content = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
        except Exception as error:  # torch raises half a dozen types for a bad file
            reason = str(error).splitlines()[0]
            raise InputError(f"{path}: torch can't read it as plain weights: {reason}") from None
        for wrapper in WRAPPERS:
            if isinstance(content, dict) and isinstance(content.get(wrapper), dict):
                content = content[wrapper]
                break
        if not isinstance(content, dict) or not all(isinstance(v, torch.Tensor) for v in content.values()):
            raise InputError(f"{path}: not a state dict. Expected tensors by name, bare or in {', '.join(WRAPPERS)}.")
        self._tensors = content

    @property
    def shapes(self) -> Mapping[str, Shape]:
        return {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}

    def tensor(self, name: str) -> NDArray[Any]:
        return self._finite(name, self._tensors[name].float().numpy())


def open_checkpoint(path: Path, companions: tuple[str, ...] = ()) -> Checkpoint:
    """Open a weights file, or the weights file of a directory.

    Args: path: .safetensors, .pt, .pth, .bin or .ckpt file, or a directory holding model.safetensors or
    pytorch_model.bin. companions: further files beside it that belong to its fingerprint.
    Raises: InputError naming what was found and what was expected.
    """
    file = _weights_file(path)
    beside = [file.with_name(name) for name in ("config.json", *companions)]
    present = [companion for companion in beside if companion.is_file()]
    config = read_json(present[0]) if present and present[0].name == "config.json" else {}
    if not isinstance(config, dict):
        raise InputError(f"{present[0]}: expected a JSON object, found {type(config).__name__}.")
    kind = SafetensorsCheckpoint if file.suffix == ".safetensors" else TorchCheckpoint
    return kind(file, config, present)


def read_json(path: Path) -> Any:
    """Raises: InputError when the file is missing or not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not a readable JSON file ({error}).") from None


def _weights_file(path: Path) -> Path:
    if path.is_file():
        return path
    if not path.exists():
        raise InputError(f"{path}: no such file or directory. Expected a checkpoint.")
    for name in WEIGHT_FILES:
        if (path / name).is_file():
            return path / name
    raise InputError(f"{path}: the directory holds no checkpoint. Expected {' or '.join(WEIGHT_FILES)} in it.")


def _listed(items: list[str], most: int = 8) -> str:
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return "; ".join(items[:most]) + more
