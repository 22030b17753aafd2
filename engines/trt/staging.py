"""A tensor that crosses the bus: pinned host memory and its place on the device."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..cuda import Cuda


class Staging:
    """Grows on demand and is shared by all shapes: a smaller tensor is the start of the same memory.

    A chain has several steps, whose tensors lie side by side on the host and take turns in one place on the device.
    place: whose place on the device that is, if not its own.
    """

    def __init__(self, cuda: Cuda, name: str, dtype: str, place: Staging | None = None) -> None:
        self._cuda, self._name, self._dtype, self._place = cuda, name, np.dtype(dtype), place
        self._host: NDArray[np.uint8] | None = None
        self._own_address, self._size = 0, 0

    @property
    def address(self) -> int:
        """On the device; 0 before `reserve`."""
        return self._own_address if self._place is None else self._place.address

    def reserve(self, shape: tuple[int, ...], steps: int = 1) -> bool:
        """Make room. Returns: True when the memory moved, so that what points at it is stale."""
        size = math.prod(shape) * self._dtype.itemsize
        if self._host is not None and self._host.nbytes >= steps * size and self._size >= size:
            return False
        self.close()
        if self._place is None:
            self._own_address = self._cuda.malloc(size, f"the tensor {self._name} {shape}")
        self._host = self._cuda.malloc_host(steps * size, self._name)
        self._size = size
        return True

    def view(self, shape: tuple[int, ...], step: int = 0) -> NDArray[Any]:
        """One step's tensor on the host; `reserve` made room for it."""
        return self.views(shape, step + 1)[step]

    def views(self, shape: tuple[int, ...], steps: int) -> NDArray[Any]:
        """[steps, *shape], all of them."""
        assert self._host is not None
        size = steps * math.prod(shape) * self._dtype.itemsize
        return self._host[:size].view(self._dtype).reshape(steps, *shape)

    def upload(self, shape: tuple[int, ...], step: int = 0) -> None:
        self._cuda.upload(self.address, self.view(shape, step))

    def download(self, shape: tuple[int, ...], step: int = 0) -> None:
        self._cuda.download(self.view(shape, step), self.address)

    def close(self) -> None:
        """Calling it twice is fine."""
        if self._host is not None:
            host, self._host = self._host, None
            self._cuda.free_host(host)
        if self._own_address:
            address, self._own_address = self._own_address, 0
            self._cuda.free(address)
