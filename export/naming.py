"""How checkpoints name the tensors of a Llama block: LlamaGen's own names, and those of Hugging Face ports."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .checkpoint import Checkpoint, Shape
from .weights import LayerWeights, TransformerShape


@dataclass(frozen=True)
class BlockNames:
    """Tensor names of one block, without the prefix and ".weight". qkv: one fused matrix, or three."""

    qkv: tuple[str, ...]
    o: str
    gate: str
    up: str
    down: str
    attention_norm: str
    ffn_norm: str

    def shapes(self, prefix: str, s: TransformerShape, input_norm: bool = True) -> dict[str, Shape]:
        """Every tensor of a block, with its shape."""
        kv = s.kv_heads * s.head_dim
        rows = (s.hidden + 2 * kv,) if len(self.qkv) == 1 else (s.hidden, kv, kv)
        expected: dict[str, Shape] = {name: (n, s.hidden) for name, n in zip(self.qkv, rows, strict=True)}
        expected |= {
            self.o: (s.hidden, s.hidden),
            self.gate: (s.ffn, s.hidden),
            self.up: (s.ffn, s.hidden),
            self.down: (s.hidden, s.ffn),
            self.ffn_norm: (s.hidden,),
        }
        if input_norm:
            expected[self.attention_norm] = (s.hidden,)
        return {f"{prefix}{name}.weight": shape for name, shape in expected.items()}

    def read(self, checkpoint: Checkpoint, prefix: str, s: TransformerShape, input_norm: bool = True) -> LayerWeights:
        """Read one block. Raises: InputError for a tensor that is not finite."""
        qkv = [checkpoint.tensor(f"{prefix}{name}.weight") for name in self.qkv]
        q, k, v = qkv if len(qkv) == 3 else np.split(qkv[0], [s.hidden, s.hidden + s.kv_heads * s.head_dim])
        norm = checkpoint.tensor(f"{prefix}{self.attention_norm}.weight") if input_norm else None
        names = {"o": self.o, "gate": self.gate, "up": self.up, "down": self.down, "ffn_norm": self.ffn_norm}
        others = {field: checkpoint.tensor(f"{prefix}{name}.weight") for field, name in names.items()}
        return LayerWeights(q=q, k=k, v=v, attention_norm=norm, **others)


@dataclass(frozen=True)
class TargetNames:
    """Tensor names of a target. condition: prefix of the class or caption embedding. layers: prefix of the blocks."""

    token_embedding: str
    condition: str
    layers: str
    block: BlockNames
    final_norm: str
    head: str


LLAMAGEN_BLOCK = BlockNames(
    qkv=("attention.wqkv",),
    o="attention.wo",
    gate="feed_forward.w1",
    up="feed_forward.w3",
    down="feed_forward.w2",
    attention_norm="attention_norm",
    ffn_norm="ffn_norm",
)
HF_BLOCK = BlockNames(
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    o="self_attn.o_proj",
    gate="mlp.gate_proj",
    up="mlp.up_proj",
    down="mlp.down_proj",
    attention_norm="input_layernorm",
    ffn_norm="post_attention_layernorm",
)
LLAMAGEN = TargetNames(
    token_embedding="tok_embeddings.weight",
    condition="cls_embedding.",
    layers="layers.",
    block=LLAMAGEN_BLOCK,
    final_norm="norm.weight",
    head="output.weight",
)
HF = TargetNames(
    token_embedding="model.embed_tokens.weight",
    condition="model.cls_embedding.",
    layers="model.layers.",
    block=HF_BLOCK,
    final_norm="model.norm.weight",
    head="lm_head.weight",
)


def count_layers(checkpoint: Checkpoint, prefix: str) -> int:
    """How many blocks `prefix`0, `prefix`1, ... the checkpoint names."""
    numbers = {name[len(prefix) :].split(".")[0] for name in checkpoint.shapes if name.startswith(prefix)}
    # No model has a fifth digit; such a name is nobody's, and not a reason to expect as many blocks.
    return 1 + max((int(number) for number in numbers if number.isdecimal() and len(number) < 5), default=-1)
