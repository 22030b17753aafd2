from __future__ import annotations

import pytest
from coolsd_trt.tools.bench.statistics import Estimate
from coolsd_trt.tools.evaluation.wording import decided, markdown_table, paragraph, verdict

LESS, MORE, OPEN = Estimate(-1, -2, -0.5), Estimate(1, 0.5, 2), Estimate(0.1, -1, 1)


@pytest.mark.parametrize(
    ("gaps", "text"),
    [
        ([LESS, LESS], "held everywhere"),
        ([MORE, MORE], "the opposite held everywhere"),
        ([OPEN, OPEN], "undecided everywhere"),
        ([LESS, MORE], "held at 3; the opposite held at 4"),
        ([OPEN, LESS], "held at 4; undecided at 3"),
    ],
)
def test_a_verdict_follows_from_the_intervals(gaps: list[Estimate], text: str) -> None:
    assert verdict(gaps, ["3", "4"]) == text


def test_an_interval_that_holds_zero_decides_nothing() -> None:
    assert decided(False, False) == "undecided"
    assert verdict([Estimate(-1, -2, 0.0)], ["3"]) == "undecided at 3"


def test_markdown() -> None:
    assert markdown_table(("a", "b"), [["1", "2"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"
    assert paragraph("one\n    two  three") == "one two three"
