"""The graph from text features to a target's embeddings: caption [B, slots, C] -> conditional [B, slots, H], and
unconditional [slots, H], which does not depend on the input."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from ...engines.manifest import GraphSpec
from ..weights import CaptionWeights
from .builder import GraphBuilder, fp32

# Nothing in it needs more, and every TensorRT parses it.
OPSET = 18


def write_caption_projection(path: Path, weights: CaptionWeights) -> GraphSpec:
    """Write it to `path` (+ `.data`). A zero row, padding, stays zero: there are no biases."""
    hidden, (slots, feature_size) = len(weights.fc2), weights.unconditional.shape
    with GraphBuilder(path, OPSET) as g:
        caption = g.input("caption", np.float32, ("batch", slots, feature_size))
        g.output("conditional", np.float32, ("batch", slots, hidden))
        g.output("unconditional", np.float32, (slots, hidden))
        stored = g.weight("unconditional_features", fp32(weights.unconditional))
        fc1, fc2 = g.weight("fc1", fp32(weights.fc1).T), g.weight("fc2", fp32(weights.fc2).T)
        for features, name in ((caption, "conditional"), (stored, "unconditional")):
            g.scope(name)
            g.op("MatMul", _gelu_tanh(g, g.op("MatMul", features, fc1)), fc2, named=name)
        g.save()
        return GraphSpec(**g.spec())


def _gelu_tanh(g: GraphBuilder, x: str) -> str:
    """`x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`"""
    cubic = g.op("Mul", g.op("Mul", g.op("Mul", x, x), x), g.scalar(0.044715))
    turn = g.op("Tanh", g.op("Mul", g.op("Add", x, cubic), g.scalar(math.sqrt(2 / math.pi))))
    return g.op("Mul", g.op("Mul", x, g.scalar(0.5)), g.op("Add", turn, g.scalar(1.0)))
