"""Who spent which nanoseconds: named spans, recorded when somebody listens and nearly free when nobody does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import wraps
from types import TracebackType
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Span(NamedTuple):
    """start, end: `time.perf_counter_ns`. depth: 0 for those inside no other. images: of the batch, where it counts."""

    name: str
    start: int
    end: int
    depth: int
    images: int | None


class Ranges(Protocol):
    """Who else is told of every span while it is open, like the package `nvtx`."""

    def push_range(self, message: str) -> Any: ...

    def pop_range(self) -> Any: ...


class SpanRecorder:
    """Spans in the order they ended: those inside another come before it."""

    def __init__(self, ranges: Ranges | None = None) -> None:
        self.spans: list[Span] = []
        self.depth = 0
        self.ranges = ranges

    def span(self, name: str, images: int | None = None) -> AbstractContextManager[None]:
        return _Open(self, name, images)

    def add(self, name: str, nanoseconds: int, since: int) -> None:
        """A span that ends now and was timed by another clock than the host's. since: it began no earlier."""
        end = time.perf_counter_ns()
        self.spans.append(Span(name, max(since, end - nanoseconds), end, self.depth, None))


class _Open:
    # A generator would be shorter, and three times as slow.
    __slots__ = ("_images", "_name", "_recorder", "_start")

    def __init__(self, recorder: SpanRecorder, name: str, images: int | None) -> None:
        self._recorder, self._name, self._images = recorder, name, images

    def __enter__(self) -> None:
        self._recorder.depth += 1
        if self._recorder.ranges is not None:
            self._recorder.ranges.push_range(self._name)
        self._start = time.perf_counter_ns()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end = time.perf_counter_ns()
        if self._recorder.ranges is not None:
            self._recorder.ranges.pop_range()
        self._recorder.depth -= 1
        self._recorder.spans.append(Span(self._name, self._start, end, self._recorder.depth, self._images))


# Of this thread: a recording does not see what another thread's call does.
_recorder: ContextVar[SpanRecorder | None] = ContextVar("span recorder", default=None)
_SILENT = nullcontext()


@contextmanager
def recording(ranges: Ranges | None = None) -> Iterator[SpanRecorder]:
    """Record the spans of the block. Args: ranges: told of every span too."""
    recorder = SpanRecorder(ranges)
    token = _recorder.set(recorder)
    try:
        yield recorder
    finally:
        _recorder.reset(token)


def current_recorder() -> SpanRecorder | None:
    """The one that records here, if any does."""
    return _recorder.get()


def span(name: str, images: int | None = None) -> AbstractContextManager[None]:
    """A block of work. Costs a look-up when nothing is recorded."""
    recorder = _recorder.get()
    return _SILENT if recorder is None else recorder.span(name, images)


def spanned(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorator: every call is a span."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def recorded(*args: P.args, **kwargs: P.kwargs) -> R:
            recorder = _recorder.get()
            if recorder is None:
                return function(*args, **kwargs)
            with recorder.span(name):
                return function(*args, **kwargs)

        return recorded

    return decorate
