"""Rotate, write the cache, attend: the one block of a transformer graph that depends on where it will run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ...engines.manifest import LoweringName
from ..weights import TransformerShape
from .builder import GraphBuilder, onnx_type
from .rope import apply_rope, declare_rope

# The variant of a graph that attends with onnxruntime's GroupQueryAttention.
GQA: Literal["gqa"] = "gqa"

# GroupQueryAttention takes head sizes that are multiples of this.
GQA_WIDTH = 16

Tables = tuple[NDArray[np.float32], NDArray[np.float32]]


@dataclass(frozen=True)
class StepIO:
    """What all layers of a step share: position_ids [B, S], mask [B, 1, S, Smax] bool, write_indices [B]."""

    position_ids: str
    mask: str
    write_indices: str


@dataclass(frozen=True)
class CacheIO:
    """One layer's pasts and presents, [B, Hkv, Smax, D]."""

    past_key: str
    past_value: str
    present_key: str
    present_value: str


# (projected [B, S, (H + 2 Hkv) D]: q, k and v, q and k in halves order; cache; name of the result)
# -> attended [B, S, H D]
Attention = Callable[[str, CacheIO, str], str]
# (graph, q [B, H, S, D], k and v [B, Hkv, S, D], mask, write_indices, cache) -> [B, H, S, D]
_Core = Callable[[GraphBuilder, TransformerShape, tuple[str, str, str], StepIO, CacheIO], str]


@dataclass(frozen=True)
class Lowering:
    """One way to write the block that every backend reads, and the opset it needs."""

    opset: int
    core: _Core


def _tensor_scatter(
    g: GraphBuilder, shape: TransformerShape, qkv: tuple[str, str, str], step: StepIO, cache: CacheIO
) -> str:
    """Opset 24. TensorRT (>= 10.15) turns TensorScatter into its KV-cache-update layer; onnxruntime writes in place
    when past and present are one buffer. `Attention` scales by 1/sqrt(D) and repeats grouped KV heads itself."""
    q, k, v = qkv
    keys = g.op("TensorScatter", cache.past_key, k, step.write_indices, named=cache.present_key, axis=2)
    values = g.op("TensorScatter", cache.past_value, v, step.write_indices, named=cache.present_value, axis=2)
    return g.op("Attention", q, keys, values, step.mask)


def _portable(g: GraphBuilder, shape: TransformerShape, qkv: tuple[str, str, str], step: StepIO, cache: CacheIO) -> str:
    """Opset 18, for runtimes without TensorScatter and Attention: scatter by element, then plain matrix products."""
    q, k, v = qkv
    heads, kv_heads, head_dim = shape.heads, shape.kv_heads, shape.head_dim
    length = g.op("Gather", g.op("Shape", k), g.ints(2))
    steps = g.op("Range", g.constant(np.int64(0)), g.op("Squeeze", length), g.constant(np.int64(1)))
    positions = g.op("Add", g.op("Unsqueeze", step.write_indices, g.ints(1)), steps)
    indices = g.op("Expand", g.op("Unsqueeze", positions, g.ints(1, 3)), g.op("Shape", k))
    keys = g.op("ScatterElements", cache.past_key, indices, k, named=cache.present_key, axis=2)
    values = g.op("ScatterElements", cache.past_value, indices, v, named=cache.present_value, axis=2)

    # Query heads of one KV head become an axis of their own, over which keys, values and mask broadcast.
    # Scores and their softmax are float32 whatever the cache is.
    grouped = g.op("Reshape", q, g.ints(0, kv_heads, heads // kv_heads, -1, head_dim))
    keys, values, mask = (g.op("Unsqueeze", value, g.ints(2)) for value in (keys, values, step.mask))
    scaled = g.op("Mul", grouped, g.constant(g.real(np.array(head_dim**-0.5))))
    scores = g.widen(g.op("MatMul", scaled, g.op("Transpose", keys, perm=[0, 1, 2, 4, 3])))
    visible = g.op("Where", mask, scores, g.scalar(float(np.finfo(np.float32).min)))
    attended = g.op("MatMul", g.narrow(g.op("Softmax", visible, axis=-1)), values)
    return g.op("Reshape", attended, g.ints(0, heads, -1, head_dim))


LOWERINGS: dict[LoweringName, Lowering] = {
    "tensor_scatter": Lowering(24, _tensor_scatter),
    "portable": Lowering(18, _portable),
}


def declare_attention(
    g: GraphBuilder, shape: TransformerShape, lowering: LoweringName, step: StepIO, tables: Tables
) -> Attention:
    """What a step's layers share in a lowering that every backend reads. tables: cos and sin of RoPE."""
    cos, sin = declare_rope(g, step.position_ids, *tables)
    core, s = LOWERINGS[lowering].core, shape

    def attend(projected: str, cache: CacheIO, named: str) -> str:
        heads = g.op("Reshape", projected, g.ints(0, 0, s.heads + 2 * s.kv_heads, s.head_dim))
        heads = g.op("Transpose", heads, perm=[0, 2, 1, 3])
        # q and k turn together: one rotation for both.
        qk, v = g.ops("Split", heads, g.ints(s.heads + s.kv_heads, s.kv_heads), outputs=2, axis=1)
        turned = g.narrow(apply_rope(g, g.widen(qk), cos, sin))
        q, k = g.ops("Split", turned, g.ints(s.heads, s.kv_heads), outputs=2, axis=1)
        attended = g.op("Transpose", core(g, s, (q, k, v), step, cache), perm=[0, 2, 1, 3])
        return g.op("Reshape", attended, g.ints(0, 0, s.heads * s.head_dim), named=named)

    return attend


def takes_gqa(g: GraphBuilder, shape: TransformerShape) -> bool:
    """Whether GroupQueryAttention can serve such a model on the CPU."""
    return shape.head_dim % GQA_WIDTH == 0 and g.float_type in (np.float32, np.float16)


def declare_gqa(g: GraphBuilder, shape: TransformerShape, step: StepIO, tables: Tables) -> Attention:
    """The same for onnxruntime alone: its GroupQueryAttention rotates, writes the cache and attends in one operator.

    It attends causally in cache order, and the mask joins as a bias, which serves chains, trees and padded rows. Only a
    mask that lets a token see later ones is beyond it: LANTERN's padded captions (`condition.CaptionCondition`).
    Its RoPE tables must be as long as the cache, which a tree can make longer than the image needs.
    """
    size = g.op("Shape", step.mask, start=3, end=4)
    pads = g.op("Concat", g.ints(0, 0), size, g.ints(0), axis=0)
    cos, sin = (
        g.op("Pad", g.narrow(g.weight(name, table)), pads)
        for name, table in zip(("rope_cos", "rope_sin"), tables, strict=True)
    )
    hidden = float(np.finfo(g.float_type).min) / 2
    bias = g.op("Where", step.mask, g.constant(g.real(np.array(0.0))), g.constant(g.real(np.array(hidden))))
    return _gqa(
        g, shape, step.write_indices, g.op("Shape", step.position_ids), size, (cos, sin), step.position_ids, bias
    )


def declare_causal_gqa(
    g: GraphBuilder, shape: TransformerShape, write_indices: str, dims: str, tables: Tables
) -> Attention:
    """`declare_gqa` for tokens in a row, whose positions are where they are written; without a mask. dims: [B, S]."""
    cos, sin = (g.narrow(g.weight(name, table)) for name, table in zip(("rope_cos", "rope_sin"), tables, strict=True))
    tokens = g.op("Slice", dims, g.ints(1), g.ints(2))
    longest = g.op("Add", g.op("ReduceMax", write_indices, keepdims=1), tokens)
    return _gqa(g, shape, write_indices, dims, longest, (cos, sin))


def _gqa(
    g: GraphBuilder,
    shape: TransformerShape,
    write_indices: str,
    dims: str,
    longest: str,
    tables: tuple[str, str],
    position_ids: str = "",
    bias: str = "",
) -> Attention:
    """longest: [1], a bound of every row's length after the step; RoPE tables and bias must reach so far."""
    int32 = onnx_type(np.int32)
    rows, tokens = g.ops("Split", dims, outputs=2, axis=0, num_outputs=2)
    last = g.op("Cast", g.op("Sub", g.op("Add", write_indices, tokens), g.ints(1)), to=int32)
    counts = g.op("Expand", g.op("Cast", tokens, to=int32), rows)
    total = g.op("Cast", longest, to=int32)

    def attend(projected: str, cache: CacheIO, named: str) -> str:
        unused = [""] * 5
        shared = (last, total, *tables, position_ids, bias, *unused, counts)
        return g.ops(
            "GroupQueryAttention",
            *(projected, "", "", cache.past_key, cache.past_value, *shared),
            outputs=[named, cache.present_key, cache.present_value],
            domain="com.microsoft",
            num_heads=shape.heads,
            kv_num_heads=shape.kv_heads,
            do_rotary=1,
        )[0]

    return attend


def declare_cache(g: GraphBuilder, layer: int, shape: TransformerShape) -> CacheIO:
    """Declare one layer's past inputs and present outputs."""
    dims = ("batch", shape.kv_heads, "cache_length", shape.head_dim)
    names = {f"{when}_{kind}": f"{when}_{kind}_{layer}" for when in ("past", "present") for kind in ("key", "value")}
    g.input(names["past_key"], g.float_type, dims)
    g.input(names["past_value"], g.float_type, dims)
    g.output(names["present_key"], g.float_type, dims)
    g.output(names["present_value"], g.float_type, dims)
    return CacheIO(**names)
