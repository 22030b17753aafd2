"""Logits to a next-token distribution: CFG, then temperature, top-k, top-p (LlamaGen's order), softmax."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .config import SamplingConfig
from .errors import BackendError

FloatArray = NDArray[np.floating[Any]]

# What LlamaGen divides by at least.
LEAST_TEMPERATURE = 1e-5
NOT_FINITE = (
    "the engine returned logits that are not finite. Expected finite numbers; "
    "check the checkpoint for NaNs, or rebuild the bundle in fp32."
)


def combine_cfg(cond: FloatArray, uncond: FloatArray, scale: float) -> FloatArray:
    """Classifier-free guidance on raw logits: `u + scale * (c - u)`.

    Args: cond, uncond [..., V]. Returns [..., V] in the dtype of the inputs.
    """
    combined: FloatArray = uncond + cond.dtype.type(scale) * (cond - uncond)
    return combined


def warp(logits: FloatArray, sampling: SamplingConfig) -> NDArray[np.float64]:
    """The distribution a sampler draws from, `p` or `q` of the algorithm.

    Args:
        logits: [..., V], after CFG.
        sampling: temperature (0 = greedy: all mass on the argmax), top_k (0 = off; ties with the k-th largest
            survive), top_p (1 = off; an entry goes when the mass before it already exceeds top_p), top_p_first.
    Returns: [..., V] float64, each row summing to 1; tokens that were filtered out have exactly 0.
    Raises: BackendError when a row has no finite maximum (an engine returned NaN or infinity).
    """
    x = np.array(logits, dtype=np.float64)
    if not np.isfinite(x.max(axis=-1)).all():
        raise BackendError(NOT_FINITE)
    if sampling.temperature == 0:
        return one_hot(x.argmax(axis=-1), x.shape[-1])
    x /= max(sampling.temperature, LEAST_TEMPERATURE)
    if sampling.top_p_first:
        _keep_top_p(x, sampling.top_p)
        _keep_top_k(x, sampling.top_k)
    else:
        _keep_top_k(x, sampling.top_k)
        _keep_top_p(x, sampling.top_p)
    return softmax(x)


def softmax(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Softmax over the last axis; -inf becomes exactly 0. Shape is kept."""
    weights: NDArray[np.float64] = np.exp(x - x.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return weights


def one_hot(indices: NDArray[np.integer[Any]], size: int) -> NDArray[np.float64]:
    """[...] indices -> [..., size] float64 with a single 1 per row."""
    rows = np.zeros((*indices.shape, size))
    np.put_along_axis(rows, indices[..., None], 1.0, axis=-1)
    return rows


def _keep_top_k(x: NDArray[np.float64], k: int) -> None:
    if not 0 < k < x.shape[-1]:
        return
    threshold = np.partition(x, -k, axis=-1)[..., -k, None]
    x[x < threshold] = -np.inf


def _keep_top_p(x: NDArray[np.float64], top_p: float) -> None:
    if top_p == 1:
        return
    order = np.argsort(-x, axis=-1, kind="stable")
    sorted_p = softmax(np.take_along_axis(x, order, axis=-1))
    mass_before = np.cumsum(sorted_p, axis=-1) - sorted_p
    # The first entry has no mass before it, but cumsum - p can leave a rounding crumb: it must always stay.
    mass_before[..., 0] = 0.0
    removed_sorted = mass_before > top_p
    removed = np.zeros_like(removed_sorted)
    np.put_along_axis(removed, order, removed_sorted, axis=-1)
    x[removed] = -np.inf
