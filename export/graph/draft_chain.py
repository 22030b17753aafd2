"""A draft's whole chain in one graph: the catch-up over what was just emitted, then a step per token, each sampled in
the graph. One graph for every length; the longer ones begin like the shorter ones. For onnxruntime.

in : input_ids [B, M], features [B, M, H], write_indices [B], counts [B]: the catch-up. Row b has counts[b] tokens,
     padded at the end.
     uniforms [L, N], cond_rows [N], uncond_rows [L, N], image_of_row [B]: image n's logits are
     `u + cfg_scale (c - u)` of its two rows; where a token is not guided, both are the conditional one.
     cfg_scale, temperature, top_k (0: off), greedy: scalars.
     past_key_i, past_value_i [B, Hkv, Smax, D]
out: token_k [N], q_k [N, V] float64, the law it was drawn from, for k = 1..L
     present_key_i_k, present_value_i_k: k = 1 after the catch-up, then after each step; one buffer with past for all k.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

import numpy as np

from ...engines.manifest import LoweringName
from ..weights import Array
from .attention import (
    GQA,
    Attention,
    CacheIO,
    StepIO,
    Tables,
    declare_attention,
    declare_causal_gqa,
    takes_gqa,
)
from .builder import GraphBuilder, onnx_type
from .draft_layers import DraftLayers
from .transformer import Attend, logits

# Chains longer than this are drafted step by step.
LONGEST = 8
# u * total can round up to the total: the largest factor below 1 keeps it under.
BELOW_ONE = float(np.nextafter(1.0, 0.0))


def write_chains(
    g: GraphBuilder, layers: DraftLayers, head: Array, tables: Tables, lowering: LoweringName, longest: int
) -> list[Path]:
    """Write the CPU's chains of 1 to min(`longest`, LONGEST) tokens beside the draft, whose pen is g, and return their
    files.

    tables: cos and sin of RoPE. lowering: what to attend with where GroupQueryAttention can't. None are written where
    matrices would be widened at every step (fp16, int4): such a draft is faster step by step.
    """
    # Of weights that several nodes read onnxruntime packs one copy, but it neither fuses nor widens them ahead.
    if g.float_type is not np.float32 or g.precision.quantisation == "weight-only":
        return []
    attention = GQA if takes_gqa(g, layers.shape) else lowering
    return _write(g, layers, head, tables, attention, longest, "chain")


def write_gpu_chains(
    g: GraphBuilder, layers: DraftLayers, head: Array, tables: Tables, lowering: LoweringName, longest: int
) -> list[Path]:
    """The same for onnxruntime's CUDA provider, which attends in the lowering of the draft's step. None are written
    for other bundles than those made for GPUs, and where onnxruntime would widen matrices at every step or has no
    kernels (int8, int4, bf16)."""
    if not g.precision.tensorrt or g.precision.name not in ("fp32", "fp16"):
        return []
    return _write(g, layers, head, tables, lowering, longest, "gpu_chain")


def _write(
    g: GraphBuilder,
    layers: DraftLayers,
    head: Array,
    tables: Tables,
    attention: LoweringName | Literal["gqa"],
    longest: int,
    kind: str,
) -> list[Path]:
    chain = _Chain(g.sharing(g.path), layers, head, tables, attention)
    stem = f"{g.path.stem}_{kind}"
    return [chain.extend(g.path.with_name(f"{stem}_{k}.onnx")) for k in range(1, min(longest, LONGEST) + 1)]


class _Chain:
    """The chain so far. Drafted tokens continue the cache at `ends`, the committed length of each row."""

    def __init__(
        self, g: GraphBuilder, layers: DraftLayers, head: Array, tables: Tables, lowering: LoweringName | Literal["gqa"]
    ) -> None:
        self.g, self.layers, self.head, self.tables, self.lowering = g, layers, head, tables, lowering
        self.length = 0
        self.caches = [_declare_past(g, layers, i) for i in range(layers.shape.layers)]
        self.cache_length = g.op("Shape", self.caches[0][0], start=2, end=3)
        self.ids = g.input("input_ids", np.int64, ("batch", "tokens"))
        features = g.input("features", np.float32, ("batch", "tokens", layers.shape.hidden))
        self.features = g.narrow(features)
        self.write_indices = g.input("write_indices", np.int64, ("batch",))
        self.counts = g.input("counts", np.int64, ("batch",))
        self.ends = g.op("Add", self.write_indices, self.counts)
        self.image_of_row = g.input("image_of_row", np.int64, ("batch",))
        self.sampler = _Sampler(g, layers.shape.vocab)

    def extend(self, path: Path) -> Path:
        """Draft one token more, and write the graph of all so far to `path`."""
        g = self.g
        self.length += 1
        dims = g.op("Shape", self.ids)
        attention = self._attention(dims)

        def attend(layer: int) -> Attend:
            cache = self._advance(layer)
            return lambda projected: attention(projected, cache, f"layers.{layer}/attended_{self.length}")

        x = self.layers.apply(g, self.ids, self.features, attend)
        g.scope(f"sample_{self.length}")
        if self.length == 1:  # of the catch-up, only each row's last token counts
            last = g.op("Unsqueeze", g.op("Sub", self.counts, g.ints(1)), g.ints(1))
            x = g.op("Unsqueeze", g.op("GatherND", x, last, batch_dims=1), g.ints(1))
        scores = g.op("Reshape", logits(g, x, self.head), g.ints(-1, self.layers.shape.vocab))
        token = self.sampler.draw(self.length, scores)
        row_tokens = g.op("Gather", token, self.image_of_row)
        self.ids, self.features = g.op("Unsqueeze", row_tokens, g.ints(1)), x
        self.write_indices = g.op("Add", self.ends, g.ints(self.length - 1))
        return g.save(path=path)

    def _attention(self, dims: str) -> Attention:
        """For tokens in a row from `write_indices` on. dims: [B, S]."""
        g, shape = self.g, self.layers.shape
        if self.lowering == GQA:
            return declare_causal_gqa(g, shape, self.write_indices, dims, self.tables)
        tokens = g.op("Squeeze", g.op("Slice", dims, g.ints(1), g.ints(2)))
        steps = g.op("Range", _index(g, 0), tokens, _index(g, 1))
        positions = g.op("Add", g.op("Unsqueeze", self.write_indices, g.ints(1)), steps)
        slots = g.op("Range", _index(g, 0), g.op("Squeeze", self.cache_length), _index(g, 1))
        mask = g.op("LessOrEqual", slots, g.op("Unsqueeze", positions, g.ints(1, 3)))
        return declare_attention(g, shape, self.lowering, StepIO(positions, mask, self.write_indices), self.tables)

    def _advance(self, layer: int) -> CacheIO:
        """One layer's cache as the last step left it, and as this one does."""
        g, shape = self.g, self.layers.shape
        dims = ("batch", shape.kv_heads, "cache_length", shape.head_dim)
        pasts = self.caches[layer]
        presents = tuple(f"present_{kind}_{layer}_{self.length}" for kind in ("key", "value"))
        for name in presents:
            g.output(name, g.float_type, dims)
        self.caches[layer] = presents
        return CacheIO(*pasts, *presents)


def _declare_past(g: GraphBuilder, layers: DraftLayers, layer: int) -> tuple[str, ...]:
    dims = ("batch", layers.shape.kv_heads, "cache_length", layers.shape.head_dim)
    return tuple(g.input(f"past_{kind}_{layer}", g.float_type, dims) for kind in ("key", "value"))


class _Sampler:
    """Logits to tokens as `runtime` does it: guidance in float32, then temperature, top-k and softmax in float64, and
    the first token whose cumulative mass exceeds `u * total`."""

    def __init__(self, g: GraphBuilder, vocab: int) -> None:
        self.g, self.vocab = g, vocab
        self.uniforms = g.input("uniforms", np.float64, ("length", "images"))
        self.cond_rows = g.input("cond_rows", np.int64, ("images",))
        self.uncond_rows = g.input("uncond_rows", np.int64, ("length", "images"))
        self.cfg_scale = g.input("cfg_scale", np.float32, ())
        self.temperature = g.input("temperature", np.float64, ())
        self.greedy = g.input("greedy", np.bool_, ())
        self.top_k = g.input("top_k", np.int64, ())
        self.filters = g.op("Greater", self.top_k, _index(g, 0))
        self.kept = g.op("Unsqueeze", g.op("Max", self.top_k, _index(g, 1)), g.ints(0))

    def draw(self, position: int, logits: str) -> str:
        """The tokens [N] of one position, counted from 1, from the logits [B, V] of all rows; declares both outputs."""
        g, step = self.g, _index(self.g, position - 1)
        cond = g.op("Gather", logits, self.cond_rows)
        uncond = g.op("Gather", logits, g.op("Gather", self.uncond_rows, step))
        guided = g.op("Add", uncond, g.op("Mul", self.cfg_scale, g.op("Sub", cond, uncond)))

        best_scores, best = g.ops("TopK", guided, self.kept, outputs=2)
        least = g.op("ReduceMin", best_scores, g.ints(1))
        threshold = g.op("Where", self.filters, least, g.scalar(-np.inf))
        scaled = g.op("Div", g.op("Cast", guided, to=onnx_type(np.float64)), self.temperature)
        survivors = g.op("Where", g.op("GreaterOrEqual", guided, threshold), scaled, g.constant(np.array(-np.inf)))
        law = g.op("Softmax", survivors, named=f"q_{position}")
        g.output(law, np.float64, ("images", self.vocab))

        u = g.op("Unsqueeze", g.op("Gather", self.uniforms, step), g.ints(1))
        drawn = self._draw(law, u)
        first = g.op("Gather", best, _index(g, 0), axis=1)
        token = g.op("Where", self.greedy, first, drawn, named=f"token_{position}")
        g.output(token, np.int64, ("images",))
        return token

    def _draw(self, law: str, u: str) -> str:
        """[N, V], [N, 1] -> [N]: in two stages, since a cumulative sum over V costs as much as the softmax."""
        g, width = self.g, _divisor(self.vocab)
        blocks = g.op("Reshape", law, g.ints(-1, self.vocab // width, width))
        masses = g.op("ReduceSum", blocks, g.ints(2), keepdims=0)
        block, rest = self._first_beyond(masses, u, None)
        tokens = g.op("GatherND", blocks, block, batch_dims=1)
        token, _ = self._first_beyond(tokens, u, rest)
        both = g.op("Add", g.op("Mul", block, g.ints(width)), token)
        return g.op("Squeeze", both, g.ints(1))

    def _first_beyond(self, masses: str, u: str, aim: str | None) -> tuple[str, str]:
        """The first entry of each row [N, n] whose cumulative mass exceeds `aim` (None: `u * total`), and how far into
        its mass the aim lies; both [N, 1]. There always is one, whatever the rounding, and it has mass."""
        g = self.g
        cumulative = g.op("CumSum", masses, _index(g, 1))
        total = g.op("ReduceMax", cumulative, g.ints(1))
        if aim is None:
            aim = g.op("Mul", u, total)
        aim = g.op("Min", aim, g.op("Mul", total, g.constant(np.array(BELOW_ONE))))
        # Of whole numbers the CUDA provider has no ArgMax.
        beyond = g.op("Cast", g.op("Greater", cumulative, aim), to=onnx_type(np.float32))
        entry = g.op("ArgMax", beyond, axis=1)
        before = g.op("CumSum", masses, _index(g, 1), exclusive=1)
        rest = g.op("Sub", aim, g.op("GatherElements", before, entry, axis=1))
        return entry, rest


def _divisor(size: int) -> int:
    """The largest divisor not above the square root."""
    return next(width for width in range(math.isqrt(size), 0, -1) if size % width == 0)


def _index(g: GraphBuilder, value: int) -> str:
    """A scalar index."""
    return g.constant(np.array(value, dtype=np.int64))
