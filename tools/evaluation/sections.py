"""The parts of the report's page. Every claim is chosen by the figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..bench.statistics import Estimate, Resampled
from .ablations import (
    AR,
    DELTAS,
    DRAFT_LENGTH,
    GAINS,
    LANTERN_LAMBDA,
    LENGTHS,
    LOSSLESS,
    RESAMPLING,
    TREES,
    lantern,
    schedule,
    shaped,
    swept,
)
from .equal_length import SCHEDULES, difference, drift_at
from .figures import delta_name, plot_lengths, plot_residuals, plot_schedules
from .findings import Drawn, Findings, faster, longer
from .table import shown
from .wording import decided, markdown_table, paragraph, tally, verdict

FLOORED = "exponential, floor 1"
# What should drift less, than what, and who says so.
ORDERINGS = (
    ("exponential", "linear", "the paper's order"),
    ("linear", "uniform", "the paper's order"),
    (FLOORED, "exponential", "this project's floor against the paper's schedule"),
    (FLOORED, "uniform", "annealing with the floor against none"),
)


@dataclass(frozen=True)
class Section:
    """Markdown, and its claims for the top of the page."""

    text: str
    claims: list[str]


def head(findings: Findings) -> str:
    """What was run, and how to read it."""
    quality, speed, ar = findings.quality.workload, findings.speed.workload, findings.quality[AR]
    setting = paragraph(f"""
        Written by `python -m coolsd_trt.tools.evaluation.report`; its verdicts follow from its figures.
        Machine: {findings.setting["machine"]}. CFG {findings.setting["cfg"]}, temperature 1, L = {DRAFT_LENGTH} unless
        said otherwise. Schedules and residuals: {quality.images} pictures a setting, classes in turn, batch
        {quality.batch_size}. Trees and draft lengths: {speed.images} pictures, one by one. Every picture is made by all
        settings of its table in turn, from the same seed. Brackets are 95 % bootstrap intervals over pictures;
        differences are paired by picture, and one whose interval holds 0 counts as undecided. Nothing corrects for
        the number of comparisons: of twenty that are null, one will seem decided.
    """)
    words = paragraph(f"""
        Accepted length is tokens per target pass (`ar`: 1). Drift is the total variation from the target's law, per
        token. The Fréchet distance is to real pictures, in the features of the demo's classifier (see its model card);
        it depends on how many pictures there are, so only equal numbers compare, and among these it favours pictures
        that differ less from each other: what is said of it here holds for sets of this size. `ar`: distance
        {shown(ar.frechet)}, class accuracy {shown(ar.accuracy)}.
    """)
    return f"# Ablations on `{findings.setting['bundle']}`\n\n{setting}\n\n{words}"


def schedules_section(findings: Findings, folder: Path) -> Section:
    """Schedules where they accept equally much."""
    run = findings.quality
    rows = {
        name: sorted((run[schedule(name, delta)] for delta in deltas), key=lambda drawn: drawn.length.value)
        for name, deltas in findings.recorded.deltas.items()
    }
    gains = range(len(GAINS))
    expected = _at_equal_length(
        {name: [findings.recorded.schedule_drift(name, i) for i in gains] for name in SCHEDULES},
        [findings.recorded.length(i) for i in gains],
    )
    lengths = [float(np.mean([own[i].length.value for own in rows.values()])) for i in gains]
    measured = _at_equal_length(
        {name: [drift_at([d.sample for d in own], length) for length in lengths] for name, own in rows.items()},
        lengths,
    )
    plot_schedules(folder / "schedules.png", findings.recorded, rows, run[AR])
    claims = [
        f"Drift at equal accepted length, {a} below {b} ({whose}): on recorded rounds {expected.verdict(a, b)}; "
        f"as drawn {measured.verdict(a, b)}."
        for a, b, whose in ORDERINGS
    ]
    claims += [_frechet_claim(rows, a, b) for a, b in (("exponential", "uniform"), (FLOORED, "exponential"))]
    drawn = [run[LOSSLESS], *(item for own in rows.values() for item in own)]
    told = paragraph(f"""
        Exponential (nu = 0.7) and linear without a floor, uniform, and exponential with a floor of 1. Deltas are those
        that accept {", ".join(f"{gain:g}" for gain in GAINS)} times what `lossless` does on the rounds recorded while
        {len(findings.recorded.rounds)} pictures were drawn losslessly.
    """)
    parts = (
        "## Schedules at equal accepted length, and the floor",
        told,
        f"![drift and Fréchet distance by accepted length]({folder.name}/schedules.png)",
        "On the recorded rounds, where nothing but the schedule differs, drift per token:",
        expected.table(),
        "As drawn, read off the line through a schedule's three deltas, drift per token:",
        measured.table(),
        "The settings as they were drawn:",
        _picture_table(drawn, run[AR]),
    )
    return Section("\n\n".join(parts), claims)


@dataclass(frozen=True)
class _AtEqualLength:
    """Drifts of the schedules at accepted lengths, and their differences by `ORDERINGS`."""

    lengths: list[str]
    drifts: dict[str, list[Resampled]]
    differences: dict[tuple[str, str], list[Estimate]]

    def verdict(self, a: str, b: str) -> str:
        return verdict(self.differences[a, b], self.lengths)

    def table(self) -> str:
        drifts = markdown_table(
            ("accepted length", *self.drifts),
            [
                [length, *(shown(Estimate.of(*own[i])) for own in self.drifts.values())]
                for i, length in enumerate(self.lengths)
            ],
        )
        differences = markdown_table(
            ("accepted length", *(f"{a} minus {b}" for a, b in self.differences)),
            [[length, *(shown(own[i]) for own in self.differences.values())] for i, length in enumerate(self.lengths)],
        )
        return f"{drifts}\n\n{differences}"


def _at_equal_length(drifts: dict[str, list[Resampled]], lengths: Sequence[float]) -> _AtEqualLength:
    differences = {
        (a, b): [difference(x, y) for x, y in zip(drifts[a], drifts[b], strict=True)] for a, b, _ in ORDERINGS
    }
    return _AtEqualLength([f"{length:.2f}" for length in lengths], drifts, differences)


def residuals_section(findings: Findings, folder: Path) -> Section:
    """The optimal residual against LANTERN++'s own."""
    recorded, run = findings.recorded, findings.quality
    ks, positions = list(recorded.optimal), sum(recorded.positions)
    gains, wider = [recorded.gain(k) for k in ks], recorded.widening()
    better = [run[lantern(k, "native")].farther_than(run[lantern(k, "optimal")]) for k in recorded.drawn_ks]
    plot_residuals(folder / "residuals.png", findings, ks)
    claims = [
        f"The optimal residual drifts less than LANTERN++'s own (exact, {positions} positions): "
        f"{tally([gain.low > 0 for gain in gains], [gain.high < 0 for gain in gains], [f'k = {k}' for k in ks])}. "
        f"The gap is wider at k = {max(ks)} than at k = {min(ks)}: {decided(wider.low > 0, wider.high < 0)} "
        f"(difference {shown(wider)}).",
        "Pictures of the optimal residual are nearer to real ones than those of LANTERN++'s own (Fréchet distance): "
        + tally([d.low > 0 for d in better], [d.high < 0 for d in better], [f"k = {k}" for k in recorded.drawn_ks])
        + ".",
    ]
    told = paragraph(f"""
        LANTERN++ with lambda = {LANTERN_LAMBDA:g} and k neighbours. What its own residual (native) drifts depends on
        which token fell, and the online meter can't tell it. So the emitted law is written out at {positions} recorded
        positions where lossless rounds begin, and compared with the target's. Total variation at a position:
    """)
    exact = markdown_table(
        ("k", *RESAMPLING, "native minus optimal"),
        [
            [str(k), *(shown(recorded.drift(k, name)) for name in RESAMPLING), shown(gain)]
            for k, gain in zip(ks, gains, strict=True)
        ],
    )
    drawn = _picture_table([run[lantern(k, name)] for k in recorded.drawn_ks for name in RESAMPLING], run[AR])
    plot = f"![total variation by k]({folder.name}/residuals.png)"
    title = "## The optimal residual and LANTERN++'s own"
    return Section("\n\n".join((title, told, exact, plot, "Pictures drawn with them:", drawn)), claims)


def trees_section(findings: Findings, folder: Path) -> Section:
    """Chain and trees, lossless and relaxed."""
    run, claims, rows = findings.speed, [], []
    names = [tree for tree in TREES if tree]
    for rule in ("lossless", "cool"):
        chain, trees = run[shaped(rule, None)], [run[shaped(rule, tree)] for tree in names]
        rows += [[d.name, *map(shown, (d.length, d.drift, d.speed))] for d in (chain, *trees)]
        more, quick = [longer(drawn, chain) for drawn in trees], [faster(drawn, chain) for drawn in trees]
        ratios = ", ".join(f"{name} {shown(ratio)}" for name, ratio in zip(names, quick, strict=True))
        claims += [
            f"Trees accept more than a chain ({rule}): "
            + tally([d.low > 0 for d in more], [d.high < 0 for d in more], names)
            + ".",
            f"Trees are faster than a chain on this machine ({rule}): "
            + tally([d.low > 1 for d in quick], [d.high < 1 for d in quick], names)
            + f". Speed over the chain's: {ratios}.",
        ]
    told = f"Depth {DRAFT_LENGTH}; `cool` at delta 1.1 with a floor of 1."
    table = markdown_table(("setting", "accepted length", "drift per token", "speed vs `ar`"), rows)
    return Section(f"## Chain and trees\n\n{told}\n\n{table}", claims)


def lengths_section(findings: Findings, folder: Path) -> Section:
    """Draft length by delta."""
    run, deltas = findings.speed, (None, *DELTAS)
    cells = {(length, delta): run[swept(length, delta)] for length in LENGTHS for delta in deltas}

    def table(title: str, figure: Callable[[Drawn], Estimate]) -> str:
        rows = [[str(length), *(shown(figure(cells[length, delta])) for delta in deltas)] for length in LENGTHS]
        return f"{title}:\n\n{markdown_table(('L', *map(delta_name, deltas)), rows)}"

    plot_lengths(folder / "lengths.png", cells)
    parts = (
        "## Draft length and delta",
        "`cool` with a floor of 1, nu = 0.7.",
        f"![accepted length and speed by L]({folder.name}/lengths.png)",
        table("Accepted length", lambda drawn: drawn.length),
        table("Drift per token", lambda drawn: drawn.drift),
        table("Speed over `ar`", lambda drawn: drawn.speed),
    )
    return Section("\n\n".join(parts), [_length_claim(cells, delta) for delta in deltas])


def _length_claim(cells: dict[tuple[int, float | None], Drawn], delta: float | None) -> str:
    best = max(LENGTHS, key=lambda length: cells[length, delta].speed.value)
    near = [
        str(length)
        for length in LENGTHS
        if length != best and faster(cells[best, delta], cells[length, delta]).low <= 1
    ]
    also = f"not distinguishable from L = {', '.join(near)}" if near else "faster than every other L tried"
    speed = shown(cells[best, delta].speed)
    return f"Fastest draft length, {delta_name(delta)}: L = {best} with {speed} times the speed of `ar`; {also}."


def _picture_table(drawn: Sequence[Drawn], ar: Drawn) -> str:
    return markdown_table(
        ("setting", "accepted length", "drift per token", "Fréchet distance", "minus `ar`'s", "class accuracy"),
        [[d.name, *map(shown, (d.length, d.drift, d.frechet, d.farther_than(ar), d.accuracy))] for d in drawn],
    )


def _frechet_claim(rows: dict[str, list[Drawn]], a: str, b: str) -> str:
    """At the longest accepted length, where relaxation shows most."""
    gap = rows[a][-1].farther_than(rows[b][-1])
    word = decided(gap.high < 0, gap.low > 0)
    return f"Fréchet distance at the longest accepted length, {a} below {b}: {word} (difference {shown(gap)})."
