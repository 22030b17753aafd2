"""The target's graph, and the Llama block that targets and drafts are made of.

in : input_ids [B, S], position_ids [B, S], mask [B, 1, S, Smax] bool, write_indices [B],
     (features [B, S, H], for drafts and captions,) past_key_i, past_value_i [B, Hkv, Smax, D]
out: logits [B, S, V], hidden [B, S, H], present_key_i, present_value_i

Float inputs and outputs are float32 except the caches, which have the graph's own type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from ...engines.bundle import record_file
from ...engines.manifest import LoweringName, TransformerSpec
from ..weights import Array, LayerWeights, TargetWeights, TransformerShape
from .attention import GQA, LOWERINGS, StepIO, declare_attention, declare_cache, declare_gqa, takes_gqa
from .builder import GraphBuilder, fp32
from .linear import linear
from .precision import FP32, Precision
from .rope import rope_tables, split_pairs

# What a layer's q, k and v become, [B, S, (H + 2 Hkv) D] -> [B, S, H D].
Attend = Callable[[str], str]


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
        stack = Stack(g, shape, lowering, max_draft_length)
        x = _embed_classes(g, stack, weights) if weights.num_classes else _embed_captions(g, stack, weights)
        for i in range(shape.layers):
            x = block(g, shape, x, i, weights.layer(i), stack.attend(i))
        g.scope("head")
        hidden = rms_norm(g, x, "final_norm", weights.final_norm(), shape.norm_eps, named="hidden")
        logits(g, g.narrow(hidden), weights.head(), named="logits")
        return stack.finish()


def _embed_classes(g: GraphBuilder, stack: Stack, weights: TargetWeights) -> str:
    table = np.concatenate([fp32(weights.token_embedding()), fp32(weights.class_embedding())])
    return g.op("Gather", g.weight("embedding", g.real(table)), stack.input_ids)


def _embed_captions(g: GraphBuilder, stack: Stack, weights: TargetWeights) -> str:
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


def logits(g: GraphBuilder, x: str, head: Array, named: str | None = None) -> str:
    """float32, whatever x is."""
    if g.float_type is np.float32:
        return linear(g, x, "head.weight", head, named=named, head=True)
    return g.widen(linear(g, x, "head.weight", head, head=True), named=named)


def block(g: GraphBuilder, shape: TransformerShape, x: str, index: int, layer: LayerWeights, attend: Attend) -> str:
    """`h = x + attention(norm(x))`, `h + swiglu(norm(h))`."""
    eps, prefix = shape.norm_eps, f"layers.{index}"
    g.scope(prefix)
    normed = x
    if layer.attention_norm is not None:
        normed = g.narrow(rms_norm(g, x, f"{prefix}.attention_norm", layer.attention_norm, eps))
    q, k = (split_pairs(fp32(part), shape.head_dim) for part in (layer.q, layer.k))
    projected = linear(g, normed, f"{prefix}.qkv", np.concatenate([q, k, fp32(layer.v)]))
    h = g.op("Add", x, linear(g, attend(projected), f"{prefix}.o", layer.o))
    normed = g.narrow(rms_norm(g, h, f"{prefix}.ffn_norm", layer.ffn_norm, eps))
    gate = linear(g, normed, f"{prefix}.gate", layer.gate)
    up = linear(g, normed, f"{prefix}.up", layer.up)
    activated = g.op("Mul", g.op("Mul", gate, g.op("Sigmoid", gate)), up)
    return g.op("Add", h, linear(g, activated, f"{prefix}.down", layer.down))


class Stack:
    """The inputs and outputs of a step, its attention in every variant of the graph, and its caches.

    One variant is for every backend, in the lowering asked for, the other, where it can be, for onnxruntime alone.
    """

    def __init__(self, g: GraphBuilder, shape: TransformerShape, lowering: LoweringName, spare_rows: int) -> None:
        self.g, self.shape, self.lowering = g, shape, lowering
        self.tables = rope_tables(shape.grid, shape.head_dim, shape.zero_rows, spare_rows, shape.rope_base)
        self.input_ids = g.input("input_ids", np.int64, ("batch", "tokens"))
        step = StepIO(
            position_ids=g.input("position_ids", np.int64, ("batch", "tokens")),
            mask=g.input("mask", np.bool_, ("batch", 1, "tokens", "cache_length")),
            write_indices=g.input("write_indices", np.int64, ("batch",)),
        )
        g.output("logits", np.float32, ("batch", "tokens", shape.vocab))
        g.output("hidden", np.float32, ("batch", "tokens", shape.hidden))
        with g.only_in(lowering):
            self._everywhere = declare_attention(g, shape, lowering, step, self.tables)
        self._gqa = None
        if takes_gqa(g, shape):
            with g.only_in(GQA):
                self._gqa = declare_gqa(g, shape, step, self.tables)

    def attend(self, layer: int) -> Attend:
        """Declare a layer's caches; what attends with them."""
        g, cache, named = self.g, declare_cache(self.g, layer, self.shape), f"layers.{layer}/attended"

        def attend(projected: str) -> str:
            with g.only_in(self.lowering):
                self._everywhere(projected, cache, named)
            if self._gqa is not None:
                with g.only_in(GQA):
                    self._gqa(projected, cache, named)
            return named

        return attend

    def finish(self, chains: Sequence[Path] = (), gpu_chains: Sequence[Path] = ()) -> TransformerSpec:
        """Write all variants. chains, gpu_chains: what else was written beside them, see `draft_chain`."""
        g, shape = self.g, self.shape
        g.save(self.lowering)
        gqa = g.save(GQA, g.path.with_name(f"{g.path.stem}_{GQA}.onnx")) if self._gqa else None
        return TransformerSpec(
            lowering=self.lowering,
            gqa=record_file(gqa) if gqa else None,
            chains=tuple(map(record_file, chains)),
            gpu_chains=tuple(map(record_file, gpu_chains)),
            layers=shape.layers,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            hidden_size=shape.hidden,
            vocab_size=shape.vocab,
            positions=len(self.tables[0]),
            **g.spec(),
        )
