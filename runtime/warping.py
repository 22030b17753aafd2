"""Logits to a next-token distribution: CFG, then temperature, top-k, top-p (LlamaGen's order), softmax."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .config import SamplingConfig
from .errors import BackendError
from .law import Law
from .spans import spanned

FloatArray = NDArray[np.floating[Any]]
# One entry in STRIDE is looked at to guess where the top k begin; below it guessing saves nothing.
STRIDE = 16

# What LlamaGen divides by at least.
LEAST_TEMPERATURE = 1e-5
NOT_FINITE = (
    "the engine returned logits that are not finite. Expected finite numbers; "
    "check the checkpoint for NaNs, or rebuild the bundle in fp32."
)


class Warper:
    """Turns the logits of one position into `p` or `q` of the algorithm, on buffers that are made once."""

    def __init__(self, sampling: SamplingConfig) -> None:
        self._sampling = sampling
        self._combined: FloatArray = np.empty(0, dtype=np.float32)

    def __call__(self, logits: FloatArray, token_index: int) -> Law:
        """The law of one position.

        Args: logits: [branches, V], the conditional branch first. token_index: which image token (0 = the first) they
        predict.
        """
        if not self._sampling.guided or token_index > self._sampling.last_guided:
            return survivors(logits[0], self._sampling)
        if self._combined.shape != logits[0].shape or self._combined.dtype != logits.dtype:
            self._combined = np.empty_like(logits[0])
        combined = combine_cfg(logits[0], logits[1], self._sampling.cfg_scale, out=self._combined)
        return survivors(combined, self._sampling)


@spanned("cfg")
def combine_cfg(cond: FloatArray, uncond: FloatArray, scale: float, out: FloatArray | None = None) -> FloatArray:
    """Classifier-free guidance on raw logits: `u + scale * (c - u)`.

    Args: cond, uncond [..., V]; out: where to write. Returns [..., V] in the dtype of the inputs.
    """
    combined: FloatArray = np.subtract(cond, uncond, out=out)
    combined *= cond.dtype.type(scale)
    combined += uncond
    return combined


@spanned("warp")
def survivors(logits: FloatArray, sampling: SamplingConfig) -> Law:
    """The distribution a sampler draws from.

    Args:
        logits: [V], after CFG.
        sampling: temperature (0 = greedy: all mass on the argmax), top_k (0 = off; ties with the k-th largest
            survive), top_p (1 = off; an entry goes when the mass before it already exceeds top_p), top_p_first.
    Raises: BackendError when there is no finite maximum (an engine returned NaN or infinity).
    """
    if not np.isfinite(logits.max()):
        raise BackendError(NOT_FINITE)
    if sampling.greedy:
        return Law.one_hot(int(logits.argmax()), len(logits))
    if sampling.top_p_first:
        tokens = _top_p(logits, np.arange(len(logits)), sampling)
        tokens = tokens[_top_k(logits[tokens], sampling.top_k)]
    else:
        tokens = _top_p(logits, _top_k(logits, sampling.top_k), sampling)
    # Only what survives is worth double precision.
    return Law(tokens, softmax(_tempered(logits, tokens, sampling)), len(logits))


def warp(logits: FloatArray, sampling: SamplingConfig) -> NDArray[np.float64]:
    """`survivors` of every row, dense: logits [..., V] -> [..., V] float64 with exactly 0 for what was filtered out."""
    rows = [survivors(row, sampling).dense() for row in logits.reshape(-1, logits.shape[-1])]
    return np.array(rows).reshape(logits.shape)


def softmax(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Softmax over the last axis; -inf becomes exactly 0. Shape is kept."""
    weights: NDArray[np.float64] = np.exp(x - x.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return weights


def _tempered(logits: FloatArray, tokens: NDArray[np.int64], sampling: SamplingConfig) -> NDArray[np.float64]:
    kept = logits if len(tokens) == len(logits) else logits[tokens]
    return kept.astype(np.float64) / max(sampling.temperature, LEAST_TEMPERATURE)


def _top_k(x: FloatArray, k: int) -> NDArray[np.int64]:
    """Indices of the k largest of [V], ascending, ties with the k-th included; k = 0: of all."""
    if not 0 < k < len(x):
        return np.arange(len(x))
    candidates = np.flatnonzero(x >= _likely_below_the_kth(x, k))
    if len(candidates) < k:
        candidates = np.arange(len(x))
    values = x[candidates]
    kept: NDArray[np.int64] = candidates[values >= np.partition(values, -k)[-k]]
    return kept


def _likely_below_the_kth(x: FloatArray, k: int) -> Any:
    """A value that most likely at least k entries reach and not many more: an order statistic of a sample, four
    standard deviations of its rank on the safe side."""
    sample = x[::STRIDE]
    rank = int(k / STRIDE + 4 * np.sqrt(k / STRIDE)) + 1
    return np.partition(sample, -rank)[-rank] if rank < len(sample) else -np.inf


def _top_p(logits: FloatArray, tokens: NDArray[np.int64], sampling: SamplingConfig) -> NDArray[np.int64]:
    """Those of `tokens` (ascending) that top-p keeps."""
    if sampling.top_p == 1:
        return tokens
    x = _tempered(logits, tokens, sampling)
    order = np.argsort(-x, kind="stable")
    sorted_p = softmax(x[order])
    mass_before = np.cumsum(sorted_p) - sorted_p
    # The first entry has no mass before it, but cumsum - p can leave a rounding crumb: it must always stay.
    mass_before[0] = 0.0
    kept: NDArray[np.int64] = np.sort(tokens[order[mass_before <= sampling.top_p]])
    return kept
