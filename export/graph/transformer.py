"""The target's and the draft's graph, from the same Llama block.

in : input_ids [B, S], position_ids [B, S], mask [B, 1, S, Smax] bool, write_indices [B],
     (features [B, S, H], for drafts and captions,) past_key_i, past_value_i [B, Hkv, Smax, D]
out: logits [B, S, V], hidden [B, S, H], present_key_i, present_value_i

Float inputs and outputs are float32 except the caches, which have the graph's own type.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ...engines.manifest import LoweringName, TransformerSpec
from ..weights import Array, DraftWeights, LayerWeights, TargetWeights, TransformerShape
from .attention import LOWERINGS, declare_cache
from .builder import GraphBuilder, fp32
from .linear import linear
from .precision import FP32, Precision
from .rope import apply_rope, declare_rope, rope_tables, split_pairs


def write_target(
    path: Path,
    weights: TargetWeights,
    max_draft_length: int,
    lowering: LoweringName,
    precision: Precision = FP32,
) -> TransformerSpec:
    """Write the target to `path` (+ `.data`). hidden is post-norm: what an EAGLE draft wants.

    Input ids 0..V-1 are image tokens. By classes: V + c is class c and V + num_classes the null class. By captions:
    where the id is negative, the row of `features` is the embedding.
    """
    shape = weights.shape
    with GraphBuilder(path, LOWERINGS[lowering].opset, precision) as g:
        stack = _Stack(g, shape, lowering, max_draft_length)
        x = _embed_classes(g, stack, weights) if weights.num_classes else _embed_captions(g, stack, weights)
        for i in range(shape.layers):
            x = stack.block(x, i, weights.layer(i))
        g.scope("head")
        hidden = rms_norm(g, x, "final_norm", weights.final_norm(), shape.norm_eps, named="hidden")
        _logits(g, g.narrow(hidden), weights.head())
        return stack.finish()


def write_draft(
    path: Path,
    weights: DraftWeights,
    head: Array,
    max_draft_length: int,
    lowering: LoweringName,
    precision: Precision = FP32,
) -> TransformerSpec:
    """Write the draft to `path` (+ `.data`). hidden is the predicted feature; logits are the target's head on it."""
    shape = weights.shape
    with GraphBuilder(path, LOWERINGS[lowering].opset, precision) as g:
        # Position j of the draft carries the feature of sequence position j and the token after it, hence one zero
        # row less than the target and one spare row more.
        stack = _Stack(g, shape, lowering, max_draft_length + 1)
        features = g.narrow(g.input("features", np.float32, ("batch", "tokens", shape.hidden)))
        embedded = g.op("Gather", g.weight("embedding", g.real(weights.token_embedding())), stack.input_ids)
        fc, bias = weights.fc()
        x = linear(g, g.op("Concat", embedded, features, axis=2), "fc.weight", fc)
        if bias is not None:
            x = g.op("Add", x, g.weight("fc.bias", g.real(bias)))
        for i in range(shape.layers):
            x = stack.block(x, i, weights.layer(i))
        g.scope("head")
        g.widen(x, named="hidden")
        _logits(g, x, head)
        return stack.finish()


def _embed_classes(g: GraphBuilder, stack: _Stack, weights: TargetWeights) -> str:
    table = np.concatenate([fp32(weights.token_embedding()), fp32(weights.class_embedding())])
    return g.op("Gather", g.weight("embedding", g.real(table)), stack.input_ids)


def _embed_captions(g: GraphBuilder, stack: _Stack, weights: TargetWeights) -> str:
    features = g.narrow(g.input("features", np.float32, ("batch", "tokens", weights.shape.hidden)))
    zero = g.constant(np.array(0, dtype=np.int64))
    table = g.weight("embedding", g.real(weights.token_embedding()))
    tokens = g.op("Gather", table, g.op("Max", stack.input_ids, zero))
    is_token = g.op("Unsqueeze", g.op("GreaterOrEqual", stack.input_ids, zero), g.ints(-1))
    return g.op("Where", is_token, tokens, features)


def rms_norm(g: GraphBuilder, x: str, name: str, weight: Array, eps: float, named: str | None = None) -> str:
    """`x / sqrt(mean(x^2) + eps) * weight` over the last axis, in float32; from primitives: every TensorRT has them."""
    x = g.widen(x)
    mean_square = g.op("ReduceMean", g.op("Mul", x, x), g.ints(-1), keepdims=1)
    root = g.op("Sqrt", g.op("Add", mean_square, g.scalar(eps)))
    return g.op("Mul", g.op("Div", x, root), g.weight(name, fp32(weight)), named=named)


def _logits(g: GraphBuilder, x: str, head: Array) -> None:
    if g.float_type is np.float32:
        linear(g, x, "head.weight", head, named="logits", head=True)
    else:
        g.widen(linear(g, x, "head.weight", head, head=True), named="logits")


class _Stack:
    """The inputs all blocks share, and the blocks."""

    def __init__(self, g: GraphBuilder, shape: TransformerShape, lowering: LoweringName, spare_rows: int) -> None:
        self.g, self.shape, self.lowering = g, shape, lowering
        tables = rope_tables(shape.grid, shape.head_dim, shape.zero_rows, spare_rows, shape.rope_base)
        self.positions = len(tables[0])
        self.input_ids = g.input("input_ids", np.int64, ("batch", "tokens"))
        position_ids = g.input("position_ids", np.int64, ("batch", "tokens"))
        self.mask = g.input("mask", np.bool_, ("batch", 1, "tokens", "cache_length"))
        self.write_indices = g.input("write_indices", np.int64, ("batch",))
        g.output("logits", np.float32, ("batch", "tokens", shape.vocab))
        g.output("hidden", np.float32, ("batch", "tokens", shape.hidden))
        self.cos, self.sin = declare_rope(g, position_ids, *tables)

    def block(self, x: str, index: int, layer: LayerWeights) -> str:
        """`h = x + attention(norm(x))`, `h + swiglu(norm(h))`."""
        g, eps, prefix = self.g, self.shape.norm_eps, f"layers.{index}"
        g.scope(prefix)
        normed = x
        if layer.attention_norm is not None:
            normed = g.narrow(rms_norm(g, x, f"{prefix}.attention_norm", layer.attention_norm, eps))
        h = g.op("Add", x, self._attention(normed, index, layer))
        normed = g.narrow(rms_norm(g, h, f"{prefix}.ffn_norm", layer.ffn_norm, eps))
        gate = linear(g, normed, f"{prefix}.gate", layer.gate)
        up = linear(g, normed, f"{prefix}.up", layer.up)
        activated = g.op("Mul", g.op("Mul", gate, g.op("Sigmoid", gate)), up)
        return g.op("Add", h, linear(g, activated, f"{prefix}.down", layer.down))

    def finish(self) -> TransformerSpec:
        g, shape = self.g, self.shape
        g.save()
        return TransformerSpec(
            lowering=self.lowering,
            layers=shape.layers,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            hidden_size=shape.hidden,
            vocab_size=shape.vocab,
            positions=self.positions,
            **g.spec(),
        )

    def _attention(self, x: str, index: int, layer: LayerWeights) -> str:
        g, s = self.g, self.shape
        cache = declare_cache(g, index, s, self.mask, self.write_indices)
        qkv = np.concatenate(
            [split_pairs(fp32(layer.q), s.head_dim), split_pairs(fp32(layer.k), s.head_dim), fp32(layer.v)]
        )
        projected = linear(g, x, f"layers.{index}.qkv", qkv)
        heads = g.op("Reshape", projected, g.ints(0, 0, s.heads + 2 * s.kv_heads, s.head_dim))
        heads = g.op("Transpose", heads, perm=[0, 2, 1, 3])
        # q and k turn together: one rotation for both.
        qk, v = g.ops("Split", heads, g.ints(s.heads + s.kv_heads, s.kv_heads), outputs=2, axis=1)
        turned = g.narrow(apply_rope(g, g.widen(qk), self.cos, self.sin))
        q, k = g.ops("Split", turned, g.ints(s.heads, s.kv_heads), outputs=2, axis=1)
        attended = LOWERINGS[self.lowering].attend(g, q, k, v, cache)
        merged = g.op("Reshape", g.op("Transpose", attended, perm=[0, 2, 1, 3]), g.ints(0, 0, s.heads * s.head_dim))
        return linear(g, merged, f"layers.{index}.o", layer.o)
