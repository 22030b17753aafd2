"""What a precision costs: a graph's next-token distributions against those of its checkpoint's own weights."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..engines.manifest import PrecisionCost, TransformerSpec
from ..engines.ort import OrtTransformer
from ..runtime.condition import NO_TOKEN, Condition
from ..runtime.stepping import chain_step
from .exact import exact_logits
from .graph.builder import fp32
from .weights import TargetWeights

ROWS, TOKENS = 2, 24

Floats = NDArray[np.float32]


def precision_cost(
    path: Path, spec: TransformerSpec, weights: TargetWeights, condition: Condition, embeddings: Floats | None
) -> PrecisionCost:
    """Sample tokens from the graph on the CPU, at temperature 1 and without guidance; then one pass over them in
    float32, which reads the checkpoint once more and writes nothing.

    Args: embeddings [slots, H]: the condition's, for models that take captions.
    """
    prompt = _prompt(condition)
    features = None if embeddings is None else np.repeat(embeddings[None], ROWS, axis=0)
    tokens, found = _sampled(path, spec, prompt, features, min(TOKENS, math.prod(weights.shape.grid)))
    exact = exact_logits(weights, _embedded(weights, condition, prompt, features, tokens), found.shape[1])
    p, q = _log_softmax(exact), _log_softmax(found)
    kl = (np.exp(p) * (p - q)).sum(axis=-1).mean()
    tv = 0.5 * np.abs(np.exp(p) - np.exp(q)).sum(axis=-1).mean()
    return PrecisionCost(kl=float(kl), tv=float(tv), positions=found.shape[0] * found.shape[1])


def _prompt(condition: Condition) -> NDArray[np.int64]:
    """[ROWS, P] ids of the condition."""
    if condition.kind == "class":
        classes = np.linspace(0, len(condition.names) - 1, ROWS).astype(np.int64)
        return condition.id_offset + classes[:, None]
    return np.full((ROWS, condition.slots), NO_TOKEN, dtype=np.int64)


def _sampled(
    path: Path, spec: TransformerSpec, prompt: NDArray[np.int64], features: Floats | None, length: int
) -> tuple[NDArray[np.int64], Floats]:
    """Tokens [ROWS, length - 1], and the logits [ROWS, length, V] that they, and one more, are drawn from."""
    rng = np.random.default_rng(0)
    engine = OrtTransformer(path, spec, low_memory=spec.quantisation == "none")
    engine.allocate(ROWS, prompt.shape[1] + length)
    ids, start, tokens, logits = prompt, 0, [], []
    for _ in range(length):
        step = chain_step(engine, ids, np.full(ROWS, start), features)
        logits.append(step.logits[:, -1].copy())
        start, features = start + ids.shape[1], None
        ids = np.array([[rng.choice(len(row), p=row)] for row in np.exp(_log_softmax(logits[-1]))])
        tokens.append(ids)
    engine.close()
    return np.concatenate(tokens[:-1], axis=1), np.stack(logits, axis=1)


def _embedded(
    weights: TargetWeights,
    condition: Condition,
    prompt: NDArray[np.int64],
    features: Floats | None,
    tokens: NDArray[np.int64],
) -> Floats:
    """[ROWS, P + T - 1, H]"""
    if condition.kind == "class":
        features = fp32(weights.class_embedding()[prompt - condition.id_offset])
    assert features is not None
    return np.concatenate([features, fp32(weights.token_embedding()[tokens])], axis=1)


def _log_softmax(logits: Floats) -> NDArray[np.float64]:
    x = logits.astype(np.float64)
    x -= x.max(axis=-1, keepdims=True)
    shifted: NDArray[np.float64] = x - np.log(np.exp(x).sum(axis=-1, keepdims=True))
    return shifted
