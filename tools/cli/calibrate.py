"""`coolsd-trt calibrate`: the draft length and schedule that pay best on this machine within a drift budget."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import Progress

from ...engines.bundle import Bundle, replace_manifest
from ...engines.loader import LoadedEngines, load_engines
from ...runtime import InputError, SamplingConfig
from ...runtime.condition import ClassCondition, class_prompts
from ..calibration.costs import PassCosts, measure_costs
from ..calibration.search import Candidate, best_within, candidates, frontier
from ..calibration.trace import Trace, image_sequences, record_trace
from . import options
from .console import plain_table, stderr, stdout
from .output import writable_report

BUDGETS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2)


def calibrate(
    ctx: typer.Context,
    bundle: Annotated[Path, typer.Argument(help="A class-conditional bundle with a draft.")],
    drift_budget: Annotated[float, typer.Option(min=0, help="Most drift per token; 0 = lossless.")] = 0.05,
    images: Annotated[int, typer.Option(min=1, help="Pictures to measure on, classes in turn.")] = 64,
    max_length: Annotated[int, typer.Option(min=1, help="Longest draft to consider.")] = 6,
    batch_size: Annotated[int, typer.Option(min=1, help="Pictures that will share passes in use.")] = 1,
    seed: int = 0,
    cfg_scale: options.CfgScale = None,
    cfg_interval: options.CfgInterval = None,
    temperature: options.Temperature = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    top_p_first: options.TopPFirst = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; default: all cores.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the result, leave the bundle as it is.")] = False,
    report: Annotated[Path | None, typer.Option("--json", help="Write every figure to this file.")] = None,
) -> None:
    """Measure acceptance and pass costs, then make the fastest setting within the budget the bundle's default.

    Settings above drift 0 are lossy. Sampling options must be those of later use: acceptance depends on them.
    """
    with writable_report(report):
        engines = load_engines(bundle, "auto", threads=threads)
    try:
        chosen = {name: v for name, v in options.sampling_options(ctx.params).items() if v is not None}
        sampling = SamplingConfig(**{**engines.info.sampling.model_dump(), **chosen})
        trace, costs = _measure(engines, sampling, images, max_length, batch_size, seed)
    finally:
        engines.close()
    found = candidates(trace, costs)
    best = best_within(found, drift_budget)
    points = frontier(found, sorted({*BUDGETS, drift_budget}))
    _print_costs(costs, batch_size)
    _print_frontier(points, drift_budget)
    if report is not None:
        report.write_text(json.dumps(_as_dict(costs, points), indent=1), encoding="utf-8")
    if best.config.rule == "ar":
        stdout.print("speculation does not pay here: every setting within the budget is slower than `ar`.")
    if not dry_run:
        opened = Bundle.open(bundle, verify=False)
        replace_manifest(opened, opened.manifest.model_copy(update={"speculative": best.config, "sampling": sampling}))
        stdout.print(f"{bundle}: default is now {_describe(best)}")


def _measure(
    engines: LoadedEngines, sampling: SamplingConfig, images: int, max_length: int, batch_size: int, seed: int
) -> tuple[Trace, PassCosts]:
    info = engines.info
    if engines.draft is None:
        raise InputError("this bundle has no draft: there is nothing to calibrate. Build it again with --draft.")
    if not isinstance(info.condition, ClassCondition):
        raise InputError("this bundle takes captions; calibration draws its pictures from classes.")
    if sampling.greedy:
        raise InputError("temperature = 0: greedy acceptance has no schedule to calibrate. Use a temperature above 0.")
    length = min(max_length, info.max_draft_length)
    prompts = class_prompts(info.condition, [i % len(info.class_names) for i in range(images)])
    sequences = image_sequences(prompts, info.n_tokens, seed, length)
    with Progress(console=stderr) as bar:
        task = bar.add_task("acceptance", total=images)
        trace = record_trace(
            engines, sequences, sampling, length, batch_size, lambda done: bar.update(task, completed=done)
        )
    rounds = sum(len(sequence.stats.accepted_lengths) for sequence in sequences)
    # Per batch, not per image: a round of a batch takes the host time of all its images.
    host = batch_size * sum(sequence.stats.seconds["host"] for sequence in sequences) / rounds
    rows = batch_size * (2 if sampling.guided else 1)
    cached = info.prefix_length + info.n_tokens // 2
    return trace, measure_costs(engines, info.hidden_size, rows, cached, length, host)


def _print_costs(costs: PassCosts, batch_size: int) -> None:
    table = plain_table("tokens per pass", *map(str, range(1, len(costs.target) + 1)), title=f"batch {batch_size}")
    table.add_row("target, ms", *(f"{1000 * seconds:.2f}" for seconds in costs.target))
    table.add_row("c(T)", *(f"{ratio:.2f}" for ratio in costs.ratios))
    table.add_row("draft, ms", *(f"{1000 * seconds:.2f}" for seconds in costs.draft_first))
    stdout.print(table)
    stdout.print(f"host {1000 * costs.host:.2f} ms a round\n")


def _print_frontier(points: Sequence[tuple[float, Candidate]], drift_budget: float) -> None:
    table = plain_table(
        "drift budget", "setting", "accepted length", "drift per token", "speed vs ar", title="predicted"
    )
    for budget, point in points:
        mark = " *" if budget == drift_budget else ""
        table.add_row(
            f"{budget:g}{mark}",
            _describe(point),
            f"{point.prediction.tokens:.2f}",
            f"{point.prediction.drift_per_token:.4f}",
            f"{point.speed_up:.2f}x",
        )
    stdout.print(table)


def _describe(candidate: Candidate) -> str:
    config = candidate.config
    if config.rule == "ar":
        return "ar"
    schedule = "" if config.rule == "lossless" else f" delta {config.delta:g} nu {config.nu:g}"
    return f"{config.rule}{schedule} L {config.draft_length}"


def _as_dict(costs: PassCosts, points: Sequence[tuple[float, Candidate]]) -> dict[str, Any]:
    return {
        "target_seconds": costs.target.tolist(),
        "draft_seconds": costs.draft_first.tolist(),
        "host_seconds": costs.host,
        "frontier": [
            {
                "drift_budget": budget,
                "settings": point.config.model_dump(),
                **asdict(point.prediction),
                "drift_per_token": point.prediction.drift_per_token,
                "speed_up": point.speed_up,
            }
            for budget, point in points
        ],
    }
