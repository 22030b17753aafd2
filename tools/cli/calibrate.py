"""`coolsd-trt calibrate`: the draft length and schedule that pay best on this machine within a drift budget."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress, track

from ...engines.bundle import Bundle, replace_manifest
from ...engines.loader import LoadedEngines, load_engines
from ...runtime import InputError, Pipeline, SamplingConfig
from ...runtime.condition import ClassCondition, class_prompts
from ..bench.contenders import Workload
from ..bench.statistics import Estimate
from ..calibration.check import measure_setting, refutation
from ..calibration.costs import PassCosts, measure_costs
from ..calibration.search import Candidate, best_within, candidates, frontier
from ..calibration.trace import Trace, image_sequences, record_trace
from ..evaluation.plots import check_plot, draw_points, panels
from ..evaluation.table import shown
from . import options
from .console import plain_table, stderr, stdout
from .output import STDOUT, writable_files, write_text

BUDGETS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2)


def calibrate(
    ctx: typer.Context,
    bundle: Annotated[Path, typer.Argument(help="A class-conditional bundle with a draft.")],
    drift_budget: Annotated[float, typer.Option(min=0, help="Most drift per token; 0 = lossless.")] = 0.05,
    images: Annotated[int, typer.Option(min=1, help="Pictures to measure on, classes in turn.")] = 64,
    max_length: Annotated[int, typer.Option(min=1, help="Longest draft to consider.")] = 6,
    batch_size: Annotated[int, typer.Option(min=1, help="Pictures that will share passes in use.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Of the pictures to measure on.")] = 0,
    cfg_scale: options.CfgScale = None,
    cfg_interval: options.CfgInterval = None,
    temperature: options.Temperature = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    top_p_first: options.TopPFirst = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; default: all cores.")] = None,
    check_images: Annotated[
        int, typer.Option(min=0, help="Pictures on which the chosen setting is then measured against `ar`; 0 = none.")
    ] = 16,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the result, leave the bundle as it is.")] = False,
    report: Annotated[
        Path | None, typer.Option("--json", help="Write every figure to this file; `-` = stdout.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Plot of the frontier, .png or .svg; needs the plot extra.")] = None,
) -> None:
    """Measure acceptance and pass costs, then make the fastest setting within the budget the bundle's default.

    A setting that the check on other pictures refutes is not kept. Settings above drift 0 are lossy. Sampling options
    must be those of later use: acceptance depends on them.
    """
    check_plot(plot)
    console = stderr if report == STDOUT else stdout
    with writable_files({"--json": report, "--plot": plot}):
        with closing(load_engines(bundle, "auto", threads=threads)) as engines:
            chosen = {name: v for name, v in options.sampling_options(ctx.params).items() if v is not None}
            sampling = SamplingConfig(**{**engines.info.sampling.model_dump(), **chosen})
            trace, costs = _measure(engines, sampling, images, max_length, batch_size, seed)
        found = candidates(trace, costs)
        best = best_within(found, drift_budget)
        points = frontier(found, sorted({*BUDGETS, drift_budget}))
        _print_costs(console, costs, batch_size)
        _print_frontier(console, points, drift_budget)
        measured = None
        if check_images and best.config.rule != "ar":
            workload = Workload(check_images, batch_size, seed + 1, sampling.model_dump())
            measured = _check(console, bundle, best, workload, threads)
        if plot is not None:
            _plot(plot, found, points, measured)
        if report is not None:
            write_text(report, json.dumps(_as_dict(costs, points, measured), indent=1))
    if measured is not None and (reason := refutation(measured, drift_budget)) is not None:
        raise InputError(
            f"{_describe(best)} does not hold what was predicted: {reason}, its whole interval is. The bundle's "
            "default stays as it was. Calibrate on more --images, or with a smaller --drift-budget."
        )
    if best.config.rule == "ar":
        console.print("speculation does not pay here: every setting within the budget is slower than `ar`.")
    if not dry_run:
        _keep(console, bundle, best, sampling)


def _keep(console: Console, bundle: Path, best: Candidate, sampling: SamplingConfig) -> None:
    """Make the setting the bundle's default, with the sampling it was measured in: acceptance depends on that."""
    opened = Bundle.open(bundle, verify=False)
    replace_manifest(opened, opened.manifest.model_copy(update={"speculative": best.config, "sampling": sampling}))
    console.print(f"{bundle}: default is now {_describe(best)}", soft_wrap=True)
    before, after = opened.manifest.sampling.model_dump(), sampling.model_dump()
    changed = [f"{name} {after[name]} (was {before[name]})" for name in after if after[name] != before[name]]
    if changed:
        console.print(f"and its sampling default, for which that holds: {', '.join(changed)}", soft_wrap=True)


def _measure(
    engines: LoadedEngines, sampling: SamplingConfig, images: int, max_length: int, batch_size: int, seed: int
) -> tuple[Trace, PassCosts]:
    info = engines.info
    if engines.draft is None:
        raise InputError("this bundle has no draft: there is nothing to calibrate. Build it again with --draft.")
    if info.max_draft_length < 1:
        raise InputError("this bundle has no room for drafts. Build it again with --max-draft above 0.")
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
    return trace, measure_costs(engines, sampling, batch_size, length, host)


def _check(
    console: Console, bundle: Path, best: Candidate, workload: Workload, threads: int | None
) -> dict[str, Estimate]:
    """Measure the chosen setting, and print it beside what was predicted."""
    with Pipeline.load(bundle, threads=threads, verify=False) as pipeline:
        measured = measure_setting(pipeline, best.config, workload, lambda turns: track(turns, "check", console=stderr))
    table = plain_table(_describe(best), "predicted", "measured", title=f"\n{workload.images} other pictures")
    rows = (
        ("accepted length", "accepted_length", best.prediction.tokens),
        ("drift per token", "drift_per_token", best.prediction.drift_per_token),
        ("speed vs ar", "speed_up", best.speed_up),
    )
    for title, name, predicted in rows:
        table.add_row(title, f"{predicted:.3g}", shown(measured[name]))
    console.print(table)
    return measured


def _plot(
    path: Path,
    found: Sequence[Candidate],
    points: Sequence[tuple[float, Candidate]],
    measured: dict[str, Estimate] | None,
) -> None:
    with panels(path, 1) as (axis,):
        everything = [(c.speed_up, c.prediction.drift_per_token) for c in found]
        axis.plot(*zip(*everything, strict=True), ".", color="0.8", markersize=3, label="every setting, predicted")
        speeds = [Estimate(point.speed_up) for _, point in points]
        drifts = [Estimate(point.prediction.drift_per_token) for _, point in points]
        draw_points(axis, speeds, drifts, "best within a budget, predicted", 0, line="-")
        if measured is not None:
            draw_points(axis, [measured["speed_up"]], [measured["drift_per_token"]], "chosen, measured", 3)
        axis.set(xlabel="speed vs ar", ylabel="drift per token")
        axis.legend(fontsize="small")


def _print_costs(console: Console, costs: PassCosts, batch_size: int) -> None:
    table = plain_table("tokens per pass", *map(str, range(1, len(costs.target) + 1)), title=f"batch {batch_size}")
    table.add_row("target, ms", *(f"{1000 * seconds:.2f}" for seconds in costs.target))
    table.add_row("c(T)", *(f"{ratio:.2f}" for ratio in costs.ratios))
    table.add_row("draft, ms", *(f"{1000 * seconds:.2f}" for seconds in costs.draft_first))
    console.print(table)
    console.print(f"host {1000 * costs.host:.2f} ms a round, {1000 * costs.plain_host:.2f} ms one of `ar`\n")


def _print_frontier(console: Console, points: Sequence[tuple[float, Candidate]], drift_budget: float) -> None:
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
    console.print(table)


def _describe(candidate: Candidate) -> str:
    config = candidate.config
    if config.rule == "ar":
        return "ar"
    schedule = "" if config.rule == "lossless" else f" delta {config.delta:g} nu {config.nu:g}"
    return f"{config.rule}{schedule} L {config.draft_length}"


def _as_dict(
    costs: PassCosts, points: Sequence[tuple[float, Candidate]], measured: dict[str, Estimate] | None
) -> dict[str, Any]:
    return {
        "target_seconds": costs.target.tolist(),
        "draft_seconds": costs.draft_first.tolist(),
        "host_seconds": costs.host,
        "plain_host_seconds": costs.plain_host,
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
        "measured": {name: asdict(figure) for name, figure in measured.items()} if measured else None,
    }
