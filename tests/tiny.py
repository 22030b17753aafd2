"""Tiny random checkpoints in the official formats: enough structure to break, small enough to build in a blink."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

CLASS_NAMES = ["cat-face", "dog-face", "flag", "fruit", "hand"]


def make_checkpoints(
    folder: Path,
    *,
    dim: int = 32,
    layers: int = 2,
    heads: int = 2,
    kv_heads: int = 2,
    ffn: int = 64,
    vocab: int = 8,
    grid: int = 4,
    seed: int = 0,
) -> Path:
    """Write target/, draft/ and image_tokenizer/ under `folder` and return it."""
    rng = np.random.default_rng(seed)
    save(
        folder / "target",
        target_tensors(rng, dim, layers, heads, kv_heads, ffn, vocab),
        n_head=heads,
        block_size=grid**2,
    )
    (folder / "target" / "class_names.json").write_text(json.dumps(CLASS_NAMES))
    save(folder / "draft", draft_tensors(rng, dim, ffn, vocab), num_attention_heads=heads, input_type="c2i")
    save(folder / "image_tokenizer", tokenizer_tensors(rng, vocab))
    return folder


def save(folder: Path, tensors: dict[str, np.ndarray], **config: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))


def target_tensors(
    rng: np.random.Generator, dim: int, layers: int, heads: int, kv_heads: int, ffn: int, vocab: int
) -> dict[str, np.ndarray]:
    qkv = dim + 2 * kv_heads * (dim // heads)
    tensors = {
        "tok_embeddings.weight": normal(rng, vocab, dim, scale=0.5),
        "cls_embedding.embedding_table.weight": normal(rng, len(CLASS_NAMES) + 1, dim, scale=0.5),
        "norm.weight": 1 + normal(rng, dim, scale=0.1),
        "output.weight": normal(rng, vocab, dim, scale=0.3),
    }
    for i in range(layers):
        tensors |= {
            f"layers.{i}.attention.wqkv.weight": normal(rng, qkv, dim),
            f"layers.{i}.attention.wo.weight": normal(rng, dim, dim),
            f"layers.{i}.feed_forward.w1.weight": normal(rng, ffn, dim),
            f"layers.{i}.feed_forward.w3.weight": normal(rng, ffn, dim),
            f"layers.{i}.feed_forward.w2.weight": normal(rng, dim, ffn),
            f"layers.{i}.attention_norm.weight": 1 + normal(rng, dim, scale=0.1),
            f"layers.{i}.ffn_norm.weight": 1 + normal(rng, dim, scale=0.1),
        }
    return tensors


def draft_tensors(rng: np.random.Generator, dim: int, ffn: int, vocab: int) -> dict[str, np.ndarray]:
    layer = "layers.0."
    return {
        "embed_tokens.weight": normal(rng, vocab, dim),
        "fc.weight": normal(rng, dim, 2 * dim),
        "fc.bias": normal(rng, dim, scale=0.1),
        **{f"{layer}self_attn.{name}_proj.weight": normal(rng, dim, dim) for name in "qkvo"},
        f"{layer}mlp.gate_proj.weight": normal(rng, ffn, dim),
        f"{layer}mlp.up_proj.weight": normal(rng, ffn, dim),
        f"{layer}mlp.down_proj.weight": normal(rng, dim, ffn),
        f"{layer}post_attention_layernorm.weight": 1 + normal(rng, dim, scale=0.1),
    }


def tokenizer_tensors(rng: np.random.Generator, vocab: int, width: int = 32) -> dict[str, np.ndarray]:
    """A two-level decoder (one upsampling) of width 32, the least that 32 groups allow."""
    tensors = {"quantize.embedding.weight": normal(rng, vocab, 8, scale=1.0)}

    def conv(name: str, out: int, inner: int, size: int) -> None:
        tensors[f"{name}.weight"] = normal(rng, out, inner, size, size, scale=1 / np.sqrt(inner * size * size))
        tensors[f"{name}.bias"] = normal(rng, out, scale=0.1)

    def norm(name: str) -> None:
        tensors[f"{name}.weight"] = 1 + normal(rng, width, scale=0.1)
        tensors[f"{name}.bias"] = normal(rng, width, scale=0.1)

    def residual(name: str) -> None:
        for i in (1, 2):
            norm(f"{name}.norm{i}")
            conv(f"{name}.conv{i}", width, width, 3)

    def attention(name: str) -> None:
        norm(f"{name}.norm")
        for part in ("q", "k", "v", "proj_out"):
            conv(f"{name}.{part}", width, width, 1)

    conv("post_quant_conv", width, 8, 1)
    conv("decoder.conv_in", width, width, 3)
    residual("decoder.mid.0")
    attention("decoder.mid.1")
    residual("decoder.mid.2")
    for level in range(2):
        for i in range(3):
            residual(f"decoder.conv_blocks.{level}.res.{i}")
            if level == 0:
                attention(f"decoder.conv_blocks.{level}.attn.{i}")
    conv("decoder.conv_blocks.0.upsample.conv", width, width, 3)
    norm("decoder.norm_out")
    conv("decoder.conv_out", 3, width, 3)
    return tensors


def normal(rng: np.random.Generator, *shape: int, scale: float | None = None) -> np.ndarray:
    """Normal float32 numbers; without a scale, 1/sqrt(fan-in)."""
    return (rng.standard_normal(shape) * (scale or shape[-1] ** -0.5)).astype(np.float32)
