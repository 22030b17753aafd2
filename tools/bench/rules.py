"""Rules side by side on one bundle: accepted length, drift, token time against `ar`, same seeds, interleaved."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import track

from ...runtime import Pipeline, SpeculativeConfig
from ..cli.console import stderr
from .contenders import Contender, Sample, Workload
from .result import Out, Table, publish


def contenders(draft_length: int) -> list[Contender]:
    """The table's rows; the first is the baseline."""

    def speculative(rule: str, **settings: Any) -> SpeculativeConfig:
        return SpeculativeConfig(rule=rule, draft_length=draft_length, **settings)

    rows = [Contender("ar", SpeculativeConfig(rule="ar")), Contender("lossless", speculative("lossless"))]
    for delta in (1.1, 1.5):
        rows += [
            Contender(f"cool, floor 1, delta {delta}", speculative("cool", delta=delta)),
            Contender(f"cool, paper, delta {delta}", speculative("cool", delta=delta, floor=None)),
            Contender(f"linear, paper, delta {delta}", speculative("linear", delta=delta, floor=None)),
            Contender(f"uniform, delta {delta}", speculative("uniform", delta=delta)),
        ]
    return rows


def rules(
    bundle: Annotated[Path, typer.Argument(help="A bundle with a draft.")],
    images: Annotated[int, typer.Option(min=1, help="Pictures per rule, classes in turn.")] = 64,
    draft_length: Annotated[int, typer.Option(min=1)] = 5,
    cfg: Annotated[float, typer.Option(help="Guidance scale.")] = 2.0,
    batch_size: Annotated[int, typer.Option(min=1, help="Pictures that share passes.")] = 1,
    seed: int = 0,
    threads: Annotated[int | None, typer.Option(min=1)] = None,
    out: Out = None,
) -> None:
    """Compare the rules. Every picture is made by all rules in turn, in rotating order, from the same seed."""
    rows = contenders(draft_length)
    workload = Workload(images, batch_size, seed, {"cfg_scale": cfg})
    with Pipeline.load(bundle, threads=threads) as pipeline:
        workload.warm_up(pipeline, rows)
        for first in track(workload.turns, "rules", console=stderr):
            for row, result in workload.turn(pipeline, rows, first):
                row.sample.extend(Sample.of(result))
    setting = f"{images} pictures, CFG {cfg}, temperature 1, L = {draft_length}, batch {batch_size}"
    columns = ("rule", "accepted length", "drift per token", "token time vs `ar`")
    publish("Rules", setting, Table(columns, [_cells(row, rows[0]) for row in rows]), _as_dicts(rows), out)


def _cells(row: Contender, baseline: Contender) -> tuple[str, ...]:
    figures = row.sample.figures(baseline.sample)
    drift = figures["drift_per_token"]
    return row.name, str(figures["accepted_length"]), str(drift if drift.value else 0), f"{figures['speed_up']}x"


def _as_dicts(rows: list[Contender]) -> list[dict[str, Any]]:
    return [
        {
            "rule": row.name,
            "settings": row.config.model_dump(),
            **{name: asdict(figure) for name, figure in row.sample.figures(rows[0].sample).items()},
        }
        for row in rows
    ]
