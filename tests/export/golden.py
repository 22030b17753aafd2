"""The golden reference data, and steps through a bundle's engines as its sampler would take them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from coolsd_trt.runtime import Pipeline
from coolsd_trt.runtime.protocols import CachedTransformer
from coolsd_trt.runtime.stepping import chain_step

ROOT = Path(__file__).parent.parent.parent
# The whole set lies beside the project; a small part of it is committed.
PLACES = (ROOT.parent / "shared" / "golden", ROOT / "tests" / "golden")


def golden_folder(name: str) -> Path:
    """Where that set is. Skips the test, saying where it was looked for, when it is nowhere."""
    for place in PLACES:
        if (place / name).is_dir():
            return place / name
    pytest.skip(f"golden set {name!r} is in none of {', '.join(map(str, PLACES))}")


class RecordedUniforms:
    """A recorded stream of uniforms in place of a generator."""

    def __init__(self, stream: np.ndarray) -> None:
        self._stream = iter(stream.tolist())

    def random(self) -> float:
        return next(self._stream)


def replay(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, streams: np.ndarray) -> None:
    """Let image i of the next call draw from column i of `streams` [n, N]."""
    monkeypatch.setattr(
        "coolsd_trt.runtime.pipeline.image_generator", lambda seed, index: RecordedUniforms(streams[:, index])
    )


def feed(engine: CachedTransformer, ids: np.ndarray, start: np.ndarray, **options: np.ndarray) -> np.ndarray:
    """Feed [rows, S] tokens one at a time into caches of `start` positions; logits [rows, S, V]."""
    steps = [chain_step(engine, ids[:, k : k + 1], start + k, **options).logits.copy() for k in range(ids.shape[1])]
    return np.concatenate(steps, axis=1)
