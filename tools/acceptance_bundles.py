"""What the acceptance script runs on when it is given nothing: the demo pair, and random weights of released sizes."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..engines.bundle import read_manifest
from ..engines.cuda import probe_gpu
from ..engines.manifest import FlavourName
from ..engines.trt.flavour import FLAVOURS, load_module
from ..engines.trt.plans import PlanRequest, build_plans, needed_lowering
from ..export.build import BuildRequest, build_bundle
from ..export.checkpoint import Checkpoint
from ..export.locate import open_checkpoint
from ..export.random_weights import random_checkpoints
from ..runtime.errors import BackendError

DEMO = Path(__file__).parent / "demo"
DEMO_NAME = "demo"
NAMES = (DEMO_NAME, "c2i-B", "c2i-L", "c2i-XL")


def sources_of(name: str) -> dict[str, Any]:
    """Checkpoints by field of `BuildRequest`: the demo pair's, or random ones of a released size.

    Raises: InputError for another name, or where the demo's weights are not beside the code.
    """
    if name != DEMO_NAME:
        return random_checkpoints(name, seed=0)
    parts = {"target": "target", "draft": "draft", "image_decoder": "image_tokenizer"}
    return {field: open_checkpoint(DEMO / folder) for field, folder in parts.items()}


def parameters(sources: Mapping[str, Checkpoint]) -> int:
    """How many numbers the checkpoints hold."""
    return sum(math.prod(shape) for checkpoint in sources.values() for shape in checkpoint.shapes.values())


def usable_flavour(backend: str) -> FlavourName | None:
    """The TensorRT that builds plans for this machine's GPU; None when the backend needs none, or "auto" finds none.

    Raises: BackendError when the backend is a TensorRT that can't be used here.
    """
    for name, flavour in FLAVOURS.items():
        if backend not in ("auto", name):
            continue
        try:
            probe_gpu()
            load_module(flavour)
        except BackendError:
            if backend == name:
                raise
            continue
        return name
    return None


def make_bundle(folder: Path, name: str, flavour: FlavourName | None, max_batch: int) -> tuple[Path, dict[str, Any]]:
    """A bundle of `NAMES` and, with a flavour, its plans in fp16. Returns: its path, and what the build took."""
    start = time.perf_counter()
    path = folder / name
    options: dict[str, Any] = {"neighbors": 0}
    if flavour is not None:
        options |= {"precision": "fp16", "lowering": needed_lowering(flavour), "tensorrt": True}
    build_bundle(BuildRequest(**sources_of(name), **options), path)
    if flavour is not None:
        build_plans(path, PlanRequest(flavour, max_batch=max_batch))
    plans = [
        {"part": part, "seconds": plan.seconds, "bytes": plan.file.size, "workspace": plan.workspace}
        for engines in read_manifest(path).engine_sets
        for part, plan in engines.plans.items()
    ]
    return path, {"seconds": time.perf_counter() - start, "plans": plans}
