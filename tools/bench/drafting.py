"""The draft's part of a round: its chain in one engine call against one call per token."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from ...engines.backends import BACKENDS_HELP
from ...engines.loader import load_engines
from ...runtime import SamplingConfig
from ...runtime.condition import ClassCondition, class_prompts
from ...runtime.drafting import Drafter, FusedDrafter, StaticDrafter
from ...runtime.errors import InputError
from ...runtime.protocols import ChainDraft, ModelInfo
from ...runtime.sampling import image_generator
from ...runtime.sequence import Batch, ImageSequence
from ...runtime.tree import Tree
from .interleaved import interleave
from .machine import machine

BRANCHES = 2


def drafting(
    bundle: Annotated[Path, typer.Argument(help="A bundle with a draft, of a class-conditional model.")],
    draft_length: Annotated[int, typer.Option(min=1)] = 5,
    images: Annotated[int, typer.Option(min=1, help="Pictures that share passes.")] = 1,
    top_k: Annotated[list[int] | None, typer.Option(help="May be repeated; 0 is off.")] = None,
    turns: Annotated[int, typer.Option(min=2, help="Times that each contender gets its turn.")] = 25,
    backend: Annotated[str, typer.Option(help=f"auto or one of: {BACKENDS_HELP}")] = "ort-cpu",
    threads: Annotated[int, typer.Option(min=1)] = 2,
) -> None:
    """Time proposals in the middle of a picture, after rounds that emitted 1, 3 and L + 1 tokens, interleaved."""
    with closing(load_engines(bundle, backend, threads=threads)) as engines:
        info, draft = engines.info, engines.draft
        if not isinstance(draft, ChainDraft) or not isinstance(info.condition, ClassCondition):
            raise InputError(f"{bundle}: no draft in it that runs whole chains on {backend}, or it takes no classes.")
        if draft_length > draft.longest_chain:
            raise InputError(f"--draft-length {draft_length}: whole chains have up to {draft.longest_chain} here.")
        for k in top_k or ():
            if not draft.samples(SamplingConfig(top_k=k)):
                raise InputError(f"--top-k {k}: this backend samples no whole chains with it. Use a smaller one.")
        draft.allocate(BRANCHES * images, info.prefix_length + info.n_tokens + draft_length)
        setting = f"{info.name} on {engines.backend}, {images} pictures, CFG, L = {draft_length}, {threads} threads"
        _compare(draft, info, images, draft_length, top_k or [0, 1000], turns, setting)


def _compare(
    draft: ChainDraft, info: ModelInfo, images: int, draft_length: int, top_ks: list[int], turns: int, setting: str
) -> None:
    typer.echo(f"{setting}, {machine()}; medians of {3 * turns} interleaved calls\n")
    typer.echo("| top-k | emitted before | stepwise, ms | fused, ms | ratio |\n|---|---|---|---|---|")
    for k in top_ks:
        sampling = SamplingConfig(top_k=k)
        stepwise = StaticDrafter(draft, Tree.chain(draft_length), sampling)
        fused = FusedDrafter(draft, draft_length, sampling)
        for emitted in sorted({1, 3, draft_length + 1}):
            batch = middle_of_picture(info, images, emitted)
            runs = {"stepwise": proposal(stepwise, batch), "fused": proposal(fused, batch)}
            before, after = (np.median(seconds) for seconds in interleave(runs, turns).values())
            typer.echo(f"| {k} | {emitted} | {before * 1e3:.2f} | {after * 1e3:.2f} | {after / before:.3f} |")


def middle_of_picture(info: ModelInfo, images: int, emitted: int) -> Batch:
    """Pictures half done, whose last round emitted so many tokens."""
    assert isinstance(info.condition, ClassCondition)
    rng = np.random.default_rng(0)
    sequences = []
    for i, prompt in enumerate(class_prompts(info.condition, [0] * images)):
        sequence = ImageSequence(prompt, info.n_tokens, image_generator(0, i), 0)
        sequence.emit([0] * (info.n_tokens // 2 - emitted))
        sequence.emit(rng.integers(0, info.vocab_size, emitted).tolist())
        sequences.append(sequence)
    batch = Batch(sequences, BRANCHES)
    size = (images * BRANCHES, emitted, info.hidden_size)
    batch.features = rng.standard_normal(size, dtype=np.float32)
    return batch


def proposal(drafter: Drafter, batch: Batch) -> Callable[[], object]:
    return partial(drafter.propose, batch, [drafter.depth] * len(batch))
