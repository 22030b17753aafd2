"""The draft's graph. in, out: as the target's, with features [B, S, H]."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ...engines.manifest import LoweringName, TransformerSpec
from ..weights import Array, DraftWeights
from .attention import LOWERINGS
from .builder import GraphBuilder
from .draft_chain import write_chains, write_gpu_chains
from .draft_layers import DraftLayers
from .precision import FP32, Precision
from .transformer import Stack, logits


def write_draft(
    path: Path,
    weights: DraftWeights,
    head: Array,
    max_draft_length: int,
    lowering: LoweringName,
    precision: Precision = FP32,
) -> TransformerSpec:
    """Write the draft to `path` (+ `.data`). hidden is the predicted feature; logits are the target's head on it.

    Position j of the draft carries the feature of sequence position j and the token after it, hence one zero row less
    than the target and one spare row more.
    """
    shape = weights.shape
    with GraphBuilder(path, LOWERINGS[lowering].opset, precision) as g:
        stack = Stack(g, shape, lowering, max_draft_length + 1)
        features = g.narrow(g.input("features", np.float32, ("batch", "tokens", shape.hidden)))
        layers = DraftLayers(weights)
        x = layers.apply(g, stack.input_ids, features, stack.attend)
        g.scope("head")
        g.widen(x, named="hidden")
        logits(g, x, head, named="logits")
        chains, gpu_chains = (
            write(g, layers, head, stack.tables, lowering, max_draft_length)
            for write in (write_chains, write_gpu_chains)
        )
        return stack.finish(chains, gpu_chains)
