from __future__ import annotations

import pytest
from coolsd_trt.runtime.spans import Span
from coolsd_trt.tools.profiling.rounds import part_matrix, rounds
from coolsd_trt.tools.profiling.trace_file import trace_events


def example() -> list[Span]:
    """A prefill and two rounds; in the order they end, as recorded."""
    return [
        Span("target", 0, 80, 1, None),
        Span("prefill", 0, 100, 0, 2),
        Span("engine", 110, 130, 2, None),
        Span("draft", 105, 140, 1, None),
        Span("warp", 155, 160, 3, None),
        Span("verify", 150, 170, 2, None),
        Span("host", 140, 180, 1, None),
        Span("round", 100, 200, 0, 2),
        Span("target", 200, 240, 1, None),
        Span("round", 200, 250, 0, 1),
        Span("decode", 250, 300, 0, None),
    ]


def test_parts_are_a_rounds_own_times_and_add_up() -> None:
    first, second = rounds(example())
    assert first.parts == {
        "between phases": 25,
        "draft/rest": 15,
        "draft/engine": 20,
        "host/rest": 20,
        "host/verify": 15,
        "host/warp": 5,
    }
    assert (sum(first.parts.values()), first.nanoseconds, first.images) == (100, 100, 2)
    assert second.parts == {"between phases": 10, "target/rest": 40}
    assert [r.nanoseconds for r in rounds(example(), "prefill")] == [100]


def test_the_matrix_has_a_column_per_part_with_zeros_where_a_round_lacks_it() -> None:
    matrix = part_matrix(rounds(example()))
    assert next(iter(matrix)) == "target/rest"
    assert matrix["target/rest"].tolist() == [0.0, 40e-9]
    assert sum(column.sum() for column in matrix.values()) * 1e9 == pytest.approx(150)


def test_trace_events_nest_and_number_the_rounds() -> None:
    trace = trace_events(example(), "title")
    events = trace["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert len(spans) == len(example())
    assert {"name", "ts", "dur", "pid", "tid", "cat"} <= set(spans[0])
    assert [event["args"] for event in spans if event["name"] == "round"] == [
        {"images": 2, "round": 1},
        {"images": 1, "round": 2},
    ]
    # What starts before another ends also ends after it: viewers stack events of a thread by containment alone.
    open_until: list[float] = []
    for event in spans:
        while open_until and open_until[-1] <= event["ts"]:
            open_until.pop()
        assert not open_until or event["ts"] + event["dur"] <= open_until[-1]
        open_until.append(event["ts"] + event["dur"])
    counters = [event["args"]["images"] for event in events if event["ph"] == "C"]
    assert counters == [2, 2, 1]
