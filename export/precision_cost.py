"""What a precision costs: the next-token distributions of two builds of one target, along sequences of the first."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..engines.manifest import PrecisionCost, TransformerSpec
from ..engines.ort import OrtTransformer
from ..runtime.condition import NO_TOKEN, Condition
from ..runtime.stepping import chain_step
from ..runtime.warping import softmax

ROWS, TOKENS = 2, 24


def precision_cost(
    exact: tuple[Path, TransformerSpec],
    reduced: tuple[Path, TransformerSpec],
    condition: Condition,
    embeddings: NDArray[np.float32] | None,
) -> PrecisionCost:
    """Run both graphs on the CPU, on tokens sampled from the exact one at temperature 1, without guidance.

    Args: graphs with their specs; embeddings [slots, H]: the condition's, for models that take captions.
    """
    engines = [OrtTransformer(path, spec) for path, spec in (exact, reduced)]
    rng = np.random.default_rng(0)
    ids, features = _condition_rows(condition, embeddings)
    prefix, kl, tv = ids.shape[1], [], []
    tokens = min(TOKENS, exact[1].positions - prefix)
    for engine in engines:
        engine.allocate(ROWS, prefix + tokens)
    for k in range(tokens):
        start = np.full(ROWS, 0 if k == 0 else prefix + k - 1)
        steps = [chain_step(engine, ids, start, features) for engine in engines]
        p, q = (softmax(step.logits[:, -1].astype(np.float64)) for step in steps)
        kl.append((p * np.log(np.maximum(p, 1e-300) / np.maximum(q, 1e-300))).sum(axis=1).mean())
        tv.append(0.5 * np.abs(p - q).sum(axis=1).mean())
        ids, features = np.array([[rng.choice(p.shape[1], p=row)] for row in p], dtype=np.int64), None
    for engine in engines:
        engine.close()
    return PrecisionCost(kl=float(np.mean(kl)), tv=float(np.mean(tv)), positions=ROWS * tokens)


def _condition_rows(
    condition: Condition, embeddings: NDArray[np.float32] | None
) -> tuple[NDArray[np.int64], NDArray[np.float32] | None]:
    if condition.kind == "class":
        classes = np.linspace(0, len(condition.names) - 1, ROWS).astype(np.int64)
        return condition.id_offset + classes[:, None], None
    ids = np.full((ROWS, condition.slots), NO_TOKEN, dtype=np.int64)
    return ids, np.repeat(embeddings[None], ROWS, axis=0) if embeddings is not None else None
