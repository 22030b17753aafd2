"""How long the GPU was at work on a step."""

from __future__ import annotations

import time
from typing import Any

from ...runtime.spans import SpanRecorder, current_recorder
from ..cuda import Cuda


class GpuClock:
    """Spans named "gpu" of what is queued between `start` and `stop`, where spans are recorded; else it does nothing.

    A span is as long as the GPU's clock says. It ends where the host learns of it, a little later than on the GPU.
    """

    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda
        self._events: tuple[Any, ...] = ()
        self._recorder: SpanRecorder | None = None
        self._since = 0

    def start(self) -> None:
        self._recorder = current_recorder()
        if self._recorder is None:
            return
        self._events = self._events or (self._cuda.event(), self._cuda.event())
        self._since = time.perf_counter_ns()
        self._cuda.record(self._events[0])

    def stop(self) -> None:
        if self._recorder is not None:
            self._cuda.record(self._events[1])

    def read(self) -> None:
        """Comes after `Cuda.synchronize`: it does not wait."""
        if self._recorder is not None:
            self._recorder.add("gpu", self._cuda.elapsed(*self._events), self._since)

    def close(self) -> None:
        """Free the events; calling it twice is fine."""
        events, self._events = self._events, ()
        for event in events:
            self._cuda.free_event(event)
