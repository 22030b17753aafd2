"""Tensors that cross the bus: pinned host memory and its place on the device."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..cuda import Cuda


class Staging:
    """Grows on demand and is shared by all shapes: a smaller tensor is the start of the same memory."""

    def __init__(self, cuda: Cuda, name: str, dtype: str) -> None:
        self._cuda, self._name, self._dtype = cuda, name, np.dtype(dtype)
        self._host: NDArray[np.uint8] | None = None
        self.address = 0

    def reserve(self, shape: tuple[int, ...]) -> bool:
        """Make room. Returns: True when the memory moved, so that what points at it is stale."""
        size = math.prod(shape) * self._dtype.itemsize
        if self._host is not None and self._host.nbytes >= size:
            return False
        self.close()
        self.address = self._cuda.malloc(size, f"the tensor {self._name} {shape}")
        self._host = self._cuda.malloc_host(size, self._name)
        return True

    def view(self, shape: tuple[int, ...]) -> NDArray[Any]:
        """The host side as an array; `reserve` made room for it."""
        assert self._host is not None
        return self._host[: math.prod(shape) * self._dtype.itemsize].view(self._dtype).reshape(shape)

    def upload(self, shape: tuple[int, ...]) -> None:
        self._cuda.upload(self.address, self.view(shape))

    def download(self, shape: tuple[int, ...]) -> None:
        self._cuda.download(self.view(shape), self.address)

    def close(self) -> None:
        if self._host is not None:
            host, self._host = self._host, None
            self._cuda.free_host(host)
        if self.address:
            address, self.address = self.address, 0
            self._cuda.free(address)


class Series:
    """One tensor of every step of a chain: side by side in pinned host memory, and one after the other in one place on
    the device, that of a `Staging` or its own."""

    def __init__(self, cuda: Cuda, name: str, dtype: str, place: Staging | None = None) -> None:
        self._cuda, self._name, self._dtype, self._place = cuda, name, np.dtype(dtype), place
        self._host: NDArray[np.uint8] | None = None
        self._address, self._size = 0, 0

    @property
    def address(self) -> int:
        return self._address if self._place is None else self._place.address

    def reserve(self, steps: int, shape: tuple[int, ...]) -> bool:
        """Make room. Returns: True when memory moved, so that what points at it is stale."""
        size = math.prod(shape) * self._dtype.itemsize
        if self._host is not None and self._host.nbytes >= steps * size and self._size >= size:
            return False
        self.close()
        if self._place is None:
            self._address = self._cuda.malloc(size, f"the tensor {self._name} {shape}")
        self._size = size
        self._host = self._cuda.malloc_host(steps * size, self._name)
        return True

    def view(self, steps: int, shape: tuple[int, ...]) -> NDArray[Any]:
        """The host side, [steps, *shape]; `reserve` made room for it."""
        assert self._host is not None
        size = steps * math.prod(shape) * self._dtype.itemsize
        return self._host[:size].view(self._dtype).reshape(steps, *shape)

    def upload(self, step: int, shape: tuple[int, ...]) -> None:
        self._cuda.upload(self.address, self.view(step + 1, shape)[step])

    def download(self, step: int, shape: tuple[int, ...]) -> None:
        self._cuda.download(self.view(step + 1, shape)[step], self.address)

    def close(self) -> None:
        """Calling it twice is fine."""
        if self._host is not None:
            host, self._host = self._host, None
            self._cuda.free_host(host)
        if self._address:
            address, self._address = self._address, 0
            self._cuda.free(address)
