from __future__ import annotations

import threading

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


def test_decorated_functions_keep_name_and_docstring() -> None:
    assert (work.__name__, work.__doc__) == ("work", "Adds one.")
