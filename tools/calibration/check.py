"""Is a prediction true? The setting and `ar` on the same pictures, interleaved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from ...runtime import Pipeline, SpeculativeConfig
from ..bench.contenders import Contender, Sample, Workload
from ..bench.statistics import Estimate


def measure_setting(
    pipeline: Pipeline,
    config: SpeculativeConfig,
    workload: Workload,
    track: Callable[[Sequence[int]], Iterable[int]] = iter,
) -> dict[str, Estimate]:
    """`Sample.figures` of the setting over `ar`. track: passes on the batches, and may show how far it is."""
    rows = [Contender("ar", SpeculativeConfig(rule="ar")), Contender("setting", config)]
    workload.warm_up(pipeline, rows)
    for first in track(workload.turns):
        for row, result in workload.turn(pipeline, rows, first):
            row.sample.extend(Sample.of(result))
    return rows[1].sample.figures(rows[0].sample)


def refutation(measured: Mapping[str, Estimate], budget: float) -> str | None:
    """What surely speaks against a setting, its whole interval: more drift than the budget, or slower than `ar`.

    Args: measured: of `measure_setting`. None where nothing does, also for want of an interval.
    """
    drift, speed_up = measured["drift_per_token"], measured["speed_up"]
    if drift.low > budget:
        return f"measured drift {drift} is above the budget of {budget:g}"
    if speed_up.high < 1:
        return f"measured speed {speed_up} is below that of `ar`"
    return None
