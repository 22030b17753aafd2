"""The EAGLE-1 draft (arXiv 2401.15077) in torch, in the checkpoint format of LANTERN's drafters (arXiv 2410.03355)."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from .llamagen import RMSNorm, causal_attention, rope_table

SPARE_ROWS = 20


@dataclass(frozen=True)
class DraftConfig:
    """Shape of a draft; the fields of LANTERN's config.json that matter, plus the grid.

    zero_rows is the number of blank RoPE rows before the grid: 0 for c2i (index j = feature of sequence position j with
    image token j, at grid cell j), 119 for a 120-token text condition.
    """

    hidden_size: int = 192
    intermediate_size: int = 512
    num_attention_heads: int = 6
    num_hidden_layers: int = 1
    vocab_size: int = 512
    rms_norm_eps: float = 1e-6
    grid_size: int = 16
    zero_rows: int = 0

    @classmethod
    def load(cls, folder: Path) -> DraftConfig:
        """Read config.json of `folder`; fields this class does not know are ignored."""
        fields = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        known = asdict(cls())
        return cls(**{k: v for k, v in fields.items() if k in known})


class Draft(nn.Module):
    """Predicts the target's next post-norm feature: fc([token embedding, feature]), then one Llama block.

    The block has no input norm and no final norm follows; the caller applies the target's output matrix.
    """

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size)
        self.layers = nn.ModuleList([DraftBlock(config)])
        head_dim = config.hidden_size // config.num_attention_heads
        table = rope_table(config.grid_size, head_dim, config.zero_rows, SPARE_ROWS)
        self.register_buffer("rope", table, persistent=False)

    def forward(self, features: Tensor, token_ids: Tensor) -> Tensor:
        """Predicted features [B, T, hidden]: row j predicts the target's feature at position j + 1.

        features [B, T, hidden]: the target's post-norm hidden at positions 0..T-1 (0 = class token);
        token_ids int64 [B, T]: the tokens that follow them, image tokens 0..T-1.
        """
        x = self.fc(torch.cat([self.embed_tokens(token_ids), features], -1))
        for layer in self.layers:
            x = layer(x, self.rope[: x.shape[1]])
        return x

    @classmethod
    def load(cls, folder: Path) -> Draft:
        """Read config.json and model.safetensors of `folder`."""
        return cls.from_tensors(DraftConfig.load(folder), load_file(folder / "model.safetensors"))

    @classmethod
    def from_tensors(cls, config: DraftConfig, tensors: dict[str, Tensor]) -> Draft:
        """A draft with the given weights."""
        model = cls(config)
        model.load_state_dict(tensors)
        return model.eval()


class DraftBlock(nn.Module):
    """Llama block without input norm: h = x + attention(x), y = h + mlp(post_attention_layernorm(h))."""

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        self.self_attn = DraftAttention(config)
        self.mlp = DraftMlp(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, rope: Tensor) -> Tensor:
        """[B, T, hidden] -> same."""
        h = x + self.self_attn(x, rope)
        return h + self.mlp(self.post_attention_layernorm(h))


class DraftAttention(nn.Module):
    """Causal multi-head attention with separate projections."""

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        self.heads = config.num_attention_heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            nn.Linear(config.hidden_size, config.hidden_size, bias=False) for _ in range(4)
        )

    def forward(self, x: Tensor, rope: Tensor) -> Tensor:
        """[B, T, hidden] -> same."""
        q, k, v = (proj(x).unflatten(-1, (self.heads, -1)) for proj in (self.q_proj, self.k_proj, self.v_proj))
        return self.o_proj(causal_attention(q, k, v, rope))


class DraftMlp(nn.Module):
    """SwiGLU: down(silu(gate x) * up x)."""

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden] -> same."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
