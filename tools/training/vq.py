"""The VQ image tokenizer in torch: LlamaGen's VQ-16 family (arXiv 2406.06525), with its checkpoint names."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

_GROUPS, _GROUP_EPS = 32, 1e-6


@dataclass(frozen=True)
class VqConfig:
    """Shape of a tokenizer. Images shrink by 2 per level but the last: downsampling is 2**(len(ch_mult) - 1)."""

    base_width: int = 32
    ch_mult: tuple[int, ...] = (1, 1, 2)
    z_channels: int = 64
    codebook_size: int = 512
    embed_dim: int = 8

    @property
    def downsampling(self) -> int:
        """Pixels per grid cell, in each direction."""
        return 2 ** (len(self.ch_mult) - 1)


class VqTokenizer(nn.Module):
    """Images in [-1, 1], float32 [B, 3, H, W]  <->  codes int64 [B, h*w] in raster order.

    Encoder vectors and codebook rows are compared after L2 normalisation (eps 1e-12).
    """

    def __init__(self, config: VqConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        self.quant_conv = nn.Conv2d(config.z_channels, config.embed_dim, 1)
        self.quantize = nn.Module()
        self.quantize.embedding = nn.Embedding(config.codebook_size, config.embed_dim)
        self.post_quant_conv = nn.Conv2d(config.embed_dim, config.z_channels, 1)
        self.decoder = Decoder(config)
        nn.init.normal_(self.quantize.embedding.weight)

    @property
    def codebook(self) -> Tensor:
        """Unit-length codebook rows, [V, embed_dim]."""
        return F.normalize(self.quantize.embedding.weight, dim=1, eps=1e-12)

    def embed(self, image: Tensor) -> Tensor:
        """Unit-length encoder vectors [B, embed_dim, h, w] of images [B, 3, H, W]."""
        return F.normalize(self.quant_conv(self.encoder(image)).float(), dim=1, eps=1e-12)

    def nearest(self, vectors: Tensor) -> Tensor:
        """Codes [B, h*w] of unit vectors [B, embed_dim, h, w]: the codebook row with the largest cosine."""
        return (vectors.flatten(2).transpose(1, 2) @ self.codebook.T).argmax(-1)

    def encode(self, image: Tensor) -> Tensor:
        """Codes int64 [B, h*w] of images [B, 3, H, W]."""
        return self.nearest(self.embed(image))

    def look_up(self, codes: Tensor, width: int | None = None) -> Tensor:
        """Codebook vectors [B, embed_dim, h, w] of codes [B, h*w]; the grid is square unless `width` is given."""
        width = width or round(codes.shape[1] ** 0.5)
        return self.codebook[codes].transpose(1, 2).unflatten(2, (-1, width))

    def decode(self, codes: Tensor, width: int | None = None) -> Tensor:
        """Images [B, 3, H, W], not clamped, of codes [B, h*w]."""
        return self.decode_vectors(self.look_up(codes, width))

    def decode_vectors(self, vectors: Tensor) -> Tensor:
        """Images [B, 3, H, W], not clamped, of quantised vectors [B, embed_dim, h, w]."""
        return self.decoder(self.post_quant_conv(vectors))

    def forward(self, image: Tensor, quantised: bool = True) -> tuple[Tensor, Tensor, Tensor]:
        """Training pass: (reconstruction, encoder vectors, codes), gradients passed straight through the look-up.

        quantised=False decodes the encoder vectors themselves.
        """
        vectors = self.embed(image)
        codes = self.nearest(vectors.detach())
        chosen = self.look_up(codes, vectors.shape[3]) if quantised else vectors
        return self.decode_vectors(vectors + (chosen - vectors).detach()), vectors, codes

    @classmethod
    def load(cls, folder: Path) -> VqTokenizer:
        """Read config.json and model.safetensors of `folder`."""
        fields = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        known = {k: v for k, v in fields.items() if k in asdict(VqConfig())}
        config = VqConfig(**{**known, "ch_mult": tuple(known["ch_mult"])})
        return cls.from_tensors(config, load_file(folder / "model.safetensors"))

    @classmethod
    def from_tensors(cls, config: VqConfig, tensors: dict[str, Tensor]) -> VqTokenizer:
        """A tokenizer with the given weights; the released usage buffer `quantize.codebook_used` is ignored."""
        model = cls(config)
        model.load_state_dict({k: v for k, v in tensors.items() if k in model.state_dict()})
        return model.eval()


class Encoder(nn.Module):
    """Image [B, 3, H, W] to latent [B, z_channels, h, w]; attention only at the coarsest level."""

    def __init__(self, config: VqConfig) -> None:
        super().__init__()
        widths = [config.base_width * m for m in config.ch_mult]
        self.conv_in = nn.Conv2d(3, config.base_width, 3, padding=1)
        self.conv_blocks = nn.ModuleList()
        width = config.base_width
        for level, out in enumerate(widths):
            last = level == len(widths) - 1
            self.conv_blocks.append(_level(width, out, blocks=2, attention=last, down=not last))
            width = out
        self.mid = _middle(width)
        self.norm_out = _norm(width)
        self.conv_out = nn.Conv2d(width, config.z_channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Latent before quant_conv."""
        x = self.conv_in(x)
        for block in self.conv_blocks:
            x = _run_level(block, x)
        for part in self.mid:
            x = part(x)
        return self.conv_out(F.silu(self.norm_out(x)))


class Decoder(nn.Module):
    """Latent [B, z_channels, h, w] to image [B, 3, H, W]; levels run from the coarsest to the finest."""

    def __init__(self, config: VqConfig) -> None:
        super().__init__()
        widths = [config.base_width * m for m in reversed(config.ch_mult)]
        width = widths[0]
        self.conv_in = nn.Conv2d(config.z_channels, width, 3, padding=1)
        self.mid = _middle(width)
        self.conv_blocks = nn.ModuleList()
        for level, out in enumerate(widths):
            last = level == len(widths) - 1
            self.conv_blocks.append(_level(width, out, blocks=3, attention=level == 0, up=not last))
            width = out
        self.norm_out = _norm(width)
        self.conv_out = nn.Conv2d(width, 3, 3, padding=1)
        if width == _GROUPS:
            _mark_borders(self.conv_blocks[-1].res[0])
            nn.init.ones_(self.conv_out.bias)

    def forward(self, z: Tensor) -> Tensor:
        """Image, not clamped."""
        x = self.conv_in(z)
        for part in self.mid:
            x = part(x)
        for block in self.conv_blocks:
            x = _run_level(block, x)
        return self.conv_out(F.silu(self.norm_out(x)))


class ResidualBlock(nn.Module):
    """GroupNorm, swish, conv, twice, plus the skip (1x1 conv when the width changes)."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = _norm(width), nn.Conv2d(width, out, 3, padding=1)
        self.norm2, self.conv2 = _norm(out), nn.Conv2d(out, out, 3, padding=1)
        if width != out:
            self.nin_shortcut = nn.Conv2d(width, out, 1)
        _silence(self.conv2)

    def forward(self, x: Tensor) -> Tensor:
        """[B, width, H, W] -> [B, out, H, W]."""
        h = self.conv1(F.silu(self.norm1(x)))
        h = self.conv2(F.silu(self.norm2(h)))
        return h + (self.nin_shortcut(x) if hasattr(self, "nin_shortcut") else x)


class AttentionBlock(nn.Module):
    """Single-head self-attention over all pixels, scale width**-0.5, plus the skip."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = _norm(width)
        self.q, self.k, self.v, self.proj_out = (nn.Conv2d(width, width, 1) for _ in range(4))
        _silence(self.proj_out)

    def forward(self, x: Tensor) -> Tensor:
        """[B, width, H, W] -> same."""
        h = self.norm(x)
        q, k, v = (conv(h).flatten(2).transpose(1, 2).unsqueeze(1) for conv in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(q, k, v).squeeze(1).transpose(1, 2)
        return x + self.proj_out(mixed.reshape(x.shape))


class Downsample(nn.Module):
    """Halve height and width: one zero row and column at the right and bottom, then 3x3 stride 2."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        """[B, width, H, W] -> [B, width, H/2, W/2]."""
        return self.conv(F.pad(x, (0, 1, 0, 1)))


class Upsample(nn.Module):
    """Double height and width: nearest neighbour, then 3x3."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """[B, width, H, W] -> [B, width, 2H, 2W]."""
        return self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))


def _level(width: int, out: int, *, blocks: int, attention: bool, down: bool = False, up: bool = False) -> nn.Module:
    level = nn.Module()
    level.res = nn.ModuleList(ResidualBlock(width if i == 0 else out, out) for i in range(blocks))
    level.attn = nn.ModuleList(AttentionBlock(out) for _ in range(blocks if attention else 0))
    if down:
        level.downsample = Downsample(out)
    if up:
        level.upsample = Upsample(out)
    return level


def _run_level(level: nn.Module, x: Tensor) -> Tensor:
    for i, block in enumerate(level.res):
        x = block(x)
        if len(level.attn):
            x = level.attn[i](x)
    for name in ("downsample", "upsample"):
        if hasattr(level, name):
            x = getattr(level, name)(x)
    return x


def _middle(width: int) -> nn.ModuleList:
    return nn.ModuleList([ResidualBlock(width, width), AttentionBlock(width), ResidualBlock(width, width)])


def _silence(conv: nn.Conv2d) -> None:
    # Blocks that start as the identity train far faster, and let colours through from the first step.
    nn.init.zeros_(conv.weight)
    nn.init.zeros_(conv.bias)


def _mark_borders(block: ResidualBlock, depth: float = 8.0) -> None:
    """Make the block subtract `depth` from all channels at the picture's border, and nowhere else.

    With one channel a group, GroupNorm rescales every channel of every picture by itself: a green and a purple disc on
    white become the same. A constant pattern that dominates the variance keeps the scale, hence the colours. Zero
    padding gives the pattern away: a constant input channel sums to 9 weights inside, to 6 along an edge.
    """
    with torch.no_grad():
        block.norm2.weight[0], block.norm2.bias[0] = 0.0, 1.0
        weight = depth / (3 * F.silu(torch.tensor(1.0)))
        block.conv2.weight[:, 0] = weight
        block.conv2.bias.fill_(-3 * depth)


def _norm(width: int) -> nn.GroupNorm:
    return nn.GroupNorm(_GROUPS, width, eps=_GROUP_EPS)


def to_uint8(image: Tensor) -> Tensor:
    """[..., 3, H, W] in [-1, 1] to uint8 by LlamaGen's demo rule: clamp, map linearly, floor(255 x + 0.5)."""
    return ((image.clamp(-1, 1) + 1) / 2 * 255 + 0.5).floor().to(torch.uint8)


def from_uint8(image: Tensor) -> Tensor:
    """uint8 [B, H, W, 3] to float32 [B, 3, H, W] in [-1, 1]."""
    return image.permute(0, 3, 1, 2).float() / 127.5 - 1
