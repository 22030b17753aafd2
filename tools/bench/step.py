"""One step of plain autoregression: onnxruntime against eager torch, and against its matrix products alone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from ...engines.bundle import Bundle
from ...engines.manifest import Manifest
from ...engines.ort_opener import OrtOpener
from ...export.checkpoint import Checkpoint
from ...runtime import SamplingConfig
from ...runtime.condition import ClassCondition, class_prompts
from ...runtime.drafting import NoDraft
from ...runtime.protocols import CachedTransformer
from ...runtime.round import SpeculativeDecoder
from ...runtime.sampling import image_generator
from ...runtime.sequence import Batch, ImageSequence
from ...runtime.stepping import chain_step
from ..profiling.gemm_floor import GemmFloor
from .interleaved import interleave
from .random_bundles import checkpoints, random_bundle
from .result import DEFAULT_BUNDLES, Bundles, Out, Table, Threads, publish
from .statistics import ratio_of_medians

ROWS = 2  # one picture and its unconditional branch
SAMPLING = SamplingConfig(cfg_scale=4.0, top_k=2000)  # the authors' default
OURS, EAGER, PRODUCTS = "pass", "eager torch pass", "matrix products alone"
OUR_TOKEN, EAGER_TOKEN = "pass and sampling", "eager torch pass and sampling"


def step(
    size: Annotated[list[str] | None, typer.Option(help="Released size; may be repeated.")] = None,
    turns: Annotated[int, typer.Option(min=2, help="Times that each contender gets its turn.")] = 25,
    threads: Threads = 2,
    bundles: Bundles = DEFAULT_BUNDLES,
    out: Out = None,
) -> None:
    """Time one token in the middle of a picture, caches sized to the picture, CFG batch 2, fp32."""
    rows: list[tuple[str, ...]] = []
    figures: dict[str, Any] = {}
    for name in size or ["c2i-B", "c2i-L"]:
        seconds = time_steps(name, turns, threads, bundles)
        figures[name] = _figures(seconds)
        rows += _rows(name, seconds)
    setting = f"{threads} threads, CFG batch 2, fp32, random weights, medians of {3 * turns} interleaved calls"
    publish(
        "Autoregressive step",
        setting,
        Table(("size", "what", "ms", "over ours", "over the products alone"), rows),
        figures,
        out,
    )


def time_steps(size: str, turns: int, threads: int, bundles: Path) -> dict[str, NDArray[np.float64]]:
    """Seconds of each contender's calls."""
    bundle = random_bundle(size, bundles)
    m = bundle.manifest
    with ExitStack() as stack:
        engine = stack.enter_context(closing(OrtOpener(bundle, threads).transformer("target", m.target)))
        engine.allocate(ROWS, m.prefix_length + m.grid[0] * m.grid[1])
        floor = stack.enter_context(GemmFloor(bundle, threads))
        eager_pass, eager_token = eager_steps(checkpoints(size)["target"], m, threads)
        runs: dict[str, Callable[[], object]] = {
            OURS: pass_of_one(engine, middle(m)),
            EAGER: eager_pass,
            PRODUCTS: lambda: floor.run(ROWS, 1),
            OUR_TOKEN: plain_rounds(engine, bundle),
            EAGER_TOKEN: eager_token,
        }
        return interleave(runs, turns)


def middle(m: Manifest) -> int:
    """Positions cached half-way through a picture."""
    return m.prefix_length + m.grid[0] * m.grid[1] // 2


def pass_of_one(engine: CachedTransformer, cached: int) -> Callable[[], object]:
    """A pass of one token behind `cached` positions."""
    ids, lengths = np.zeros((ROWS, 1), dtype=np.int64), np.full(ROWS, cached, dtype=np.int64)
    return lambda: chain_step(engine, ids, lengths)


def plain_rounds(engine: CachedTransformer, bundle: Bundle) -> Callable[[], object]:
    """A round of rule `ar` in the second half of a picture: pass, guidance, top-k, sampling."""
    info = bundle.info
    assert isinstance(info.condition, ClassCondition)
    decoder = SpeculativeDecoder(engine, NoDraft(), SAMPLING, [])
    prompt = class_prompts(info.condition, [0])[0]
    batch = Batch([], ROWS)

    def run() -> None:
        if not batch.sequences or not batch.sequences[0].remaining:
            sequence = ImageSequence(prompt, info.n_tokens, image_generator(0, 0), 0)
            sequence.emit([0] * (info.n_tokens // 2))
            batch.sequences[:] = [sequence]
        decoder.round(batch)

    return run


def eager_steps(target: Checkpoint, m: Manifest, threads: int) -> tuple[Callable[[], object], Callable[[], object]]:
    """The baseline's pass, and its pass with sampling."""
    import torch

    from .eager import EagerTarget, sample

    torch.set_num_threads(threads)
    heads = m.target.hidden_size // m.target.head_dim
    model = EagerTarget(target.tensor, m.target.layers, heads, m.grid[0], ROWS)
    ids, positions = torch.zeros((ROWS, 1), dtype=torch.int64), torch.tensor([middle(m)])

    def one_pass() -> Any:
        return model.step(ids, positions)

    return one_pass, lambda: sample(one_pass()[:, -1], SAMPLING.cfg_scale, SAMPLING.temperature, SAMPLING.top_k)


def _rows(size: str, seconds: dict[str, NDArray[np.float64]]) -> list[tuple[str, ...]]:
    return [
        (
            size,
            name,
            f"{1000 * np.median(values):.2f}",
            *(f"{ratio_of_medians(values, seconds[baseline])}x" for baseline in (_ours(name), PRODUCTS)),
        )
        for name, values in seconds.items()
    ]


def _figures(seconds: dict[str, NDArray[np.float64]]) -> dict[str, Any]:
    return {
        name: {
            "milliseconds": round(1000 * float(np.median(values)), 4),
            "over_ours": asdict(ratio_of_medians(values, seconds[_ours(name)])),
            "over_products": asdict(ratio_of_medians(values, seconds[PRODUCTS])),
        }
        for name, values in seconds.items()
    }


def _ours(name: str) -> str:
    """Passes are compared with a pass, tokens with a token."""
    return OUR_TOKEN if name.endswith("sampling") else OURS
