"""How much memory a process takes over the weights and caches it needs, and whether it grows."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import tracemalloc
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Annotated, Any

import typer

from ...engines.bundle import Bundle
from ...runtime import Pipeline, Progress, SpeculativeConfig
from ...runtime.errors import Cancelled, InputError
from ..profiling.memory import cache_bytes, resident, weight_bytes
from .random_bundles import random_bundle
from .result import DEFAULT_BUNDLES, Bundles, Out, Table, publish

DRAFT_LENGTH = 5
WARM_UP_ROUNDS = 1000
SPECULATIVE = SpeculativeConfig(rule="lossless", draft_length=DRAFT_LENGTH)


def memory(
    size: Annotated[list[str] | None, typer.Option(help="Released size; may be repeated.")] = None,
    demo: Annotated[Path | None, typer.Option(help="A bundle on which growth is measured.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds over which it may not grow.")] = 1000,
    bundles: Bundles = DEFAULT_BUNDLES,
    out: Out = None,
) -> None:
    """Peak resident memory of a process that loads a bundle and draws one picture, without decoding its pixels."""
    rows, figures = [], dict[str, Any]()
    for name in size or ["c2i-B", "c2i-L"]:
        bundle = random_bundle(name, bundles)
        found = in_fresh_process("run", bundle.path)
        needed = needed_bytes(bundle)
        ratio, excess = found["peak"] / needed, (found["peak"] - found["imported"]) / needed
        megabytes = (needed, found["imported"], found["loaded"], found["peak"])
        rows.append((name, *(f"{value / 1e6:.0f}" for value in megabytes), f"{ratio:.2f}x", f"{excess:.2f}x"))
        figures[name] = {**found, "needed": needed, "ratio": ratio, "without_imports": excess}
    if demo is not None:
        figures["growth"] = {
            **in_fresh_process("growth", demo, rounds, "heap"),
            **in_fresh_process("growth", demo, rounds, "resident"),
        }
    columns = ("size", "weights and caches, MB", "after imports", "after load", "peak", "peak / needed", "less imports")
    setting = f"fp32, random weights, lossless, L = {DRAFT_LENGTH}, one picture with guidance, pixels not decoded"
    publish("Memory", setting, Table(columns, rows), figures, out)
    if demo is not None:
        growth = figures["growth"]
        typer.echo(
            f"{rounds} rounds on {demo.name}: Python's heap {growth['heap'] / 1e3:+.1f} kB, "
            f"resident {growth['resident'] / 1e3:+.1f} kB"
        )


def needed_bytes(bundle: Bundle) -> int:
    """Weights of the parts that are loaded, and caches of one guided picture."""
    m = bundle.manifest
    length = m.prefix_length + m.grid[0] * m.grid[1] + DRAFT_LENGTH
    specs = [spec for spec in (m.target, m.draft) if spec is not None]
    weights = sum(size for name, size in weight_bytes(m).items() if name != "image encoder")
    return weights + sum(cache_bytes(spec, 2, length) for spec in specs)


def in_fresh_process(what: str, bundle: Path, *arguments: object) -> dict[str, int]:
    """The figures that `measure_run` or `measure_growth` prints in a process of its own."""
    script = f"from {__name__} import measure_{what}; import sys; measure_{what}(*sys.argv[1:])"
    command = [sys.executable, "-c", script, str(bundle), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise InputError(f"{bundle}: a process that runs it failed: {done.stderr.strip().splitlines()[-1]}")
    return dict(json.loads(done.stdout))


def measure_run(path: str) -> None:
    """Print bytes resident after imports (onnxruntime's too), after loading, and at most until the tokens are drawn."""
    import onnxruntime  # noqa: F401

    imported, peak = resident()[0], 0

    def watch(snapshot: Progress) -> None:
        nonlocal peak
        peak = resident()[1]

    with Pipeline.load(path, "ort-cpu", verify=False) as pipeline:
        loaded = resident()[0]
        pipeline.generate([0], cfg_scale=4.0, speculative=SPECULATIVE, progress=watch)
    print(json.dumps({"imported": imported, "loaded": loaded, "peak": peak}))


def measure_growth(path: str, rounds: str, counted: str) -> None:
    """Print by how many bytes a process grows over that many rounds, after a warm-up in which every shape was seen.

    counted: "heap", what Python holds, or "resident", what the process does; watching the first adds to the second.
    """
    seen, sizes, enough = 0, list[int](), Event()
    if counted == "heap":
        tracemalloc.start()

    def watch(snapshot: Progress) -> None:
        nonlocal seen
        seen += 1
        if seen in (WARM_UP_ROUNDS, WARM_UP_ROUNDS + int(rounds)):
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0] if counted == "heap" else resident()[0])
            if len(sizes) == 2:
                enough.set()

    with suppress(Cancelled), Pipeline.load(path, "ort-cpu", verify=False) as pipeline:
        while True:
            # Few calls: the tokens and statistics of a call's finished pictures belong to its result.
            pipeline.generate(
                [0], images_per_prompt=64, speculative=SPECULATIVE, progress=watch, cancel=enough, batch_size=1
            )
    print(json.dumps({counted: sizes[1] - sizes[0]}))
