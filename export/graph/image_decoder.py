"""The image decoder's graph: codes [B, rows * columns] int64 -> pixels [B, 3, height, width] float32, not clamped."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ...engines.manifest import ImageDecoderSpec
from ..vq import VqTokenizer
from .builder import GraphBuilder
from .vq_modules import OPSET, VqModules

DECODER = "decoder"


def write_image_decoder(path: Path, weights: VqTokenizer, grid: tuple[int, int]) -> ImageDecoderSpec:
    """Write the decoder to `path` (+ `.data`); codebook rows are L2-normalised here, once."""
    levels = weights.count(f"{DECODER}.conv_blocks")
    upsamples = sum(weights.has(f"{DECODER}.conv_blocks.{i}.upsample") for i in range(levels))
    height, width = (side * 2**upsamples for side in grid)
    with GraphBuilder(path, OPSET) as g:
        net = VqModules(g, weights)
        codes = g.input("codes", np.int64, ("batch", grid[0] * grid[1]))
        g.output("pixels", np.float32, ("batch", 3, height, width))
        codebook = weights.codebook()
        vectors = g.op("Gather", g.weight("codebook", codebook), codes)
        x = g.op("Reshape", g.op("Transpose", vectors, perm=[0, 2, 1]), g.ints(0, codebook.shape[1], *grid))
        x = net.conv(net.conv(x, "post_quant_conv"), f"{DECODER}.conv_in")
        x = net.middle(x, f"{DECODER}.mid")
        for level in range(levels):
            x = net.level(x, f"{DECODER}.conv_blocks.{level}")
        net.finish(x, DECODER, named="pixels")
        g.save()
        return ImageDecoderSpec(image_size=(height, width), **g.spec())
