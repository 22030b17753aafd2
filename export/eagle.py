"""EAGLE-1 drafts in the format of LANTERN's LlamaGen drafters."""

from __future__ import annotations

import math
from dataclasses import replace

from ..runtime.errors import InputError
from .checkpoint import Checkpoint, Shape
from .config_file import DraftConfig, read_config
from .naming import HF_BLOCK, count_layers
from .weights import Array, LayerWeights, TransformerShape

# Zero RoPE rows: one less than the target's condition has, since the draft's positions are shifted by one.
ZERO_ROWS = {"c2i": 0, "t2i": 119, "t2i2": 119}
LAYERS = "layers."


class EagleDraft:
    """`DraftWeights` of a drafter for the target of the given shape.

    Quirks of the format: the embedding comes first in the concat, layer 0 has no input norm, there is no final norm
    and no head. Raises: InputError when tensors are missing, or made for another target.
    """

    def __init__(self, checkpoint: Checkpoint, target: TransformerShape) -> None:
        self._checkpoint = checkpoint
        shapes = checkpoint.shapes
        checkpoint.require_dimensions(dict.fromkeys(_ALWAYS, 2), "EAGLE draft")
        config = read_config(DraftConfig, checkpoint)
        vocab, hidden = shapes["embed_tokens.weight"]
        if (vocab, hidden) != (target.vocab, target.hidden):
            raise InputError(
                f"{checkpoint.path}: the draft is for a target of width {hidden} and {vocab} tokens; this target has "
                f"width {target.hidden} and {target.vocab} tokens. Use the draft that was trained for it."
            )
        heads = config.heads or target.heads
        if hidden % heads or hidden // heads % 2:
            raise InputError(f"{checkpoint.path}: width {hidden} does not divide into {heads} heads of even width.")
        head_dim = hidden // heads
        self.shape = replace(
            target,
            layers=count_layers(checkpoint, LAYERS),
            heads=heads,
            kv_heads=shapes["layers.0.self_attn.k_proj.weight"][0] // head_dim,
            head_dim=head_dim,
            ffn=math.prod(shapes["layers.0.mlp.gate_proj.weight"]) // hidden,
            zero_rows=self._zero_rows(config.input_type, target.zero_rows - 1),
            norm_eps=config.norm_eps,
        )
        checkpoint.require(draft_shapes(self.shape, config.bias), "EAGLE draft")

    def token_embedding(self) -> Array:
        return self._checkpoint.tensor("embed_tokens.weight")

    def fc(self) -> tuple[Array, Array | None]:
        bias = self._checkpoint.tensor("fc.bias") if "fc.bias" in self._checkpoint.shapes else None
        return self._checkpoint.tensor("fc.weight"), bias

    def layer(self, index: int) -> LayerWeights:
        return HF_BLOCK.read(self._checkpoint, f"{LAYERS}{index}.", self.shape, input_norm=index > 0)

    def _zero_rows(self, input_type: str | None, wanted: int) -> int:
        if input_type is not None and ZERO_ROWS.get(input_type) != wanted:
            kinds = [kind for kind, rows in ZERO_ROWS.items() if rows == wanted]
            raise InputError(
                f"{self._checkpoint.path}: config.json has input_type {input_type!r}. "
                f"Expected {' or '.join(kinds)} for this target. Use the draft that was trained for it."
            )
        return wanted


def draft_shapes(s: TransformerShape, bias: bool = True) -> dict[str, Shape]:
    """Every tensor of a drafter, with its shape."""
    expected: dict[str, Shape] = {"embed_tokens.weight": (s.vocab, s.hidden), "fc.weight": (s.hidden, 2 * s.hidden)}
    if bias:
        expected["fc.bias"] = (s.hidden,)
    for i in range(s.layers):
        expected |= HF_BLOCK.shapes(f"{LAYERS}{i}.", s, input_norm=i > 0)
    return expected


_ALWAYS = (
    "embed_tokens.weight",
    "fc.weight",
    "layers.0.self_attn.k_proj.weight",
    "layers.0.mlp.gate_proj.weight",
)
