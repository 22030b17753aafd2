"""The graph from text features to a target's embeddings: caption [B, slots, C] -> conditional [B, slots, H], and
unconditional [slots, H], which does not depend on the input."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ...engines.manifest import GraphSpec
from ..weights import CaptionWeights
from .activations import gelu_tanh
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
            g.op("MatMul", gelu_tanh(g, g.op("MatMul", features, fc1)), fc2, named=name)
        g.save()
        return GraphSpec(**g.spec())
