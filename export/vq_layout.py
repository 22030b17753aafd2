"""The modules of LlamaGen's VQ tokenizers and the shapes of their tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .checkpoint import Shape


@dataclass(frozen=True)
class Level:
    """One resolution. width: its channels. blocks: residual blocks, with attention after each where `attention`.
    resample: up- or downsampling to the next level follows."""

    width: int
    blocks: int
    attention: bool
    resample: bool


def decoder_shapes(embed: int, z: int, levels: Sequence[Level]) -> dict[str, Shape]:
    """Every tensor from the codebook's vectors (width `embed`) to pixels; levels from the coarsest to the finest."""
    s = _Shapes()
    channels = levels[0].width
    s.conv("post_quant_conv", z, embed, 1)
    s.conv("decoder.conv_in", channels, z, 3)
    s.middle("decoder.mid", channels)
    for i, level in enumerate(levels):
        channels = s.level(f"decoder.conv_blocks.{i}", channels, level, "upsample")
    s.norm("decoder.norm_out", channels)
    s.conv("decoder.conv_out", 3, channels, 3)
    return s.shapes


def encoder_shapes(embed: int, z: int, levels: Sequence[Level]) -> dict[str, Shape]:
    """Every tensor from pixels to the vectors that are looked up; levels from the finest to the coarsest."""
    s = _Shapes()
    channels = levels[0].width
    s.conv("encoder.conv_in", channels, 3, 3)
    for i, level in enumerate(levels):
        channels = s.level(f"encoder.conv_blocks.{i}", channels, level, "downsample")
    s.middle("encoder.mid", channels)
    s.norm("encoder.norm_out", channels)
    s.conv("encoder.conv_out", z, channels, 3)
    s.conv("quant_conv", embed, z, 1)
    return s.shapes


class _Shapes:
    """Collects the tensors of modules, which are named as in the checkpoint."""

    def __init__(self) -> None:
        self.shapes: dict[str, Shape] = {}

    def level(self, name: str, channels: int, level: Level, resample: str) -> int:
        for i in range(level.blocks):
            self.residual(f"{name}.res.{i}", channels, level.width)
            channels = level.width
            if level.attention:
                self.attention(f"{name}.attn.{i}", channels)
        if level.resample:
            self.conv(f"{name}.{resample}.conv", channels, channels, 3)
        return channels

    def middle(self, name: str, channels: int) -> None:
        self.residual(f"{name}.0", channels, channels)
        self.attention(f"{name}.1", channels)
        self.residual(f"{name}.2", channels, channels)

    def residual(self, name: str, inner: int, out: int) -> None:
        for i, channels in ((1, inner), (2, out)):
            self.norm(f"{name}.norm{i}", channels)
            self.conv(f"{name}.conv{i}", out, channels, 3)
        if inner != out:
            self.conv(f"{name}.nin_shortcut", out, inner, 1)

    def attention(self, name: str, channels: int) -> None:
        self.norm(f"{name}.norm", channels)
        for part in ("q", "k", "v", "proj_out"):
            self.conv(f"{name}.{part}", channels, channels, 1)

    def norm(self, name: str, channels: int) -> None:
        self.shapes[f"{name}.weight"] = self.shapes[f"{name}.bias"] = (channels,)

    def conv(self, name: str, out: int, inner: int, size: int) -> None:
        self.shapes[f"{name}.weight"], self.shapes[f"{name}.bias"] = (out, inner, size, size), (out,)
