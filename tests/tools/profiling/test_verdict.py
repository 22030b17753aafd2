from __future__ import annotations

from typing import Any

import pytest
from coolsd_trt.runtime import SamplingConfig
from coolsd_trt.tools.cli import profile_tables
from coolsd_trt.tools.profiling.comparison import compare_reports
from coolsd_trt.tools.profiling.html import html_page
from coolsd_trt.tools.profiling.report import (
    Acceptance,
    Bandwidth,
    Costs,
    Memory,
    Part,
    Report,
    Setup,
    Speed,
)
from coolsd_trt.tools.profiling.verdict import forecast, verdict


def report(rule: str = "lossless", beta: float = 0.8, round_ms: float = 15.0, **changes: Any) -> Report:
    """L = 3. A plain step takes 10 ms, a pass of four 13, the draft 1 a step, and a round 0 to 15 in all."""
    made = Report(
        setup=Setup(
            bundle="b",
            build_key="k",
            machine="m",
            backend="ort-cpu",
            threads=2,
            precision="fp32",
            lowering="tensor_scatter",
            sampling={},
            speculative={"rule": rule, "tree": None},
            tokens_per_pass=4,
            images=2,
            batch_size=1,
            seed=0,
        ),
        speed=Speed(
            seconds=1.0,
            warm_up_seconds=0.1,
            tokens_per_second=100.0,
            images_per_minute=60.0,
            image_seconds=[0.5, 0.5],
            round_ms=[round_ms] * 9,
            plain_ms=[10.0] * 9,
            images_per_pass=[1] * 9,
        ),
        parts=[
            Part(name="target/engine", share=13 / 16, p50=12.0, p90=12.0, p99=12.0),
            Part(name="draft/engine", share=3 / 16, p50=1.0, p90=1.0, p99=1.0),
        ],
        part_ms={"target/engine": [13.0] * 9, "draft/engine": [0.5, 1.0, 1.5] * 3},
        acceptance=Acceptance(
            accepted_length=1 + beta + beta**2 + beta**3,
            drift_per_token=0.0,
            histogram=[1, 1, 1, 6],
            by_position=[beta] * 3,
            reached=[9, 8, 7],
        ),
        costs=Costs(target=[10.0, 11.0, 12.0, 13.0, 14.0, 15.0], draft=[1.0] * 6, plain_host=0.0, floor=[9.0] * 6),
        bandwidth=Bandwidth(weight_bytes=200_000_000, stream=25e9, plain=20e9, run=15e9, cached=False),
        memory=Memory(weights={"target": 200_000_000}, caches={"target": 10_000_000}, base=0, peak=230_000_000),
    )
    return made.model_copy(update=changes)


def test_it_says_whether_speculation_pays_with_the_numbers() -> None:
    assert verdict(report(beta=0.8))[0].startswith("Speculation pays: accepted length 2.95, and a round costs 1.50")
    poor = verdict(report(beta=0.2))
    assert poor[0].startswith("Speculation does not pay: accepted length 1.25, and a round costs 1.50 plain steps")
    assert "--rule ar" in poor[0]
    assert "Nothing is drafted" in verdict(report(rule="ar"))[0]


def test_the_forecast_is_the_expected_speed_at_each_length() -> None:
    lengths = forecast(report(beta=0.5))
    assert [length.tokens for length in lengths] == pytest.approx([1.5, 1.75, 1.875])
    assert [length.speed_up for length in lengths] == pytest.approx([15 / 12, 17.5 / 14, 18.75 / 16])
    assert any("--draft-length 1 should be 1.07x as fast as 3" in sentence for sentence in verdict(report(beta=0.5)))
    assert not any("--draft-length" in sentence for sentence in verdict(report(beta=0.95)))
    # A round of 20 ms of which the host takes 4; plain autoregression's takes 2.
    parts = [("target/engine", 0.65), ("draft/engine", 0.15), ("host/verify", 0.2)]
    hosted = report(
        beta=0.5,
        parts=[Part(name=name, share=share, p50=1.0, p90=1.0, p99=1.0) for name, share in parts],
        costs=report().costs.model_copy(update={"plain_host": 2.0, "chain": [0.5, 1.0, 1.5]}),
    )
    speeds = [length.speed_up for length in forecast(hosted)]
    assert speeds == pytest.approx([1.5 * 12 / (11 + 1 + 4), 1.75 * 12 / (12 + 2 + 4), 1.875 * 12 / (13 + 3 + 4)])


def test_what_bounds_the_target_is_named() -> None:
    assert any("bound by reading weights: 20.0 of 25.0 GB/s" in sentence for sentence in verdict(report()))
    read = report().bandwidth
    assert read is not None
    cached = read.model_copy(update={"cached": True})
    assert any("fit into the processor's cache" in s for s in verdict(report(bandwidth=cached)))
    assert any("A pass of 4 takes 1.44x its matrix products" in sentence for sentence in verdict(report()))
    bare = report().costs.model_copy(update={"floor": None})
    assert not any("matrix products" in sentence for sentence in verdict(report(costs=bare)))


def test_off_the_cpu_the_hosts_memory_bounds_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    sampling = SamplingConfig().model_dump()
    elsewhere = report(bandwidth=None, setup=report().setup.model_copy(update={"sampling": sampling}))
    assert "Target passes take 81% of a round." in verdict(elsewhere)
    profile_tables.print_report(elsewhere)
    assert "GB/s" not in capsys.readouterr().out + html_page(elsewhere)


def test_a_comparison_has_ratios_with_intervals() -> None:
    ratios = {ratio.name: ratio for ratio in compare_reports(report(), report(round_ms=30.0))}
    assert ratios["round, ms"].estimate.value == 2.0
    assert ratios["target/engine, ms"].estimate.value == 1.0
    spread = ratios["draft/engine, ms"].estimate
    assert spread.low < 1.0 < spread.high
    assert ratios["c(T) of a whole round"].before == 1.3
