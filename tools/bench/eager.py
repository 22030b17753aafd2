"""The baseline: LlamaGen's sampler as its authors run it (arXiv 2406.06525), eager torch with static KV caches.

Written from the paper's description of the released sampler: per layer one fused QKV product, RoPE on interleaved
pairs in float32, keys and values written into a static cache by index, SDPA over the whole cache under a causal mask.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..training.llamagen import apply_rope, rope_table

NORM_EPS = 1e-5


class EagerTarget:
    """A class-conditional LlamaGen on the CPU in float32."""

    def __init__(self, tensor: Callable[[str], Any], layers: int, heads: int, grid: int, rows: int) -> None:
        """tensor: official name -> array. rows: sequences that the caches are for."""
        self.heads, self.layers = heads, [_Layer.read(tensor, f"layers.{i}.") for i in range(layers)]
        self.embedding = torch.from_numpy(tensor("tok_embeddings.weight"))
        self.norm = torch.from_numpy(tensor("norm.weight"))
        self.output = torch.from_numpy(tensor("output.weight"))
        self.head_dim = self.embedding.shape[1] // heads
        length = -(-(1 + grid**2) // 8) * 8  # the authors round the cache up to a multiple of 8
        self.rope = rope_table(grid, self.head_dim, 1)
        self.mask = torch.ones(length, length, dtype=torch.bool).tril()
        shape = (rows, heads, length, self.head_dim)
        self.caches = [(torch.zeros(shape), torch.zeros(shape)) for _ in range(layers)]

    @torch.inference_mode()
    def step(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Logits float32 [rows, S, V] of image tokens ids [rows, S] at positions [S], which end up in the caches."""
        x = F.embedding(ids, self.embedding)
        rope, mask = self.rope[positions], self.mask[None, None, positions]
        for layer, cache in zip(self.layers, self.caches, strict=True):
            x = x + self._attention(layer, rms_norm(x, layer.attention_norm), rope, mask, positions, cache)
            normed = rms_norm(x, layer.ffn_norm)
            x = x + F.linear(F.silu(F.linear(normed, layer.w1)) * F.linear(normed, layer.w3), layer.w2)
        return F.linear(rms_norm(x, self.norm), self.output)

    def _attention(
        self, layer: _Layer, x: Tensor, rope: Tensor, mask: Tensor, positions: Tensor, cache: tuple[Tensor, Tensor]
    ) -> Tensor:
        q, k, v = F.linear(x, layer.wqkv).unflatten(-1, (3, self.heads, self.head_dim)).unbind(2)
        q, k = apply_rope(q, rope).transpose(1, 2), apply_rope(k, rope).transpose(1, 2)
        keys, values = cache
        keys[:, :, positions] = k
        values[:, :, positions] = v.transpose(1, 2)
        mixed = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        return F.linear(mixed.transpose(1, 2).flatten(2), layer.wo)


@dataclass(frozen=True)
class _Layer:
    attention_norm: Tensor
    wqkv: Tensor
    wo: Tensor
    ffn_norm: Tensor
    w1: Tensor
    w2: Tensor
    w3: Tensor

    @classmethod
    def read(cls, tensor: Callable[[str], Any], prefix: str) -> _Layer:
        attention, ffn = f"{prefix}attention.", f"{prefix}feed_forward."
        names = [f"{prefix}attention_norm", f"{attention}wqkv", f"{attention}wo"]
        names += [f"{prefix}ffn_norm", f"{ffn}w1", f"{ffn}w2", f"{ffn}w3"]
        return cls(*(torch.from_numpy(tensor(f"{name}.weight")) for name in names))


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """[..., H] -> same."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + NORM_EPS) * weight


@torch.inference_mode()
def sample(logits: Tensor, scale: float, temperature: float, top_k: int) -> Tensor:
    """One token [N, 1] of logits [2N, V], the conditional half first: guidance, temperature, top-k, multinomial."""
    conditional, unconditional = logits.chunk(2)
    guided = (unconditional + (conditional - unconditional) * scale) / temperature
    if top_k:
        guided[guided < guided.topk(min(top_k, guided.shape[-1]))[0][..., -1, None]] = -torch.inf
    return torch.multinomial(guided.softmax(-1), 1)
