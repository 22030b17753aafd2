"""A tensor that crosses the bus every step: pinned host memory and its place on the device."""

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
