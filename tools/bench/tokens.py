"""What a token costs in pictures of 256, 576 and 1024 tokens: the part of a pass that grows with the cache."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import asdict
from typing import Annotated

import numpy as np
import typer

from ...engines.ort_opener import OrtOpener
from .interleaved import interleave
from .random_bundles import random_bundle
from .result import DEFAULT_BUNDLES, Bundles, Out, Table, Threads, publish
from .statistics import ratio_of_medians
from .step import ROWS, pass_of_one

GRIDS = (16, 24, 32)


def tokens(
    size: Annotated[str, typer.Option(help="Released size whose layers are used.")] = "c2i-B",
    turns: Annotated[int, typer.Option(min=2)] = 25,
    threads: Threads = 2,
    bundles: Bundles = DEFAULT_BUNDLES,
    out: Out = None,
) -> None:
    """Time a pass of one token in the middle of pictures of three sizes, caches sized to each."""
    bundle = random_bundle(size, bundles, max(GRIDS))
    m = bundle.manifest
    with ExitStack() as stack:
        runs = {}
        for grid in GRIDS:
            engine = stack.enter_context(closing(OrtOpener(bundle, threads).transformer("target", m.target)))
            engine.allocate(ROWS, m.prefix_length + grid**2)
            runs[str(grid**2)] = pass_of_one(engine, m.prefix_length + grid**2 // 2)
        seconds = interleave(runs, turns)
    first = next(iter(seconds))
    rows, figures = [], {}
    for name, values in seconds.items():
        median, ratio = float(np.median(values)), ratio_of_medians(values, seconds[first])
        picture = median * int(name)
        rows.append((name, f"{1000 * median:.2f}", f"{ratio}x", f"{picture:.1f}"))
        figures[name] = {"milliseconds": 1000 * median, "ratio": asdict(ratio), "picture_seconds": picture}
    setting = f"{size}, {threads} threads, CFG batch 2, fp32, random weights, medians of {3 * turns} interleaved calls"
    table = Table(("tokens of a picture", "ms per pass", f"over {first}", "s per picture, passes alone"), rows)
    publish("Pass of one token by picture size", setting, table, figures, out)
