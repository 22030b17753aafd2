"""Small random models of any shape: as a checkpoint in memory, and as plain NumPy to compare a graph with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from coolsd_trt.engines.backends import onnxruntime_has_tensor_scatter
from coolsd_trt.export.checkpoint import Checkpoint, Shape
from coolsd_trt.export.eagle import draft_shapes
from coolsd_trt.export.llamagen import target_shapes
from coolsd_trt.export.naming import HF, LLAMAGEN, TargetNames
from coolsd_trt.export.random_weights import tokenizer_shapes
from coolsd_trt.export.weights import TransformerShape

LOWERING = "tensor_scatter" if onnxruntime_has_tensor_scatter() else "portable"

Tensors = dict[str, np.ndarray]


class ArrayCheckpoint(Checkpoint):
    def __init__(self, tensors: Tensors, config: Mapping[str, object] | None = None, name: str = "memory") -> None:
        super().__init__(Path(name), config or {})
        self.tensors = tensors

    @property
    def shapes(self) -> Mapping[str, Shape]:
        return {name: tensor.shape for name, tensor in self.tensors.items()}

    def _read(self, name: str) -> np.ndarray:
        return self.tensors[name]


def shape(**sizes: object) -> TransformerShape:
    """A tiny target, 4 x 4 tokens of 12; `sizes` override it."""
    base = dict(layers=2, heads=2, kv_heads=2, head_dim=8, ffn=24, vocab=12, grid=(4, 4), zero_rows=1)
    sizes = {**base, "norm_eps": 1e-5, "rope_base": 10000.0, **sizes}
    return TransformerShape(hidden=sizes["heads"] * sizes["head_dim"], **sizes)


def random_tensors(shapes: Mapping[str, Shape], seed: int = 0) -> Tensors:
    """Matrices scaled by their fan-in, norms around 1, biases around 0."""
    rng = np.random.default_rng(seed)

    def draw(name: str, size: Shape) -> np.ndarray:
        if len(size) > 1:
            return rng.standard_normal(size) / np.sqrt(np.prod(size[1:]))
        return rng.standard_normal(size) * 0.2 + (not name.endswith("bias"))

    return {name: draw(name, size).astype(np.float32) for name, size in shapes.items()}


def target_tensors(s: TransformerShape, classes: int = 5, width: int = 0, names: TargetNames = LLAMAGEN) -> Tensors:
    return random_tensors(target_shapes(names, s, classes, width))


def draft_tensors(s: TransformerShape, layers: int = 1) -> Tensors:
    return random_tensors(draft_shapes(TransformerShape(**{**s.__dict__, "layers": layers})), seed=1)


def tokenizer_tensors(vocab: int, multipliers: tuple[int, ...] = (1, 1)) -> Tensors:
    return random_tensors(tokenizer_shapes(32, multipliers, z=32, vocab=vocab), seed=2)


def target_config(s: TransformerShape) -> dict[str, object]:
    return {"n_head": s.heads, "block_size": s.grid[0] * s.grid[1]}


def to_hf_names(tensors: Tensors, s: TransformerShape) -> Tensors:
    """LlamaGen's names -> LANTERN's, the fused projection split by rows."""
    kv, renamed = s.kv_heads * s.head_dim, {}
    for name, tensor in tensors.items():
        if name.endswith("attention.wqkv.weight"):
            prefix = f"model.{name.removesuffix('attention.wqkv.weight')}self_attn."
            for part, rows in zip("qkv", np.split(tensor, [s.hidden, s.hidden + kv]), strict=True):
                renamed[f"{prefix}{part}_proj.weight"] = rows.copy()
            continue
        for ours, theirs in {
            "attention.wo": "self_attn.o_proj",
            "feed_forward.w1": "mlp.gate_proj",
            "feed_forward.w3": "mlp.up_proj",
            "feed_forward.w2": "mlp.down_proj",
            "attention_norm": "input_layernorm",
            "ffn_norm": "post_attention_layernorm",
        }.items():
            name = name.replace(ours, theirs)
        whole = {LLAMAGEN.token_embedding: HF.token_embedding, LLAMAGEN.head: HF.head}
        renamed[whole.get(name, f"model.{name}")] = tensor
    return renamed


def forward(tensors: Tensors, s: TransformerShape, x: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """All blocks of a target in LlamaGen's names over embeddings x [n, H] at positions 0..n-1, in float64."""
    for i in range(s.layers):
        prefix = f"layers.{i}."
        w = {k.removeprefix(prefix): v.astype(np.float64) for k, v in tensors.items() if k.startswith(prefix)}
        qkv = norm(x, w["attention_norm.weight"], s.norm_eps) @ w["attention.wqkv.weight"].T
        kv = s.kv_heads * s.head_dim
        q, k, v = np.split(qkv, [s.hidden, s.hidden + kv], axis=1)
        q, k, v = (part.reshape(len(x), -1, s.head_dim) for part in (q, k, v))
        q, k = rotate(q, s), rotate(k, s)
        group = s.heads // s.kv_heads
        outs = []
        for head in range(s.heads):
            scores = q[:, head] @ k[:, head // group].T / np.sqrt(s.head_dim)
            scores = np.where(mask, scores, -np.inf)
            p = np.exp(scores - scores.max(axis=1, keepdims=True))
            outs.append(p / p.sum(axis=1, keepdims=True) @ v[:, head // group])
        x = x + np.concatenate(outs, axis=1) @ w["attention.wo.weight"].T
        h = norm(x, w["ffn_norm.weight"], s.norm_eps)
        gate = h @ w["feed_forward.w1.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ w["feed_forward.w3.weight"].T)) @ w["feed_forward.w2.weight"].T
    return x


def target_logits(tensors: Tensors, s: TransformerShape, x: np.ndarray, mask: np.ndarray) -> np.ndarray:
    return norm(forward(tensors, s, x, mask), tensors["norm.weight"], s.norm_eps) @ tensors["output.weight"].T


def norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight


def rotate(x: np.ndarray, s: TransformerShape) -> np.ndarray:
    """2-D RoPE of [n, heads, D] as its definition reads, pair by pair; condition positions become zero."""
    turned = np.zeros_like(x)
    half = s.head_dim // 2
    for position in range(s.zero_rows, len(x)):
        row, column = divmod(position - s.zero_rows, s.grid[1])
        for pair in range(half):
            along, j = (row, pair) if pair < half // 2 else (column, pair - half // 2)
            angle = along * s.rope_base ** (-2 * j / half)
            a, b = x[position, :, 2 * pair], x[position, :, 2 * pair + 1]
            turned[position, :, 2 * pair] = a * np.cos(angle) - b * np.sin(angle)
            turned[position, :, 2 * pair + 1] = b * np.cos(angle) + a * np.sin(angle)
    return turned
