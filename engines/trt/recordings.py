"""Work that a GPU is given again and again: queued call by call at first, then as one CUDA graph."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable
from typing import Any

from ...runtime.errors import BackendError
from ..cuda import Cuda


class Recordings:
    """By what is done and where: whoever asks puts shapes and addresses that may change into the key.

    The first time runs call by call, which lets TensorRT prepare its kernels; the second records copies and kernels in
    a CUDA graph, which the later ones launch. Work goes on without graphs, slower, where none can be recorded.
    """

    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda
        self._seen: set[Hashable] = set()
        self._graphs: dict[Hashable, Any] = {}
        self._records = True

    def run(self, key: Hashable, enqueue: Callable[[], None], capturable: Callable[[], bool]) -> None:
        """Do what `enqueue` queues. capturable: whether TensorRT lets that be recorded."""
        if key not in self._graphs and key in self._seen and self._records:
            self._record(key, enqueue, capturable)
        if key in self._graphs:
            self._cuda.launch(self._graphs[key])
        else:
            enqueue()
            self._seen.add(key)

    def clear(self) -> None:
        """Forget everything: memory has moved or goes."""
        for graph in self._graphs.values():
            self._cuda.free_graph(graph)
        self._graphs.clear()
        self._seen.clear()

    def _record(self, key: Hashable, enqueue: Callable[[], None], capturable: Callable[[], bool]) -> None:
        if not capturable():
            self._records = False
            return
        try:
            self._graphs[key] = self._cuda.capture(enqueue)
        except BackendError as error:
            self._records = False
            warnings.warn(f"steps run without CUDA graphs, slower: {error}", RuntimeWarning, stacklevel=2)
