"""What a build is asked for, and what it answers. It needs no ONNX package."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..engines.manifest import LoweringName, Manifest, PrecisionName
from .checkpoint import Checkpoint
from .neighbors import DEFAULT_COLUMNS

DEFAULT_MAX_DRAFT = 16


@dataclass(frozen=True)
class BuildRequest:
    """What to build. target, draft, image_decoder: checkpoint files or folders, or checkpoints that are open.

    max_draft_length: the longest draft the bundle has cache room for. class_names: JSON list; default:
    `class_names.json` beside the target. lowering: how graphs write the cache and attend; None: what suits the
    installed onnxruntime. heads, grid: attention heads and image tokens per side, where the target's checkpoint does
    not say. image_encoder: put the tokenizer's encoder side into the bundle, too. neighbors: columns of LANTERN's
    neighbour table, 0 leaves it out. precision: of target and draft; the other parts, which run once a picture, stay
    fp32, and so do norms and RoPE; embeddings are looked up in the float type beside the integers. tensorrt: make
    graphs that TensorRT can read, which int8 for the CPU is not; they suit other GPU backends, too. block_size: int4
    weights that share a scale. text_encoder: a T5 in a transformers folder, for targets that take captions.
    """

    target: Path | Checkpoint
    image_decoder: Path | Checkpoint
    draft: Path | Checkpoint | None = None
    max_draft_length: int = DEFAULT_MAX_DRAFT
    class_names: Path | None = None
    lowering: LoweringName | None = None
    neighbors: int = DEFAULT_COLUMNS
    heads: int | None = None
    grid: int | None = None
    image_encoder: bool = False
    precision: PrecisionName = "fp32"
    tensorrt: bool = False
    block_size: int = 32
    text_encoder: Path | Checkpoint | None = None


@dataclass(frozen=True)
class BuildResult:
    """manifest: of the bundle that now exists. cached: True when it already did and nothing was done.
    notes: what the user should know of the checkpoints, a sentence each."""

    manifest: Manifest
    cached: bool
    notes: tuple[str, ...] = ()
