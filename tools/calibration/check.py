"""Is a prediction true? The setting and `ar` on the same pictures, interleaved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

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


def above_budget(drift: Estimate, budget: float) -> bool:
    """Whether the measured drift is surely more than the budget: its whole interval is."""
    return drift.low > budget
