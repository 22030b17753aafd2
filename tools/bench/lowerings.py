"""A target step with onnxruntime's own attention (`gqa`) against the graph every backend reads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from ...engines.bundle import Bundle
from ...engines.manifest import Manifest
from ...engines.ort import OrtTransformer
from ...runtime.errors import InputError
from ...runtime.stepping import chain_step
from .interleaved import interleave
from .machine import machine

ROWS = 2  # one picture and its unconditional branch


def lowerings(
    bundle: Annotated[Path, typer.Argument(help="A bundle.")],
    tokens: Annotated[list[int] | None, typer.Option(help="Tokens of a step; may be repeated.")] = None,
    cache: Annotated[
        list[int] | None, typer.Option(help="Cache positions; may be repeated. Default: the job's.")
    ] = None,
    turns: Annotated[int, typer.Option(min=2, help="Times that each contender gets its turn.")] = 25,
    threads: Annotated[int, typer.Option(min=1)] = 2,
) -> None:
    """Time steps in the middle of a picture, CFG batch 2, in both lowerings, interleaved."""
    opened = Bundle.open(bundle)
    target = opened.manifest.target
    if target.gqa is None:
        raise InputError(f"{bundle}: its target has no gqa graph. Head sizes must be multiples of 16 for that.")
    engines = {
        target.lowering: OrtTransformer(opened.file(target.files[0]), target, threads),
        "gqa": OrtTransformer(opened.file(target.gqa), target, threads),
    }
    typer.echo(f"{opened.manifest.name}, {threads} threads, {machine()}; medians of {3 * turns} interleaved calls\n")
    typer.echo("| cache positions | tokens | " + " | ".join(f"{name}, ms" for name in engines) + " | ratio |")
    typer.echo("|---" * (len(engines) + 3) + "|")
    for size in tokens or [1, 6]:
        for length in cache or [job_cache(opened.manifest, size)]:
            for engine in engines.values():
                engine.allocate(ROWS, length)
            runs = {name: step_of(engine, opened.manifest, size) for name, engine in engines.items()}
            before, after = (np.median(seconds) for seconds in interleave(runs, turns).values())
            typer.echo(f"| {length} | {size} | {before * 1e3:.2f} | {after * 1e3:.2f} | {after / before:.3f} |")


def job_cache(m: Manifest, tokens: int) -> int:
    """Positions a picture needs when passes have so many tokens."""
    return m.prefix_length + m.grid[0] * m.grid[1] + tokens - 1


def step_of(engine: OrtTransformer, m: Manifest, tokens: int) -> Callable[[], object]:
    """A step half-way through a picture."""
    middle = m.prefix_length + m.grid[0] * m.grid[1] // 2
    ids, lengths = np.zeros((ROWS, tokens), dtype=np.int64), np.full(ROWS, middle, dtype=np.int64)
    return partial(chain_step, engine, ids, lengths)
