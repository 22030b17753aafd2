"""The image encoder's graph: pixels [B, 3, height, width] float32 in [-1, 1] -> codes [B, rows * columns] int64."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ...engines.manifest import GraphSpec
from ..vq import VqTokenizer
from .builder import GraphBuilder
from .vq_modules import OPSET, VqModules

ENCODER = "encoder"


def write_image_encoder(path: Path, weights: VqTokenizer) -> GraphSpec:
    """Write the encoder to `path` (+ `.data`). It takes any size that its downsamplings divide."""
    with GraphBuilder(path, OPSET) as g:
        net = VqModules(g, weights)
        pixels = g.input("pixels", np.float32, ("batch", 3, "height", "width"))
        g.output("codes", np.int64, ("batch", "cells"))
        x = net.conv(pixels, f"{ENCODER}.conv_in")
        for level in range(weights.count(f"{ENCODER}.conv_blocks")):
            x = net.level(x, f"{ENCODER}.conv_blocks.{level}")
        x = net.finish(net.middle(x, f"{ENCODER}.mid"), ENCODER)
        x = net.conv(x, "quant_conv")
        codebook = weights.codebook()
        cells = g.op("Transpose", g.op("Reshape", x, g.ints(0, codebook.shape[1], -1)), perm=[0, 2, 1])
        # The nearest unit vector has the largest dot product, whatever the cell's own length.
        similarity = g.op("MatMul", cells, g.weight("codebook", codebook.T))
        g.op("ArgMax", similarity, axis=-1, keepdims=0, named="codes")
        g.save()
        return GraphSpec(**g.spec())
