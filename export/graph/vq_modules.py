"""The modules that VQ encoders and decoders are made of."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..vq import VqTokenizer
from .builder import GraphBuilder

# Nothing in them needs more, and every TensorRT parses it.
OPSET = 18
GROUPS, GROUP_EPS = 32, 1e-6


class VqModules:
    """The modules, each on a value [B, C, H, W] and named as in the checkpoint."""

    def __init__(self, g: GraphBuilder, weights: VqTokenizer) -> None:
        self.g, self.weights = g, weights

    def middle(self, x: str, name: str) -> str:
        """Residual block, attention, residual block."""
        return self.residual(self.attention(self.residual(x, f"{name}.0"), f"{name}.1"), f"{name}.2")

    def level(self, x: str, name: str) -> str:
        """Residual blocks, attention after each where the level has it, then up- or downsampling where it has that."""
        self.g.scope(name)
        for i in range(self.weights.count(f"{name}.res")):
            x = self.residual(x, f"{name}.res.{i}")
            if self.weights.has(f"{name}.attn.{i}"):
                x = self.attention(x, f"{name}.attn.{i}")
        if self.weights.has(f"{name}.downsample"):
            # One zero to the right and below, none to the left and above.
            return self.conv(x, f"{name}.downsample.conv", pads=[0, 0, 1, 1], strides=[2, 2])
        if not self.weights.has(f"{name}.upsample"):
            return x
        scales = self.g.constant(np.array([1, 1, 2, 2], dtype=np.float32))
        doubled = self.g.op(
            "Resize", x, "", scales, mode="nearest", nearest_mode="floor", coordinate_transformation_mode="asymmetric"
        )
        return self.conv(doubled, f"{name}.upsample.conv")

    def finish(self, x: str, name: str, named: str | None = None) -> str:
        """GroupNorm - swish - conv, the end of either side."""
        return self.conv(self.swish(self.group_norm(x, f"{name}.norm_out")), f"{name}.conv_out", named=named)

    def residual(self, x: str, name: str) -> str:
        """GroupNorm - swish - conv, twice, plus the skip (a 1x1 conv where the width changes)."""
        h = self.conv(self.swish(self.group_norm(x, f"{name}.norm1")), f"{name}.conv1")
        h = self.conv(self.swish(self.group_norm(h, f"{name}.norm2")), f"{name}.conv2")
        skip = self.conv(x, f"{name}.nin_shortcut") if self.weights.has(f"{name}.nin_shortcut") else x
        return self.g.op("Add", skip, h)

    def attention(self, x: str, name: str) -> str:
        """One head over all cells, scale C^-0.5, residual."""
        g, channels = self.g, self.weights.tensor(f"{name}.norm.weight").shape[0]
        normed = self.group_norm(x, f"{name}.norm")
        q, k, v = (g.op("Reshape", self.conv(normed, f"{name}.{part}"), g.ints(0, channels, -1)) for part in "qkv")
        scores = g.op("MatMul", g.op("Transpose", q, perm=[0, 2, 1]), k)
        weights = g.op("Softmax", g.op("Mul", scores, g.scalar(channels**-0.5)), axis=-1)
        mixed = g.op("MatMul", v, g.op("Transpose", weights, perm=[0, 2, 1]))
        mixed = g.op("Reshape", mixed, g.op("Shape", x))
        return g.op("Add", x, self.conv(mixed, f"{name}.proj_out"))

    def group_norm(self, x: str, name: str) -> str:
        """32 groups; as instance normalisation of the groups, which old and new parsers understand alike."""
        g, ones = self.g, np.ones(GROUPS, dtype=np.float32)
        weight, bias = (self.weights.tensor(f"{name}.{part}").astype(np.float32) for part in ("weight", "bias"))
        groups = g.op("Reshape", x, g.ints(0, GROUPS, -1))
        normed = g.op("InstanceNormalization", groups, g.constant(ones), g.constant(0 * ones), epsilon=GROUP_EPS)
        normed = g.op("Reshape", normed, g.op("Shape", x))
        scaled = g.op("Mul", normed, g.weight(f"{name}.weight", weight[:, None, None]))
        return g.op("Add", scaled, g.weight(f"{name}.bias", bias[:, None, None]))

    def swish(self, x: str) -> str:
        return self.g.op("Mul", x, self.g.op("Sigmoid", x))

    def conv(self, x: str, name: str, named: str | None = None, **attributes: Any) -> str:
        """3x3 with padding 1, or 1x1; stride 1 unless the attributes say otherwise."""
        weight = self.weights.tensor(f"{name}.weight").astype(np.float32)
        bias = self.weights.tensor(f"{name}.bias").astype(np.float32)
        w, b = self.g.weight(f"{name}.weight", weight), self.g.weight(f"{name}.bias", bias)
        attributes = {"pads": [weight.shape[-1] // 2] * 4, **attributes}
        return self.g.op("Conv", x, w, b, named=named, **attributes)
