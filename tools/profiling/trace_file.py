"""Spans in the Trace Event Format, which Perfetto (ui.perfetto.dev) and chrome://tracing open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...runtime.spans import Span
from .rounds import GPU, PREFILL, ROUND, outside_in


def trace_events(spans: Sequence[Span], title: str) -> dict[str, Any]:
    """One complete event per span, microseconds since the first; rounds are numbered and say how many images they
    carry, which is also a counter track. What the GPU did is a track of its own, where there is any."""
    ordered = outside_in(spans)
    origin = ordered[0].start if ordered else 0
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 1, "args": {"name": title}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "rounds"}},
    ]
    if any(span.name == GPU for span in ordered):
        events.append({"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "GPU"}})
    number = 0
    for span in ordered:
        event: dict[str, Any] = {
            "ph": "X",
            "name": span.name,
            "cat": "coolsd",
            "pid": 1,
            "tid": 2 if span.name == GPU else 1,
            "ts": (span.start - origin) / 1000,
            "dur": (span.end - span.start) / 1000,
        }
        if span.images is not None:
            event["args"] = {"images": span.images}
            counter = {"ph": "C", "name": "images", "pid": 1, "tid": 1, "ts": event["ts"], "args": event["args"]}
            events.append(counter)
        if span.name == ROUND:
            number += 1
            event["args"]["round"] = number
        elif span.name == PREFILL:
            number = 0
        events.append(event)
    return {"traceEvents": events, "displayTimeUnit": "ms"}
