"""LlamaGen targets, class- and text-conditional, in the official key names and in those of LANTERN's port."""

from __future__ import annotations

import math
from pathlib import Path

from ..runtime.errors import InputError
from .checkpoint import Checkpoint, Shape
from .config_file import TargetConfig, read_config
from .naming import HF, LLAMAGEN, TargetNames, count_layers
from .weights import Array, CaptionWeights, LayerWeights, TransformerShape

DEFAULT_SIDE = 16
# head_dim is 64 in every released size but these, whose widths are unique: 3B (100) and 7B (128).
HEADS_BY_WIDTH = {3200: 32, 4096: 32}
# The official samplers' defaults.
SAMPLING = {
    "llamagen-c2i": {"cfg_scale": 4.0, "top_k": 2000},
    "llamagen-t2i": {"cfg_scale": 7.5, "top_k": 1000},
}


class LlamaGenTarget:
    """`TargetWeights` of a LlamaGen checkpoint.

    Family and sizes come from the tensors' names and shapes; what those can't tell (heads, grid) from `heads` and
    `grid`, else from `config.json`, else from the released models.
    Raises: InputError listing tensors that are missing or of the wrong shape, or when `heads` or `grid` contradict
    `config.json`.
    """

    def __init__(self, checkpoint: Checkpoint, heads: int | None = None, grid: int | None = None) -> None:
        self._checkpoint = checkpoint
        self._names = HF if HF.token_embedding in checkpoint.shapes else LLAMAGEN
        self.hf_port = self._names is HF
        caption = self._condition("uncond_embedding") in checkpoint.shapes
        self.family = "llamagen-t2i" if caption else "llamagen-c2i"
        self.what = f"{'text' if caption else 'class'}-conditional LlamaGen checkpoint"
        checkpoint.require_dimensions(self._always(caption), self.what)
        self.config = read_config(TargetConfig, checkpoint)
        self.shape = self._read_shape(heads, grid, caption)
        self.assumptions = self._assumptions(heads, grid)
        self.num_classes = 0 if caption else checkpoint.shapes[self._condition("embedding_table.weight")][0] - 1
        self.feature_size = checkpoint.shapes[self._condition("uncond_embedding")][-1] if caption else 0
        expected = target_shapes(self._names, self.shape, self.num_classes, self.feature_size)
        checkpoint.require(expected, self.what)

    def token_embedding(self) -> Array:
        return self._checkpoint.tensor(self._names.token_embedding)

    def class_embedding(self) -> Array:
        return self._checkpoint.tensor(self._condition("embedding_table.weight"))

    def caption_weights(self) -> CaptionWeights:
        names = ("cap_proj.fc1.weight", "cap_proj.fc2.weight", "uncond_embedding")
        return CaptionWeights(*(self._checkpoint.tensor(self._condition(name)) for name in names))

    def layer(self, index: int) -> LayerWeights:
        return self._names.block.read(self._checkpoint, f"{self._names.layers}{index}.", self.shape)

    def final_norm(self) -> Array:
        return self._checkpoint.tensor(self._names.final_norm)

    def head(self) -> Array:
        return self._checkpoint.tensor(self._names.head)

    def _condition(self, name: str) -> str:
        return self._names.condition + name

    def _always(self, caption: bool) -> dict[str, int]:
        """What the sizes are read from, and how many dimensions it has."""
        n = self._names
        condition = ("cap_proj.fc1.weight", "uncond_embedding") if caption else ("embedding_table.weight",)
        block = [f"{n.layers}0.{name}.weight" for name in (*n.block.qkv, n.block.gate)]
        return {n.final_norm: 1, **dict.fromkeys([n.token_embedding, *map(self._condition, condition), *block], 2)}

    def _read_shape(self, heads: int | None, grid: int | None, caption: bool) -> TransformerShape:
        n, config, shapes, path = self._names, self.config, self._checkpoint.shapes, self._checkpoint.path
        hidden = shapes[n.final_norm][-1]

        # Rows by element count, so that a transposed matrix is reported as such and not taken for another size.
        def rows(name: str) -> int:
            return math.prod(shapes[name]) // hidden

        stated_grid = None if config.block_size is None else _square_side(path, config.block_size)
        self._require_agreement("heads", heads, config.heads)
        self._require_agreement("grid", grid, stated_grid)
        side = grid or stated_grid or DEFAULT_SIDE
        heads = heads or config.heads or HEADS_BY_WIDTH.get(hidden, hidden // 64)
        if not heads or hidden % heads or hidden // heads % 2:
            raise InputError(f"{path}: width {hidden} does not divide into {heads} heads of even width. Give --heads.")
        head_dim = hidden // heads
        qkv_rows = sum(rows(f"{n.layers}0.{name}.weight") for name in n.block.qkv)
        return TransformerShape(
            layers=count_layers(self._checkpoint, n.layers),
            heads=heads,
            kv_heads=max(1, (qkv_rows - hidden) // (2 * head_dim)),
            head_dim=head_dim,
            hidden=hidden,
            ffn=rows(f"{n.layers}0.{n.block.gate}.weight"),
            vocab=rows(n.token_embedding),
            grid=(side, side),
            zero_rows=shapes[self._condition("uncond_embedding")][0] if caption else 1,
            norm_eps=config.norm_eps,
            rope_base=config.rope_base,
        )

    def _require_agreement(self, name: str, given: int | None, stated: int | None) -> None:
        if given is not None and stated not in (None, given):
            raise InputError(f"--{name} {given}: {self._checkpoint.path} says {stated}. Leave the option out.")

    def _assumptions(self, heads: int | None, grid: int | None) -> list[str]:
        """Sentences on what was neither given nor written anywhere."""
        config, s = self.config, self.shape
        assumed = []
        if heads is None and config.heads is None:
            assumed.append(f"{s.heads} attention heads (--heads)")
        if grid is None and config.block_size is None:
            assumed.append(f"{s.grid[0]}x{s.grid[1]} image tokens (--grid)")
        return [f"{self._checkpoint.path} does not say, assumed: {', '.join(assumed)}."] if assumed else []


def target_shapes(n: TargetNames, s: TransformerShape, num_classes: int, feature_size: int) -> dict[str, Shape]:
    """Every tensor of a target, with its shape. num_classes = 0: it takes captions of `feature_size`."""
    expected: dict[str, Shape] = {
        n.token_embedding: (s.vocab, s.hidden),
        n.final_norm: (s.hidden,),
        n.head: (s.vocab, s.hidden),
    }
    if num_classes:
        expected[f"{n.condition}embedding_table.weight"] = (num_classes + 1, s.hidden)
    else:
        expected[f"{n.condition}cap_proj.fc1.weight"] = (s.hidden, feature_size)
        expected[f"{n.condition}cap_proj.fc2.weight"] = (s.hidden, s.hidden)
        expected[f"{n.condition}uncond_embedding"] = (s.zero_rows, feature_size)
    for i in range(s.layers):
        expected |= n.block.shapes(f"{n.layers}{i}.", s)
    return expected


def _square_side(path: Path, block_size: int) -> int:
    side = math.isqrt(block_size)
    if side * side != block_size:
        raise InputError(f"{path}: block_size {block_size} in config.json is not a square number of image tokens.")
    return side
