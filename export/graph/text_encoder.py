"""The text encoder's graph: tokens [B, length] int64, mask [B, length] bool -> features [B, length, C] float32."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from ...engines.bundle import record_file
from ...engines.manifest import TextEncoderSpec
from ..t5 import T5Encoder
from .activations import gelu_tanh
from .builder import GraphBuilder, fp32
from .linear import linear
from .transformer import rms_norm

# Nothing in it needs more, and every TensorRT parses it.
OPSET = 18
MASKED = -1e30


def write_text_encoder(path: Path, weights: T5Encoder, length: int) -> TextEncoderSpec:
    """Write it to `path` (+ `.data`) for captions of `length` tokens, padding included, and its tokenizer beside it."""
    with GraphBuilder(path, OPSET) as g:
        tokens = g.input("tokens", np.int64, ("batch", length))
        mask = g.input("mask", np.bool_, ("batch", length))
        g.output("features", np.float32, ("batch", length, weights.hidden))
        hidden_columns = g.op("Where", g.op("Unsqueeze", mask, g.ints(1, 2)), g.scalar(0.0), g.scalar(MASKED))
        bias = g.op("Add", g.weight("position_bias", weights.position_bias(length)), hidden_columns)
        x = g.op("Gather", g.weight("embedding", fp32(weights.token_embedding())), tokens)
        for i in range(weights.layers):
            g.scope(f"layers.{i}")
            x = g.op("Add", x, _attention(g, x, i, weights, bias))
            x = g.op("Add", x, _feed_forward(g, x, i, weights))
        rms_norm(g, x, "final_norm", weights.final_norm(), weights.norm_eps, named="features")
        g.save()
        tokenizer = Path(shutil.copyfile(weights.tokenizer, path.with_name(weights.tokenizer.name)))
        return TextEncoderSpec(tokenizer=record_file(tokenizer), **g.spec())


def _attention(g: GraphBuilder, x: str, i: int, w: T5Encoder, bias: str) -> str:
    """T5 does not scale its scores."""
    normed = rms_norm(g, x, f"layers.{i}.attention_norm", w.norm(i, 0), w.norm_eps)
    split = g.ints(0, 0, w.heads, w.inner // w.heads)
    q, k, v = (g.op("Reshape", linear(g, normed, f"layers.{i}.{part}", w.attention(i, part)), split) for part in "qkv")
    q, v = (g.op("Transpose", value, perm=[0, 2, 1, 3]) for value in (q, v))
    scores = g.op("Add", g.op("MatMul", q, g.op("Transpose", k, perm=[0, 2, 3, 1])), bias)
    mixed = g.op("Transpose", g.op("MatMul", g.op("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3])
    return linear(g, g.op("Reshape", mixed, g.ints(0, 0, w.inner)), f"layers.{i}.o", w.attention(i, "o"))


def _feed_forward(g: GraphBuilder, x: str, i: int, w: T5Encoder) -> str:
    normed = rms_norm(g, x, f"layers.{i}.ffn_norm", w.norm(i, 1), w.norm_eps)
    gate = gelu_tanh(g, linear(g, normed, f"layers.{i}.gate", w.feed_forward(i, "wi_0")))
    up = linear(g, normed, f"layers.{i}.up", w.feed_forward(i, "wi_1"))
    return linear(g, g.op("Mul", gate, up), f"layers.{i}.down", w.feed_forward(i, "wo"))
