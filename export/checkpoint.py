"""What every checkpoint offers, whatever its file format: named tensors and the `config.json` beside them."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..engines.bundle import sha256_file
from ..runtime.errors import InputError

Shape = tuple[int, ...]
# Pages of mapped files stay in memory after they were read, up to the whole file, unless it is opened anew.
MAPPED_BYTES = 1 << 29
DTYPES = ("float32", "bfloat16", "float16", "float64")


class Checkpoint(ABC):
    """Named tensors, read one at a time.

    path: what messages call it. config: of `config.json`, empty when there is none. files: everything that belongs to
    its fingerprint.
    """

    def __init__(self, path: Path, config: Mapping[str, Any], files: Iterable[Path] = ()) -> None:
        self.path = path
        self.config = config
        self._files = tuple(files)
        self._used: set[str] = set()
        self._mapped = 0
        self._watcher: Callable[[int], None] = lambda elements: None

    @property
    @abstractmethod
    def shapes(self) -> Mapping[str, Shape]:
        """Shape of every tensor, by name."""

    def _open(self) -> None:  # noqa: B027  (nothing to do where nothing is mapped)
        """Map the files, and forget how they were mapped before."""

    @abstractmethod
    def _read(self, name: str) -> NDArray[Any]:
        """The tensor as it is stored."""

    def tensor(self, name: str) -> NDArray[Any]:
        """Read one tensor. Raises: InputError when it is no float, or holds a NaN or an infinity."""
        if self._mapped > MAPPED_BYTES:
            self._mapped = 0
            self._open()
        value = self._read(name)
        self._mapped += value.nbytes
        if name not in self._used:
            self._used.add(name)
            self._watcher(value.size)
        if value.dtype.name not in DTYPES:
            raise InputError(
                f"{self.path}: tensor {name} has dtype {value.dtype.name}. Expected one of: {', '.join(DTYPES)}."
            )
        if not np.isfinite(value).all():
            raise InputError(f"{self.path}: tensor {name} holds NaN or infinity. Expected finite weights.")
        return value

    def watch(self, watcher: Callable[[int], None]) -> None:
        """Have it called with the number of elements of each tensor that is read for the first time."""
        self._watcher = watcher

    def unused(self) -> list[str]:
        """Tensors nobody has read so far."""
        return sorted(set(self.shapes) - self._used)

    def require_dimensions(self, expected: Mapping[str, int], what: str) -> None:
        """Raises: InputError that lists tensors, from whose shapes sizes are read, that are missing, empty or of
        another number of dimensions."""
        self.require({name: self.shapes.get(name, ()) for name in expected}, what)
        wrong = [
            f"{name} is {list(self.shapes[name])}, expected {count} dimensions above 0"
            for name, count in expected.items()
            if len(self.shapes[name]) != count or 0 in self.shapes[name]
        ]
        if wrong:
            raise InputError(f"{self.path}: not a {what}: {listed(wrong)}. Check that the checkpoint is unmodified.")

    def require(self, expected: Mapping[str, Shape], what: str) -> None:
        """Raises: InputError that lists missing tensors, or tensors of another shape than expected."""
        missing = [name for name in expected if name not in self.shapes]
        if missing:
            others = [name for name in self.shapes if name not in expected]
            raise InputError(
                f"{self.path}: not a complete {what}, {len(missing)} of {len(expected)} tensors are missing: "
                f"{listed(missing)}. The file has {listed(others, 3) or 'no others'}. "
                "Check that it is the whole checkpoint, and the one that was meant."
            )
        wrong = [
            f"{name} is {list(self.shapes[name])}, expected {list(shape)}"
            for name, shape in expected.items()
            if tuple(self.shapes[name]) != tuple(shape)
        ]
        if wrong:
            raise InputError(
                f"{self.path}: tensors of a {what} have the wrong shape: {listed(wrong)}. "
                "Check that the checkpoint is unmodified and its config.json is its own."
            )

    def fingerprint(self) -> str:
        """sha256 over the weights and their companions (config.json, class names)."""
        digest = hashlib.sha256()
        for path in self._files:
            digest.update(f"{path.name} {sha256_file(path)}\n".encode())
        return digest.hexdigest()


def listed(items: list[str], most: int = 8) -> str:
    """The first items, and how many more there are."""
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return "; ".join(items[:most]) + more
