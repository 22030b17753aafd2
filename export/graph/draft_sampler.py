"""What stands between two steps of a draft's chain on TensorRT: logits to tokens, and to the next step's input.

All in float32, since TensorRT has no float64.

in : logits [B, S, V] and hidden [B, S, H], as the draft's step gives them; last [B], where each row's last token is.
     uniforms [N], cond_rows [N], uncond_rows [N], image_of_row [B]: image n's logits are `u + cfg_scale (c - u)` of its
     two rows; where a token is not guided, both are the conditional one.
     cfg_scale, temperature, top_k (0: off; at most `top_k_limit(V)`), greedy: [1].
out: token [N], q [N, V], the law it was drawn from; next_input_ids [B, 1], next_features [B, 1, H]
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from ...engines.manifest import GraphSpec
from ...engines.trt.profiles import top_k_limit
from ..weights import TransformerShape
from .builder import GraphBuilder, fp32, onnx_type


def write_draft_sampler(path: Path, shape: TransformerShape, opset: int) -> GraphSpec:
    """Write the sampler of a draft of that shape to `path`."""
    with GraphBuilder(path, opset) as g:
        logits = g.input("logits", np.float32, ("batch", "tokens", shape.vocab))
        hidden = g.input("hidden", np.float32, ("batch", "tokens", shape.hidden))
        last = g.op("Unsqueeze", g.input("last", np.int64, ("batch",)), g.ints(1))
        features = g.op("GatherND", hidden, last, batch_dims=1)
        g.op("Unsqueeze", features, g.ints(1), named="next_features")
        g.output("next_features", np.float32, ("batch", 1, shape.hidden))

        guided = _guided(g, g.op("GatherND", logits, last, batch_dims=1))
        law = _law(g, guided, shape.vocab)
        u = g.op("Unsqueeze", g.input("uniforms", np.float32, ("images",)), g.ints(1))
        drawn, best = _draw(g, law, u, shape.vocab), _best(g, guided, shape.vocab)
        chosen = g.op("Where", g.input("greedy", np.bool_, (1,)), best, drawn)
        token = g.op("Cast", g.op("Squeeze", chosen, g.ints(1)), to=onnx_type(np.int64), named="token")
        g.output(token, np.int64, ("images",))
        row_tokens = g.op("Gather", token, g.input("image_of_row", np.int64, ("batch",)))
        g.op("Unsqueeze", row_tokens, g.ints(1), named="next_input_ids")
        g.output("next_input_ids", np.int64, ("batch", 1))
        g.save()
        return GraphSpec(**g.spec())


def _guided(g: GraphBuilder, logits: str) -> str:
    """[B, V] -> [N, V]."""
    cond = g.op("Gather", logits, g.input("cond_rows", np.int64, ("images",)))
    uncond = g.op("Gather", logits, g.input("uncond_rows", np.int64, ("images",)))
    return g.op("Add", uncond, g.op("Mul", g.input("cfg_scale", np.float32, (1,)), g.op("Sub", cond, uncond)))


def _law(g: GraphBuilder, guided: str, vocab: int) -> str:
    """Temperature, top-k, softmax: [N, V]."""
    # The limit is a constant: TensorRT takes no K that it learns as it runs, and none that is larger.
    best = g.ops("TopK", guided, g.ints(top_k_limit(vocab)), outputs=2)[0]
    top_k = g.input("top_k", np.int64, (1,))
    place = g.op("Max", g.op("Sub", top_k, g.ints(1)), g.ints(0))
    least = g.op("Gather", best, place, axis=1)
    kept = g.op("Or", g.op("GreaterOrEqual", guided, least), g.op("Equal", top_k, g.ints(0)))
    # What is below the largest is exact near it; divided first, small temperatures would round the differences away.
    below = g.op("Sub", guided, g.op("ReduceMax", guided, g.ints(1)))
    scaled = g.op("Div", below, g.input("temperature", np.float32, (1,)))
    law = g.op("Softmax", g.op("Where", kept, scaled, g.scalar(-np.inf)), named="q")
    g.output(law, np.float32, ("images", vocab))
    return law


def _best(g: GraphBuilder, scores: str, size: int) -> str:
    """The first of the largest entries of each row, [N, 1] float32: TensorRT's ArgMax does not say which of equals."""
    places = g.constant(np.arange(size, dtype=np.float32)[None])
    largest = g.op("GreaterOrEqual", scores, g.op("ReduceMax", scores, g.ints(1)))
    # Of NaN none is the largest, and a place there must be.
    return g.op("ReduceMin", g.op("Where", largest, places, g.scalar(size - 1)), g.ints(1))


def _draw(g: GraphBuilder, law: str, u: str, vocab: int) -> str:
    """[N, V], [N, 1] -> [N, 1] float32: in two stages, since a cumulative sum over V costs as much as the softmax."""
    width = math.isqrt(vocab - 1) + 1
    blocks = -(-vocab // width)
    if blocks * width > vocab:
        law = g.op("Pad", law, g.ints(0, 0, 0, blocks * width - vocab))
    table = g.op("Reshape", law, g.ints(-1, blocks, width))
    masses = g.op("ReduceSum", table, g.ints(2), keepdims=0)
    block, rest = _first_beyond(g, masses, blocks, u, None)
    index = g.op("Cast", block, to=onnx_type(np.int64))
    token, _ = _first_beyond(g, g.op("GatherND", table, index, batch_dims=1), width, u, rest)
    return g.op("Add", g.op("Mul", block, g.scalar(width)), token)


def _first_beyond(g: GraphBuilder, masses: str, size: int, u: str, aim: str | None) -> tuple[str, str]:
    """The first entry with mass of each row [N, n] whose cumulative mass exceeds `aim` (None: `u * total`), else the
    last with mass; and how far into its mass the aim lies. Both [N, 1] float32."""
    # TensorRT before 10.9 would loop over a CumSum.
    cumulative = g.op("MatMul", masses, g.constant(fp32(np.triu(np.ones((size, size))))))
    if aim is None:
        aim = g.op("Mul", u, g.op("ReduceMax", cumulative, g.ints(1)))
    places = g.constant(np.arange(size, dtype=np.float32)[None])
    held = g.op("Greater", masses, g.scalar(0))
    beyond = g.op("And", held, g.op("Greater", cumulative, aim))
    first = g.op("ReduceMin", g.op("Where", beyond, places, g.scalar(size)), g.ints(1))
    last = g.op("ReduceMax", g.op("Where", held, places, g.scalar(0)), g.ints(1))
    entry = g.op("Min", first, last)
    index = g.op("Cast", entry, to=onnx_type(np.int64))
    before = g.op(
        "Sub", g.op("GatherElements", cumulative, index, axis=1), g.op("GatherElements", masses, index, axis=1)
    )
    return entry, g.op("Sub", aim, before)
