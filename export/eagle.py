"""EAGLE-1 drafts in the format of LANTERN's LlamaGen drafters."""

from __future__ import annotations

from ..runtime.errors import InputError
from .checkpoint import Checkpoint, Shape
from .weights import Array, LayerWeights, TransformerShape

NORM_EPS = 1e-6
# One row less than the target's condition: the draft's positions are shifted by one.
ZERO_ROWS = {"c2i": 0, "t2i": 119, "t2i2": 119}


class EagleDraft:
    """`DraftWeights` of a drafter for the target of the given shape.

    Quirks of the format: the embedding comes first in the concat, layer 0 has no input norm, there is no final norm
    and no head. Raises: InputError when tensors are missing, or made for another target.
    """

    def __init__(self, checkpoint: Checkpoint, target: TransformerShape) -> None:
        self._checkpoint = checkpoint
        config, shapes = checkpoint.config, checkpoint.shapes
        checkpoint.require({name: shapes.get(name, ()) for name in _ALWAYS}, "EAGLE draft")
        vocab, hidden = shapes["embed_tokens.weight"]
        if (vocab, hidden) != (target.vocab, target.hidden):
            raise InputError(
                f"{checkpoint.path}: the draft is for a target of width {hidden} and {vocab} tokens; this target has "
                f"width {target.hidden} and {target.vocab} tokens. Use the draft that was trained for it."
            )
        input_type = str(config.get("input_type", "c2i"))
        if input_type not in ZERO_ROWS:
            raise InputError(
                f"{checkpoint.path}: config.json has input_type {input_type!r}. Expected {list(ZERO_ROWS)}."
            )
        self.zero_rows = ZERO_ROWS[input_type]
        heads = int(config.get("num_attention_heads", target.heads))
        head_dim = hidden // heads
        self.shape = TransformerShape(
            layers=1 + max(int(name.split(".")[1]) for name in shapes if name.startswith("layers.")),
            heads=heads,
            kv_heads=shapes["layers.0.self_attn.k_proj.weight"][0] // head_dim,
            head_dim=head_dim,
            hidden=hidden,
            ffn=shapes["layers.0.mlp.gate_proj.weight"][0],
            vocab=vocab,
            grid=target.grid,
            norm_eps=float(config.get("rms_norm_eps", NORM_EPS)),
        )
        checkpoint.require(self._expected(), "EAGLE draft")

    def token_embedding(self) -> Array:
        return self._checkpoint.tensor("embed_tokens.weight")

    def fc(self) -> tuple[Array, Array | None]:
        bias = self._checkpoint.tensor("fc.bias") if "fc.bias" in self._checkpoint.shapes else None
        return self._checkpoint.tensor("fc.weight"), bias

    def layer(self, index: int) -> LayerWeights:
        def get(name: str) -> Array:
            return self._checkpoint.tensor(f"layers.{index}.{name}.weight")

        return LayerWeights(
            q=get("self_attn.q_proj"),
            k=get("self_attn.k_proj"),
            v=get("self_attn.v_proj"),
            o=get("self_attn.o_proj"),
            gate=get("mlp.gate_proj"),
            up=get("mlp.up_proj"),
            down=get("mlp.down_proj"),
            attention_norm=get("input_layernorm") if index else None,
            ffn_norm=get("post_attention_layernorm"),
        )

    def _expected(self) -> dict[str, Shape]:
        s = self.shape
        expected: dict[str, Shape] = {
            "embed_tokens.weight": (s.vocab, s.hidden),
            "fc.weight": (s.hidden, 2 * s.hidden),
        }
        if self._checkpoint.config.get("bias", True):
            expected["fc.bias"] = (s.hidden,)
        for i in range(s.layers):
            prefix = f"layers.{i}"
            expected |= {
                f"{prefix}.self_attn.q_proj.weight": (s.hidden, s.hidden),
                f"{prefix}.self_attn.k_proj.weight": (s.kv_heads * s.head_dim, s.hidden),
                f"{prefix}.self_attn.v_proj.weight": (s.kv_heads * s.head_dim, s.hidden),
                f"{prefix}.self_attn.o_proj.weight": (s.hidden, s.hidden),
                f"{prefix}.mlp.gate_proj.weight": (s.ffn, s.hidden),
                f"{prefix}.mlp.up_proj.weight": (s.ffn, s.hidden),
                f"{prefix}.mlp.down_proj.weight": (s.hidden, s.ffn),
                f"{prefix}.post_attention_layernorm.weight": (s.hidden,),
            }
            if i:
                expected[f"{prefix}.input_layernorm.weight"] = (s.hidden,)
        return expected


_ALWAYS = (
    "embed_tokens.weight",
    "fc.weight",
    "layers.0.self_attn.k_proj.weight",
    "layers.0.mlp.gate_proj.weight",
)
