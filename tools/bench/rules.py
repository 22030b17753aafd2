"""Rules side by side on one bundle: accepted length, drift, wall clock against `ar`, same seeds, interleaved."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import track

from ...runtime import GenerationResult, Pipeline, SpeculativeConfig
from ..cli.console import stderr
from .result import Out, Table, publish
from .statistics import Estimate, ratio_of_sums


@dataclass
class Contender:
    """One row of the table, and what was measured of it, image by image."""

    name: str
    config: SpeculativeConfig
    tokens: list[int] = field(default_factory=list)
    passes: list[int] = field(default_factory=list)
    drift: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def add(self, result: GenerationResult) -> None:
        """Count a call; its time (without decoding pixels) is split evenly among its images."""
        for stats in result.stats:
            self.tokens.append(stats.n_tokens)
            self.passes.append(stats.target_passes)
            self.drift.append(stats.drift)
            self.seconds.append(sum(stats.seconds.values()) - stats.seconds["decode"])

    def figures(self, baseline: Contender) -> dict[str, Estimate]:
        """accepted length, drift per token and speed-up, each with its interval."""
        return {
            "accepted_length": ratio_of_sums(self.tokens, self.passes),
            "drift_per_token": ratio_of_sums(self.drift, self.tokens),
            "speed_up": ratio_of_sums(baseline.seconds, self.seconds),
        }


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
    with Pipeline.load(bundle, threads=threads) as pipeline:
        classes = len(pipeline.info.class_names)
        for row in rows:  # warm-up: allocation and binding
            pipeline.generate([0] * batch_size, cfg_scale=cfg, speculative=row.config, batch_size=batch_size)
        for first in track(range(0, images, batch_size), "rules", console=stderr):
            batch = [i % classes for i in range(first, min(first + batch_size, images))]
            turn = first // batch_size % len(rows)
            for row in rows[turn:] + rows[:turn]:
                row.add(
                    pipeline.generate(
                        batch,
                        seed=seed,
                        first_index=first,
                        cfg_scale=cfg,
                        speculative=row.config,
                        batch_size=batch_size,
                    )
                )
    setting = f"{images} pictures, CFG {cfg}, temperature 1, L = {draft_length}, batch {batch_size}"
    columns = ("rule", "accepted length", "drift per token", "wall clock vs `ar`")
    publish("Rules", setting, Table(columns, [_cells(row, rows[0]) for row in rows]), _as_dicts(rows), out)


def _cells(row: Contender, baseline: Contender) -> tuple[str, ...]:
    accepted, drift, speed = row.figures(baseline).values()
    return row.name, str(accepted), str(drift if drift.value else 0), f"{speed}x"


def _as_dicts(rows: list[Contender]) -> list[dict[str, Any]]:
    return [
        {
            "rule": row.name,
            "settings": row.config.model_dump(),
            **{name: asdict(figure) for name, figure in row.figures(rows[0]).items()},
        }
        for row in rows
    ]
