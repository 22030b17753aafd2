"""Checkpoints in the safetensors format, one file or several shards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ..runtime.errors import InputError
from .checkpoint import DTYPES, Checkpoint, Shape


class SafetensorsCheckpoint(Checkpoint):
    """Mapped files; nothing is read before it is asked for. Raises: InputError for a file that is damaged."""

    def __init__(
        self, path: Path, weights: Iterable[Path], config: Mapping[str, Any], companions: Iterable[Path]
    ) -> None:
        weights = tuple(weights)
        super().__init__(path, config, (*weights, *companions))
        self._weights = weights
        self._shapes: dict[str, Shape] = {}
        self._homes: dict[str, Any] = {}
        self._open()

    @property
    def shapes(self) -> Mapping[str, Shape]:
        return self._shapes

    def _open(self) -> None:
        self._homes.clear()
        for file in self._weights:
            opened = _open(file)
            for name in opened.keys():  # noqa: SIM118  (not a mapping)
                self._shapes[name] = tuple(opened.get_slice(name).get_shape())
                self._homes[name] = opened

    def _read(self, name: str) -> NDArray[Any]:
        home = self._homes[name]
        stored = home.get_slice(name).get_dtype()
        if stored.startswith("F8"):  # NumPy has no such type, and safetensors fails on it
            raise InputError(f"{self.path}: tensor {name} has dtype {stored}. Expected one of: {', '.join(DTYPES)}.")
        tensor: NDArray[Any] = home.get_tensor(name)
        return tensor


def _open(file: Path) -> Any:
    import ml_dtypes  # noqa: F401  (teaches NumPy bfloat16, which safetensors needs)
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(str(file), framework="numpy")
    except (SafetensorError, OSError) as error:
        raise InputError(
            f"{file}: not a readable safetensors file ({error}). It may be truncated: download or copy it again."
        ) from None
