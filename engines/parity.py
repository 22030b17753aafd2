"""Do two sets of engines compute the same? The same steps through both, compared by Polygraphy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..runtime.errors import BackendError, InputError
from ..runtime.protocols import CachedTransformer, Engines
from ..runtime.stepping import chain_step
from .manifest import PrecisionName

# Largest difference allowed, as a share of the reference output's standard deviation.
TOLERANCES: dict[PrecisionName, float] = {"fp32": 1e-3, "fp16": 3e-2, "bf16": 2e-1, "int8": 2e-1, "int4": 2e-1}
ROWS = 2

Outputs = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Parity:
    """One output of one engine. difference, scale: largest absolute difference, standard deviation of the reference."""

    part: str
    output: str
    difference: float
    scale: float
    passed: bool


def compare_engines(subject: Engines, reference: Engines, tolerance: float, seed: int = 0) -> list[Parity]:
    """Run both through a prefill, single tokens, a verification and ragged rows, and decode one picture.

    Raises: InputError when they are not engines of one model; BackendError when Polygraphy is missing.
    """
    a, b = subject.info, reference.info
    if (a.vocab_size, a.hidden_size, a.grid) != (b.vocab_size, b.hidden_size, b.grid):
        raise InputError(f"{a.name} and {b.name} are not the same model: they differ in vocabulary, width or grid.")
    if (subject.draft is None) != (reference.draft is None):
        raise InputError("one of the two has a draft, the other has none. Build both with --draft, or both without.")
    codes = np.random.default_rng(seed).integers(0, a.vocab_size, (1, a.n_tokens))
    results = _compare("target", lambda engines: _steps(engines.target, engines, seed), subject, reference, tolerance)
    if subject.draft is not None:
        results += _compare("draft", lambda e: _steps(e.draft, e, seed, features=True), subject, reference, tolerance)
    results += _compare(
        "image decoder", lambda e: {"pixels": e.image_decoder.decode(codes)}, subject, reference, tolerance
    )
    return results


def _steps(engine: CachedTransformer | None, engines: Engines, seed: int, features: bool = False) -> Outputs:
    """Logits and hidden states of steps of 1 and L + 1 tokens, rows at different lengths, one rolled back."""
    assert engine is not None
    info, rng = engines.info, np.random.default_rng(seed)
    longest = info.max_draft_length + 1
    positions = info.prefix_length + info.n_tokens + info.max_draft_length
    engine.allocate(ROWS, positions)
    logits, hidden = [], []
    for length, starts in ((1, (0, 0)), (longest, (1, 1)), (1, (longest, 3)), (longest, (2, 4))):
        size = min(length, positions - max(starts))
        ids = rng.integers(0, info.vocab_size, (ROWS, size))
        given = rng.standard_normal((ROWS, size, info.hidden_size)).astype(np.float32) if features else None
        out = chain_step(engine, ids, np.array(starts), given)
        logits.append(out.logits.copy())
        hidden.append(out.hidden.copy())
    return {"logits": np.concatenate(logits, axis=1), "hidden": np.concatenate(hidden, axis=1)}


def _compare(
    part: str, run: Callable[[Engines], Outputs], subject: Engines, reference: Engines, tolerance: float
) -> list[Parity]:
    try:
        from polygraphy.comparator import IterationResult, SimpleCompareFunc
        from polygraphy.logger import G_LOGGER
    except ImportError:
        raise BackendError("polygraphy is not installed. Install it: pip install polygraphy.") from None
    found, expected = run(subject), run(reference)
    results = []
    for name, values in expected.items():
        scale = float(values.std())
        judge = SimpleCompareFunc(atol=tolerance * scale, rtol=0, check_error_stat="max")
        # Polygraphy prints histograms of every comparison; the table says enough.
        with G_LOGGER.verbosity(G_LOGGER.CRITICAL):
            verdict = judge(IterationResult({name: found[name]}), IterationResult({name: values}))[name]
        results.append(Parity(part, name, float(verdict.max_absdiff), scale, bool(verdict)))
    return results
