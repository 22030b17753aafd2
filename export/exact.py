"""A target's forward pass in NumPy, with one layer's weights in memory: what reduced precisions are held against."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .graph.builder import fp32
from .graph.rope import rope_tables
from .weights import Array, LayerWeights, TargetWeights, TransformerShape

Floats = NDArray[np.float32]


def exact_logits(weights: TargetWeights, embeddings: Floats, last: int) -> Floats:
    """Logits [B, last, V] at the last positions of sequences [B, S, H] that begin at position 0, in float32."""
    shape, length = weights.shape, embeddings.shape[1]
    tables = rope_tables(shape.grid, shape.head_dim, shape.zero_rows, 0, shape.rope_base)
    cos, sin = (table[:length, None] for table in tables)
    x = embeddings
    for i in range(shape.layers):
        layer = weights.layer(i)
        normed = x if layer.attention_norm is None else _rms_norm(x, layer.attention_norm, shape.norm_eps)
        x = x + _attention(normed, layer, shape, cos, sin)
        normed = _rms_norm(x, layer.ffn_norm, shape.norm_eps)
        gate = _linear(normed, layer.gate)
        x = x + _linear(gate / (1 + np.exp(-gate)) * _linear(normed, layer.up), layer.down)
    return _linear(_rms_norm(x[:, -last:], weights.final_norm(), shape.norm_eps), weights.head())


def _attention(x: Floats, layer: LayerWeights, s: TransformerShape, cos: Floats, sin: Floats) -> Floats:
    batch, length, _ = x.shape
    q, k, v = (_linear(x, part).reshape(batch, length, -1, s.head_dim) for part in (layer.q, layer.k, layer.v))
    q, k = _turned(q, cos, sin), _turned(k, cos, sin)
    # Query heads of one KV head become an axis of their own.
    q = q.reshape(batch, length, s.kv_heads, -1, s.head_dim) * np.float32(s.head_dim**-0.5)
    scores = np.einsum("bqhgd,bkhd->bhgqk", q, k, optimize=True)
    scores[..., ~np.tri(length, dtype=bool)] = -np.inf
    scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
    scores /= scores.sum(axis=-1, keepdims=True)
    mixed = np.einsum("bhgqk,bkhd->bqhgd", scores, v, optimize=True)
    return _linear(mixed.reshape(batch, length, -1), layer.o)


def _turned(x: Floats, cos: Floats, sin: Floats) -> Floats:
    """Rotate interleaved pairs of channels [B, S, heads, D]."""
    a, b = x[..., ::2], x[..., 1::2]
    return np.stack([a * cos - b * sin, b * cos + a * sin], axis=-1).reshape(x.shape)


def _rms_norm(x: Floats, weight: Array, eps: float) -> Floats:
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + np.float32(eps)) * fp32(weight)


def _linear(x: Floats, weight: Array) -> Floats:
    return x @ fp32(weight).T
