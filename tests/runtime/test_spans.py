from __future__ import annotations

import threading
import time

import pytest
from coolsd_trt.runtime.spans import recording, span, spanned


@spanned("inner")
def work(value: int) -> int:
    """Adds one."""
    return value + 1


def test_nested_spans_say_who_is_inside_whom() -> None:
    with recording() as recorder, span("outer", images=3):
        assert work(1) == 2
        with span("second"):
            pass
    inner, second, outer = recorder.spans
    assert [s.name for s in recorder.spans] == ["inner", "second", "outer"]
    assert [s.depth for s in recorder.spans] == [1, 1, 0]
    assert (outer.images, inner.images) == (3, None)
    assert outer.start <= inner.start <= inner.end <= second.start <= second.end <= outer.end


def test_nothing_is_recorded_outside_a_recording_or_for_another_thread() -> None:
    work(1)
    with recording() as recorder:
        thread = threading.Thread(target=work, args=(1,))
        thread.start()
        thread.join()
    work(1)
    assert recorder.spans == []


def test_a_span_ends_with_an_error() -> None:
    with recording() as recorder:
        with pytest.raises(ValueError, match="no"), span("outer"), span("inner"):
            raise ValueError("no")
        work(1)
    assert [(s.name, s.depth) for s in recorder.spans] == [("inner", 1), ("outer", 0), ("inner", 0)]


def test_other_clocks_say_how_long_and_the_host_says_when() -> None:
    with recording() as recorder, span("engine"):
        since = time.perf_counter_ns()
        recorder.add("gpu", 1, since)
        recorder.add("gpu", 10**12, since)
    short, long, engine = recorder.spans
    assert (short.end - short.start, short.depth) == (1, 1)
    assert engine.start <= long.start == since < long.end <= engine.end, (
        "a clock that runs fast does not leave its span"
    )


class Told:
    """Open ranges, and every one there was."""

    def __init__(self) -> None:
        self.open: list[str] = []
        self.all: list[str] = []

    def push_range(self, message: str) -> None:
        self.open.append(message)
        self.all.append("/".join(self.open))

    def pop_range(self) -> None:
        self.open.pop()


def test_ranges_open_and_close_with_their_spans() -> None:
    told = Told()
    with recording(told):
        with pytest.raises(ValueError, match="no"), span("outer"):
            work(1)
            raise ValueError("no")
        work(1)
    work(1)
    assert (told.all, told.open) == (["outer", "outer/inner", "inner"], [])


def test_decorated_functions_keep_name_and_docstring() -> None:
    assert (work.__name__, work.__doc__) == ("work", "Adds one.")
