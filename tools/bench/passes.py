"""How long a target pass of T tokens takes on the CPU."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from ...engines.bundle import Bundle
from ...engines.ort import OrtTransformer
from ...engines.ort_opener import OrtOpener
from ...runtime.stepping import chain_step

ROWS = 2  # one picture: its conditional and its unconditional row


def pass_seconds(bundle: Bundle, tokens: list[int], repeats: int, threads: int | None, low_memory: bool) -> list[float]:
    """Median seconds of a target pass of each length, halfway through a picture; lengths take turns."""
    spec = bundle.manifest.target
    if low_memory:
        engine = OrtTransformer(bundle.file(spec.files[0]), spec, threads, low_memory)
    else:
        engine = OrtOpener(bundle, threads).transformer("target", spec)
    engine.allocate(ROWS, spec.positions)
    start = np.full(ROWS, spec.positions // 2)
    features = np.zeros((ROWS, max(tokens), spec.hidden_size), dtype=np.float32)
    takes_features = any(tensor.name == "features" for tensor in spec.inputs)
    seconds: dict[int, list[float]] = {count: [] for count in tokens}
    for repeat in range(repeats + 1):
        for count in tokens:
            ids = np.zeros((ROWS, count), dtype=np.int64)
            begin = time.perf_counter()
            chain_step(engine, ids, start, features[:, :count] if takes_features else None)
            if repeat:  # the first pass allocates and binds
                seconds[count].append(time.perf_counter() - begin)
    engine.close()
    return [float(np.median(seconds[count])) for count in tokens]


def passes(
    bundle: Annotated[Path, typer.Argument(help="A bundle.")],
    tokens: Annotated[list[int] | None, typer.Option(min=1, help="Tokens of a pass; default: 1 and 6.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Passes of each length.")] = 20,
    threads: Annotated[int | None, typer.Option(min=1)] = None,
    low_memory: Annotated[
        bool, typer.Option("--low-memory", help="Run the graph as it is: slow, without copies of its weights.")
    ] = False,
) -> None:
    """Time target passes of one picture (two rows) on the CPU; prints seconds as JSON."""
    counts = tokens or [1, 6]
    medians = pass_seconds(Bundle.open(bundle, verify=False), counts, repeats, threads, low_memory)
    typer.echo(json.dumps(dict(zip(map(str, counts), medians, strict=True))))
