"""Checkpoints in, bundle out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from ..engines.backends import onnxruntime_has_tensor_scatter
from ..engines.bundle import Bundle, write_bundle
from ..engines.manifest import MANIFEST_NAME, LoweringName, Manifest, PrecisionName, Source
from ..runtime.condition import CaptionCondition, ClassCondition, Condition
from ..runtime.config import SamplingConfig
from ..runtime.errors import BundleError, InputError
from .checkpoint import Checkpoint, open_checkpoint, read_json
from .eagle import EagleDraft
from .graph.caption_projection import write_caption_projection
from .graph.image_decoder import write_image_decoder
from .graph.transformer import write_draft, write_target
from .llamagen import SAMPLING, LlamaGenTarget
from .vq import VqDecoder

CLASS_NAMES = "class_names.json"
DEFAULT_MAX_DRAFT = 16


@dataclass(frozen=True)
class BuildRequest:
    """What to build. target, draft, image_decoder: checkpoint files or directories. max_draft_length: the longest
    draft the bundle has cache room for. class_names: JSON list; default: `class_names.json` beside the target.
    lowering: how graphs write the cache and attend; None: what suits the installed onnxruntime.
    precision: float type of target and draft; the image decoder, which runs once a picture, stays fp32.
    heads, grid: attention heads and image tokens per side, where the target's checkpoint does not say."""

    target: Path
    image_decoder: Path
    draft: Path | None = None
    max_draft_length: int = DEFAULT_MAX_DRAFT
    class_names: Path | None = None
    lowering: LoweringName | None = None
    precision: PrecisionName = "fp32"
    heads: int | None = None
    grid: int | None = None


@dataclass(frozen=True)
class BuildResult:
    """manifest: of the bundle that now exists. cached: True when it already did and nothing was done."""

    manifest: Manifest
    cached: bool


def build_bundle(request: BuildRequest, out: Path, report: Callable[[str], None] = lambda stage: None) -> BuildResult:
    """Build the bundle at `out`, all or nothing; do nothing when it is already there and intact.

    Args: report: called with the stage that begins ("read", "target", "draft", "image decoder").
    Raises: InputError for a bad checkpoint or option; BundleError when `out` can't be written.
    """
    if request.max_draft_length < 0:
        raise InputError(f"max_draft_length = {request.max_draft_length}: it must be at least 0.")
    report("read")
    lowering = request.lowering or ("tensor_scatter" if onnxruntime_has_tensor_scatter() else "portable")
    sources = _open_sources(request)
    key = _build_key(request, lowering, sources)
    existing = _up_to_date(out, key)
    if existing is not None:
        return BuildResult(existing, cached=True)

    target = LlamaGenTarget(sources["target"], request.heads, request.grid)
    draft = EagleDraft(sources["draft"], target.shape) if "draft" in sources else None
    decoder = VqDecoder(sources["image_decoder"], target.shape.vocab)
    condition = _condition(request, target)
    with write_bundle(out) as folder:
        report("target")
        form = (request.max_draft_length, lowering, request.precision)
        target_spec = write_target(folder / "target.onnx", target, *form)
        draft_spec = None
        if draft is not None:
            report("draft")
            draft_spec = write_draft(folder / "draft.onnx", draft, target.head(), *form)
        report("image decoder")
        decoder_spec = write_image_decoder(folder / "image_decoder.onnx", decoder, target.shape.grid)
        projection_spec = None
        if condition.kind == "caption":
            projection_spec = write_caption_projection(folder / "caption_projection.onnx", target.caption_weights())
        manifest = Manifest(
            name=str(sources["target"].config.get("name", target.family)),
            family=target.family,
            build_key=key,
            condition=condition,
            grid=target.shape.grid,
            prefix_length=target.shape.zero_rows,
            max_draft_length=request.max_draft_length,
            target=target_spec,
            draft=draft_spec,
            image_decoder=decoder_spec,
            caption_projection=projection_spec,
            sampling=SamplingConfig(**{**SAMPLING[target.family], **sources["target"].config.get("sampling", {})}),
            sources=tuple(
                Source(role=role, path=checkpoint.path.name, sha256=checkpoint.fingerprint())
                for role, checkpoint in sources.items()
            ),
            tools={package: version(package) for package in ("coolsd-trt", "onnx", "numpy")},
        )
        (folder / MANIFEST_NAME).write_text(manifest.model_dump_json(indent=1), encoding="utf-8")
    return BuildResult(manifest, cached=False)


def _open_sources(request: BuildRequest) -> dict[str, Checkpoint]:
    sources = {"target": open_checkpoint(request.target, (CLASS_NAMES,))}
    if request.draft is not None:
        sources["draft"] = open_checkpoint(request.draft)
    sources["image_decoder"] = open_checkpoint(request.image_decoder)
    return sources


def _build_key(request: BuildRequest, lowering: LoweringName, sources: dict[str, Checkpoint]) -> str:
    names = request.class_names
    content = {
        "sources": {role: checkpoint.fingerprint() for role, checkpoint in sources.items()},
        "max_draft_length": request.max_draft_length,
        "lowering": lowering,
        "precision": request.precision,
        "class_names": read_json(names) if names else None,
        "heads": request.heads,
        "grid": request.grid,
        "exporter": _exporter_digest(),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _exporter_digest() -> str:
    """Changes whenever the code that writes bundles does, so a stale bundle is never mistaken for a fresh one."""
    folder, house = Path(__file__).parent, Path(__file__).parent.parent
    digest = hashlib.sha256()
    for file in sorted([*folder.rglob("*.py"), house / "engines" / "manifest.py", house / "runtime" / "condition.py"]):
        if file.is_file():
            digest.update(file.read_bytes())
    return digest.hexdigest()


def _up_to_date(out: Path, key: str) -> Manifest | None:
    try:
        manifest = Bundle.open(out).manifest
    except BundleError:
        return None
    return manifest if manifest.build_key == key else None


def _condition(request: BuildRequest, target: LlamaGenTarget) -> Condition:
    if target.num_classes:
        names = _class_names(request, target.num_classes)
        return ClassCondition(names=names, id_offset=target.shape.vocab, null_class=target.num_classes)
    return CaptionCondition(
        slots=target.shape.zero_rows,
        feature_size=target.feature_size,
        padded_rows="caption" if target.hf_port else "self",
    )


def _class_names(request: BuildRequest, num_classes: int) -> tuple[str, ...]:
    """The names given, or those beside the target, or the class ids themselves."""
    folder = request.target if request.target.is_dir() else request.target.parent
    path = request.class_names or folder / CLASS_NAMES
    if request.class_names is None and not path.is_file():
        return tuple(str(i) for i in range(num_classes))
    names = read_json(path)
    if not isinstance(names, list) or len(names) != num_classes or len(set(map(str, names))) != num_classes:
        raise InputError(f"{path}: expected a JSON list of {num_classes} different class names for this target.")
    return tuple(map(str, names))
