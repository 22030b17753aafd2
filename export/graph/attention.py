"""Write the cache, attend: the one block of a transformer graph that depends on where it will run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ...engines.manifest import LoweringName
from ..weights import TransformerShape
from .builder import GraphBuilder


@dataclass(frozen=True)
class CacheIO:
    """Values attention needs: mask [B, 1, S, Smax] bool, write_indices [B], pasts and presents [B, Hkv, Smax, D]."""

    shape: TransformerShape
    mask: str
    write_indices: str
    past_key: str
    past_value: str
    present_key: str
    present_value: str


# (graph, q [B, H, S, D], k and v [B, Hkv, S, D], cache) -> attended [B, H, S, D]
Attend = Callable[[GraphBuilder, str, str, str, CacheIO], str]


@dataclass(frozen=True)
class Lowering:
    """One way to write the block, and the opset it needs."""

    opset: int
    attend: Attend


def _tensor_scatter(g: GraphBuilder, q: str, k: str, v: str, cache: CacheIO) -> str:
    """Opset 24. TensorRT (>= 10.15) turns TensorScatter into its KV-cache-update layer; onnxruntime writes in place
    when past and present are one buffer. `Attention` scales by 1/sqrt(D) and repeats grouped KV heads itself."""
    keys = g.op("TensorScatter", cache.past_key, k, cache.write_indices, named=cache.present_key, axis=2)
    values = g.op("TensorScatter", cache.past_value, v, cache.write_indices, named=cache.present_value, axis=2)
    return g.op("Attention", q, keys, values, cache.mask)


def _portable(g: GraphBuilder, q: str, k: str, v: str, cache: CacheIO) -> str:
    """Opset 18, for runtimes without TensorScatter and Attention: scatter by element, then plain matrix products."""
    heads, kv_heads, head_dim = cache.shape.heads, cache.shape.kv_heads, cache.shape.head_dim
    length = g.op("Gather", g.op("Shape", k), g.ints(2))
    steps = g.op("Range", g.constant(np.int64(0)), g.op("Squeeze", length), g.constant(np.int64(1)))
    positions = g.op("Add", g.op("Unsqueeze", cache.write_indices, g.ints(1)), steps)
    indices = g.op("Expand", g.op("Unsqueeze", positions, g.ints(1, 3)), g.op("Shape", k))
    keys = g.op("ScatterElements", cache.past_key, indices, k, named=cache.present_key, axis=2)
    values = g.op("ScatterElements", cache.past_value, indices, v, named=cache.present_value, axis=2)

    # Query heads of one KV head become an axis of their own, over which keys, values and mask broadcast.
    # Scores and their softmax are float32 whatever the cache is.
    grouped = g.op("Reshape", q, g.ints(0, kv_heads, heads // kv_heads, -1, head_dim))
    keys, values, mask = (g.op("Unsqueeze", value, g.ints(2)) for value in (keys, values, cache.mask))
    scaled = g.op("Mul", grouped, g.constant(g.real(np.array(head_dim**-0.5))))
    scores = g.widen(g.op("MatMul", scaled, g.op("Transpose", keys, perm=[0, 1, 2, 4, 3])))
    visible = g.op("Where", mask, scores, g.scalar(float(np.finfo(np.float32).min)))
    attended = g.op("MatMul", g.narrow(g.op("Softmax", visible, axis=-1)), values)
    return g.op("Reshape", attended, g.ints(0, heads, -1, head_dim))


LOWERINGS: dict[LoweringName, Lowering] = {
    "tensor_scatter": Lowering(24, _tensor_scatter),
    "portable": Lowering(18, _portable),
}


def declare_cache(g: GraphBuilder, layer: int, shape: TransformerShape, mask: str, write_indices: str) -> CacheIO:
    """Declare one layer's past inputs and present outputs."""
    dims = ("batch", shape.kv_heads, "cache_length", shape.head_dim)
    names = {f"{when}_{kind}": f"{when}_{kind}_{layer}" for when in ("past", "present") for kind in ("key", "value")}
    g.input(names["past_key"], g.float_type, dims)
    g.input(names["past_value"], g.float_type, dims)
    g.output(names["present_key"], g.float_type, dims)
    g.output(names["present_value"], g.float_type, dims)
    return CacheIO(shape, mask, write_indices, **names)
