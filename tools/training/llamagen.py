"""LlamaGen's class-conditional target in torch (arXiv 2406.06525), with its checkpoint names, and a plain sampler."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

Cache = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class TargetConfig:
    """Shape of a target; the fields of the config.json beside its weights."""

    dim: int = 192
    n_layer: int = 12
    n_head: int = 6
    vocab_size: int = 512
    num_classes: int = 99
    block_size: int = 256
    cls_token_num: int = 1
    model_type: str = "c2i"
    hidden_dim_ffn: int = 512
    head_dim: int = 32
    norm_eps: float = 1e-5
    rope_base: float = 10000.0

    @property
    def grid_size(self) -> int:
        """Cells per row and per column of the picture."""
        return round(self.block_size**0.5)

    @classmethod
    def load(cls, folder: Path) -> TargetConfig:
        """Read config.json of `folder`; fields this class does not know are ignored."""
        fields = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        known = asdict(cls())
        return cls(**{k: v for k, v in fields.items() if k in known})


class Target(nn.Module):
    """Next-token model over [class, image token 0, image token 1, ...]; row k of the output predicts image token k."""

    def __init__(self, config: TargetConfig, dropout: float = 0.0) -> None:
        super().__init__()
        self.config = config
        self.cls_embedding = nn.Module()
        self.cls_embedding.embedding_table = nn.Embedding(config.num_classes + 1, config.dim)
        self.tok_embeddings = nn.Embedding(config.vocab_size, config.dim)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(Block(config, dropout) for _ in range(config.n_layer))
        self.norm = RMSNorm(config.dim, config.norm_eps)
        self.output = nn.Linear(config.dim, config.vocab_size, bias=False)
        table = rope_table(config.grid_size, config.head_dim, config.cls_token_num, base=config.rope_base)
        self.register_buffer("rope", table, persistent=False)
        _initialise(self, config.n_layer)
        nn.init.zeros_(self.output.weight)

    @property
    def null_class(self) -> int:
        """Class id of the unconditional branch."""
        return self.config.num_classes

    def forward(self, class_ids: Tensor | None, tokens: Tensor, cache: Cache | None = None) -> tuple[Tensor, Tensor]:
        """Logits float32 [B, S, V] and post-norm hidden [B, S, dim].

        class_ids int64 [B] starts the sequence (S = 1 + T); None continues one whose keys and values are in `cache`
        (S = T). tokens int64 [B, T], T >= 0. `cache` is a list, filled and extended in place, one (K, V) a layer.
        """
        start = cache[0][0].shape[2] if cache else 0
        x = self.tok_embeddings(tokens)
        if class_ids is not None:
            x = torch.cat([self.cls_embedding.embedding_table(class_ids).unsqueeze(1), x], dim=1)
        x = self.dropout(x)
        rope = self.rope[start : start + x.shape[1]]
        for i, layer in enumerate(self.layers):
            x = layer(x, rope, cache, i)
        hidden = self.norm(x)
        return self.output(hidden).float(), hidden

    @classmethod
    def load(cls, folder: Path) -> Target:
        """Read config.json and model.safetensors of `folder`."""
        return cls.from_tensors(TargetConfig.load(folder), load_file(folder / "model.safetensors"))

    @classmethod
    def from_tensors(cls, config: TargetConfig, tensors: dict[str, Tensor]) -> Target:
        """A target with the given weights; a stored `freqs_cis` is ignored."""
        model = cls(config)
        model.load_state_dict({k: v for k, v in tensors.items() if k != "freqs_cis"})
        return model.eval()


class RMSNorm(nn.Module):
    """Root-mean-square norm in float32, cast back to the input dtype, then times the weight."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        """[..., dim] -> same."""
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)).type_as(x) * self.weight


class Block(nn.Module):
    """Pre-norm Llama block: h = x + attention(norm(x)), y = h + ffn(norm(h))."""

    def __init__(self, config: TargetConfig, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.feed_forward = FeedForward(config)
        self.attention_norm = RMSNorm(config.dim, config.norm_eps)
        self.ffn_norm = RMSNorm(config.dim, config.norm_eps)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, rope: Tensor, cache: Cache | None, layer: int) -> Tensor:
        """[B, S, dim] -> same; rope is the table's rows of these S positions."""
        h = x + self.dropout(self.attention(self.attention_norm(x), rope, cache, layer))
        return h + self.dropout(self.feed_forward(self.ffn_norm(h)))


class Attention(nn.Module):
    """Causal multi-head attention; wqkv stacks the rows of Q, K and V."""

    def __init__(self, config: TargetConfig) -> None:
        super().__init__()
        self.n_head, self.head_dim = config.n_head, config.head_dim
        width = config.n_head * config.head_dim
        self.wqkv = nn.Linear(config.dim, 3 * width, bias=False)
        self.wo = nn.Linear(width, config.dim, bias=False)

    def forward(self, x: Tensor, rope: Tensor, cache: Cache | None, layer: int) -> Tensor:
        """[B, S, dim] -> same."""
        q, k, v = self.wqkv(x).unflatten(-1, (3, self.n_head, self.head_dim)).unbind(2)
        return self.wo(causal_attention(q, k, v, rope, cache, layer))


class FeedForward(nn.Module):
    """SwiGLU: w2(silu(w1 x) * w3 x)."""

    def __init__(self, config: TargetConfig) -> None:
        super().__init__()
        self.w1 = nn.Linear(config.dim, config.hidden_dim_ffn, bias=False)
        self.w3 = nn.Linear(config.dim, config.hidden_dim_ffn, bias=False)
        self.w2 = nn.Linear(config.hidden_dim_ffn, config.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., dim] -> same."""
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


def causal_attention(
    q: Tensor, k: Tensor, v: Tensor, rope: Tensor, cache: Cache | None = None, layer: int = 0
) -> Tensor:
    """RoPE, then causal attention over cached and new keys. q, k, v [B, S, heads, D] -> [B, S, heads*D]."""
    q, k = (apply_rope(t, rope).transpose(1, 2) for t in (q, k))
    v = v.transpose(1, 2)
    if cache is not None:
        if len(cache) > layer:
            k, v = torch.cat([cache[layer][0], k], 2), torch.cat([cache[layer][1], v], 2)
            cache[layer] = (k, v)
        else:
            cache.append((k, v))
    new, total = q.shape[2], k.shape[2]
    if new == total:
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    else:
        mask = torch.ones(new, total, dtype=torch.bool, device=q.device).tril(total - new)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return mixed.transpose(1, 2).flatten(2)


def rope_table(grid: int, head_dim: int, zero_rows: int, spare_rows: int = 0, base: float = 10000.0) -> Tensor:
    """2-D RoPE, float32 [zero_rows + grid*grid + spare_rows, head_dim/2, 2] of (cos, sin).

    The first half of the pairs turns with the row, the second with the column. Condition and spare rows are zero
    vectors, not the identity, as in LlamaGen: they blank q and k.
    """
    half = head_dim // 2
    frequency = base ** (-torch.arange(0, half, 2).float()[: half // 2] / half)
    angle = torch.arange(grid).float()[:, None] * frequency
    rows = angle[:, None].expand(grid, grid, half // 2)
    columns = angle[None].expand(grid, grid, half // 2)
    angles = torch.cat([rows, columns], -1).reshape(grid * grid, half)
    table = torch.stack([angles.cos(), angles.sin()], -1)
    return F.pad(table, (0, 0, 0, 0, zero_rows, spare_rows))


def apply_rope(x: Tensor, rope: Tensor) -> Tensor:
    """Turn the interleaved pairs of x [B, S, heads, D] by rope [S, D/2, 2], in float32."""
    a, b = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = rope[:, None, :, 0], rope[:, None, :, 1]
    return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2).type_as(x)


def guided(logits: Tensor, scale: float) -> Tensor:
    """Classifier-free guidance u + s (c - u) of logits [2B, ...] whose first half is conditional."""
    conditional, unconditional = logits.chunk(2)
    return unconditional + scale * (conditional - unconditional)


@torch.no_grad()
def sample(
    model: Target, class_ids: Tensor, cfg_scale: float, generator: torch.Generator, temperature: float = 1.0
) -> Tensor:
    """Draw image tokens int64 [B, block_size] one by one, for class_ids int64 [B]; no top-k, no top-p."""
    model.eval()
    both = torch.cat([class_ids, torch.full_like(class_ids, model.null_class)])
    cache: Cache = []
    logits, _ = model(both, both.new_empty(len(both), 0), cache)
    drawn: list[Tensor] = []
    while True:
        p = (guided(logits[:, -1], cfg_scale) / temperature).softmax(-1)
        drawn.append(torch.multinomial(p, 1, generator=generator))
        if len(drawn) == model.config.block_size:
            return torch.cat(drawn, 1)
        logits, _ = model(None, drawn[-1].repeat(2, 1), cache)


def _initialise(module: nn.Module, n_layer: int) -> None:
    for name, parameter in module.named_parameters():
        if parameter.ndim < 2:
            continue
        # Smaller residual projections keep the depth-n residual sum at the scale of one block (GPT-2).
        residual = name.endswith(("wo.weight", "w2.weight"))
        nn.init.normal_(parameter, std=0.02 / (2 * n_layer) ** 0.5 if residual else 0.02)
