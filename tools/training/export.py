"""Writes trained weights in the layout the bundle builder reads, with configs, curves and sample pictures."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ...runtime.errors import InputError
from .eagle import Draft, DraftConfig
from .llamagen import Target, TargetConfig
from .loop import BEST_NAME, CHECKPOINT_NAME, LOG_NAME, write_atomically
from .vq import VqConfig, VqTokenizer, to_uint8

# What `coolsd-trt build` makes the bundle's defaults: the guidance these pictures look best at.
SAMPLING = {"cfg_scale": 3.0, "top_k": 0}


def run_id(folder: Path) -> str:
    """SHA-256 of a run's best weights."""
    return hashlib.sha256((folder / BEST_NAME).read_bytes()).hexdigest()


def load_run(folder: Path, *kinds: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Settings and best weights of a training run. Raises InputError if `folder` is no run of these kinds."""
    for name in (BEST_NAME, CHECKPOINT_NAME):
        if not (folder / name).is_file():
            raise InputError(f"{folder / name} is missing. Train first: training {kinds[0]} --out {folder}")
    settings = torch.load(folder / CHECKPOINT_NAME, map_location="cpu", weights_only=True)["settings"]
    if settings["model"] not in kinds:
        raise InputError(
            f"{folder} holds a {settings['model']} run, expected a {kinds[0]} run. Check the folder options."
        )
    return settings, load_file(folder / BEST_NAME)


def load_tokenizer(folder: Path) -> VqTokenizer:
    """The tokenizer of a `tokenizer` or `decoder` run."""
    settings, tensors = load_run(folder, "tokenizer", "decoder")
    names = ("base_width", "z_channels", "codebook_size", "embed_dim")
    config = VqConfig(ch_mult=tuple(settings["ch_mult"]), **{k: settings[k] for k in names})
    return VqTokenizer.from_tensors(config, tensors)


def load_target(folder: Path) -> Target:
    """The target of a training run."""
    settings, tensors = load_run(folder, "target")
    return Target.from_tensors(TargetConfig(**{k: settings[k] for k in _fields(TargetConfig())}), tensors)


def load_draft(folder: Path) -> Draft:
    """The draft of a training run."""
    settings, tensors = load_run(folder, "draft")
    return Draft.from_tensors(DraftConfig(**{k: settings[k] for k in _fields(DraftConfig())}), tensors)


def write_tokenizer(model: VqTokenizer, out_dir: Path) -> None:
    """image_tokenizer/: LlamaGen VQ keys and config."""
    c = model.config
    fields = {
        "codebook_size": c.codebook_size, "embed_dim": c.embed_dim, "ch_mult": list(c.ch_mult),
        "z_channels": c.z_channels, "base_width": c.base_width, "grid": 16, "image_size": 16 * c.downsampling,
    }  # fmt: skip
    _write_model(model, fields, out_dir)


def write_target(model: Target, classes: list[str], out_dir: Path) -> None:
    """target/: flat LlamaGen keys, config and class names (index = class id)."""
    c = model.config
    fields = {
        "dim": c.dim, "n_layer": c.n_layer, "n_head": c.n_head, "vocab_size": c.vocab_size,
        "num_classes": c.num_classes, "block_size": c.block_size, "cls_token_num": c.cls_token_num,
        "model_type": c.model_type, "hidden_dim_ffn": c.hidden_dim_ffn, "head_dim": c.head_dim,
        "name": "emoji-64", "sampling": SAMPLING,
    }  # fmt: skip
    _write_model(model, fields, out_dir)
    write_json(classes, out_dir / "class_names.json")


def write_draft(model: Draft, target: TargetConfig, out_dir: Path) -> None:
    """draft/: LANTERN drafter keys and config."""
    c = model.config
    fields = {
        "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": c.hidden_size,
        "class_dropout_p": 0.0, "initializer_range": 0.02, "intermediate_size": c.intermediate_size,
        "max_position_embeddings": target.block_size + target.cls_token_num, "model_type": "llama",
        "num_attention_heads": c.num_attention_heads, "num_hidden_layers": c.num_hidden_layers,
        "num_key_value_heads": c.num_attention_heads, "pretraining_tp": 1, "rms_norm_eps": c.rms_norm_eps,
        "rope_scaling": None, "tie_word_embeddings": False, "torch_dtype": "float32", "use_cache": True,
        "vocab_size": c.vocab_size, "input_type": "c2i", "num_classes": target.num_classes,
        "cls_token_num": target.cls_token_num, "bias": True, "grid_size": c.grid_size,
    }  # fmt: skip
    _write_model(model, fields, out_dir)


def picture_grid(pictures: np.ndarray, columns: int, scale: int = 2, gap: int = 2) -> Image.Image:
    """uint8 [N, H, W, 3] as one picture, row by row, each enlarged `scale` times."""
    n, height, width, _ = pictures.shape
    rows = -(-n // columns)
    sheet = np.full((rows * (height + gap), columns * (width + gap), 3), 200, np.uint8)
    for i, picture in enumerate(pictures):
        top, left = i // columns * (height + gap), i % columns * (width + gap)
        sheet[top : top + height, left : left + width] = picture
    image = Image.fromarray(sheet)
    return image.resize((image.width * scale, image.height * scale), Image.Resampling.NEAREST)


def decoded(model: VqTokenizer, tokens: Tensor) -> np.ndarray:
    """Pictures uint8 [B, H, W, 3] of tokens int64 [B, T]."""
    with torch.no_grad():
        return to_uint8(model.decode(tokens)).permute(0, 2, 3, 1).numpy()


def draw_curves(runs: dict[str, Path], out: Path) -> None:
    """One panel per run: training loss (smoothed) and held-out loss over steps."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(runs), figsize=(5 * len(runs), 3.6), squeeze=False)
    for axis, (name, folder) in zip(axes[0], runs.items(), strict=True):
        records = read_log(folder)
        train = np.array([r["loss"] for r in records])
        window = max(1, min(25, len(train) // 4))
        axis.plot(np.convolve(train, np.ones(window) / window, "valid"), label="training", linewidth=1)
        held_out = [(r["step"], r["held_out_loss"]) for r in records if "held_out_loss" in r]
        axis.plot(*zip(*held_out, strict=True), "o-", markersize=3, label="held out")
        axis.set(title=name, xlabel="step", ylabel="loss")
        axis.set_ylim(0, np.quantile(train, 0.98))
        axis.legend()
    figure.tight_layout()
    figure.savefig(out, dpi=90)
    plt.close(figure)


def read_log(folder: Path) -> list[dict[str, float]]:
    """The records of a run's log.jsonl, one a step."""
    return [json.loads(line) for line in (folder / LOG_NAME).read_text(encoding="utf-8").splitlines()]


def write_json(value: Any, path: Path) -> None:
    """Write JSON for people, atomically."""
    text = json.dumps(value, indent=1, ensure_ascii=False) + "\n"
    write_atomically(path, lambda p: p.write_text(text, encoding="utf-8"))


def _write_model(model: nn.Module, fields: dict[str, Any], out_dir: Path) -> None:
    out_dir.mkdir(parents=True, exist_ok=True)
    write_json(fields, out_dir / "config.json")
    tensors = {k: v.detach().float().contiguous().clone() for k, v in model.state_dict().items()}
    path = out_dir / "model.safetensors"
    write_atomically(path, lambda p: save_file(tensors, p, metadata={"format": "pt"}))
    path.chmod(0o644)


def _fields(config: Any) -> list[str]:
    return list(config.__dataclass_fields__)
