"""A profile on the screen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..profiling.comparison import Ratio
from ..profiling.report import Report
from ..profiling.verdict import forecast
from .console import human_size, plain_table, stdout


def print_report(report: Report) -> None:
    """The verdict first, then what it rests on."""
    for sentence in report.verdict:
        stdout.print(f"- {sentence}", markup=False, soft_wrap=True)
    stdout.print()
    _print_run(report)
    _print_parts(report)
    _print_costs(report)
    _print_acceptance(report)
    _print_memory(report)


def print_comparison(ratios: Sequence[Ratio], files: tuple[Path, Path]) -> None:
    """B over A, by figure."""
    a, b = (file.name for file in files)
    table = plain_table("", a, b, f"{b} / {a}", "95 % interval", title="medians; intervals within the runs")
    for ratio in ratios:
        estimate = ratio.estimate
        interval = f"{estimate.low:.3f} to {estimate.high:.3f}" if estimate.low < estimate.high else ""
        table.add_row(ratio.name, f"{ratio.before:.4g}", f"{ratio.after:.4g}", f"{estimate.value:.3f}", interval)
    stdout.print(table)


def _print_run(report: Report) -> None:
    setup, speed, found = report.setup, report.speed, report.acceptance
    speculative, sampling = setup.speculative, setup.sampling
    shared = float(np.mean(speed.images_per_pass))
    rows = {
        "bundle": f"{setup.bundle}, {setup.precision}, {setup.lowering}, {setup.backend}, {setup.threads} threads",
        "machine": setup.machine,
        "settings": f"{speculative['rule']}, {setup.tokens_per_pass} tokens a pass, CFG {sampling['cfg_scale']:g}, "
        f"temperature {sampling['temperature']:g}, top-k {sampling['top_k']}, batch {setup.batch_size}",
        "pictures": f"{setup.images} in {speed.seconds:.2f} s after {speed.warm_up_seconds:.2f} s of warm-up",
        "speed": f"{speed.tokens_per_second:.1f} tokens/s, {speed.images_per_minute:.2f} pictures a minute",
        "batch": f"{shared:.2f} pictures share a target pass",
        "accepted length": f"{found.accepted_length:.2f} tokens per target pass",
        "round": "p50 {:.2f}  p90 {:.2f}  p99 {:.2f} ms".format(*np.percentile(speed.round_ms, [50, 90, 99])),
        "plain step": f"p50 {np.median(speed.plain_ms):.2f} ms",
    }
    for name, value in rows.items():
        stdout.print(f"{name:<17} {value}", markup=False, soft_wrap=True)
    stdout.print()


def _print_parts(report: Report) -> None:
    table = plain_table("part of a round", "share", "p50 ms", "p90 ms", "p99 ms")
    for part in report.parts:
        table.add_row(part.name, f"{part.share:.1%}", *(f"{value:.3f}" for value in (part.p50, part.p90, part.p99)))
    stdout.print(table, "")


def _print_costs(report: Report) -> None:
    costs, width = report.costs, report.bandwidth
    table = plain_table("tokens per pass", *map(str, range(1, len(costs.target) + 1)))
    table.add_row("target, ms", *(f"{value:.2f}" for value in costs.target))
    table.add_row("c(T)", *(f"{value / costs.target[0]:.2f}" for value in costs.target))
    if costs.floor is not None:
        table.add_row("its products alone, ms", *(f"{value:.2f}" for value in costs.floor))
        ratios = zip(costs.target, costs.floor, strict=True)
        table.add_row("target / products", *(f"{target / floor:.2f}" for target, floor in ratios))
    if costs.draft is not None:
        table.add_row("draft, ms", *(f"{value:.2f}" for value in costs.draft))
    if costs.chain is not None:
        table.add_row("draft, whole chain, ms", *(f"{value:.2f}" for value in costs.chain))
    stdout.print(table)
    if width is not None:
        stdout.print(
            f"a pass reads {human_size(width.weight_bytes)} of weights: {width.plain / 1e9:.1f} GB/s alone, "
            f"{width.run / 1e9:.1f} GB/s in the run; this machine streams {width.stream / 1e9:.1f} GB/s\n"
        )
    if costs.floor is None:
        stdout.print("products alone were not measured: that needs onnxruntime on the CPU and the [export] extra\n")


def _print_acceptance(report: Report) -> None:
    found = report.acceptance
    if not found.by_position:
        return
    table = plain_table("tokens emitted", *map(str, range(1, len(found.histogram) + 1)))
    table.add_row("rounds", *map(str, found.histogram))
    table.add_row("", *(f"{count / sum(found.histogram):.0%}" for count in found.histogram))
    stdout.print(table, "")
    table = plain_table("draft position", *map(str, range(1, len(found.by_position) + 1)))
    table.add_row("reached", *map(str, found.reached))
    table.add_row("acceptance", *("-" if value is None else f"{value:.3f}" for value in found.by_position))
    lengths = forecast(report)
    if lengths:
        table.add_row("tokens/pass at that L", *(f"{length.tokens:.2f}" for length in lengths))
        table.add_row("speed vs plain, forecast", *(f"{length.speed_up:.2f}x" for length in lengths))
    stdout.print(table, "")


def _print_memory(report: Report) -> None:
    memory = report.memory
    table = plain_table("memory", "")
    for name, size in memory.weights.items():
        table.add_row(f"{name} weights", human_size(size))
    for name, size in memory.caches.items():
        table.add_row(f"{name} cache", human_size(size))
    table.add_row("process, before loading", human_size(memory.base))
    table.add_row("process, peak", human_size(memory.peak))
    table.add_row("taken / needed", f"{memory.excess:.2f}")
    stdout.print(table)
