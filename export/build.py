"""Checkpoints in, bundle out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from ..engines.backends import onnxruntime_has_tensor_scatter, require_onnxruntime
from ..engines.bundle import write_bundle
from ..engines.manifest import (
    MANIFEST_NAME,
    MAX_SIDE,
    Manifest,
    PrecisionName,
    Source,
    TransformerSpec,
)
from ..engines.ort import OrtCaptionProjection
from ..runtime.condition import CaptionCondition, ClassCondition, Condition
from ..runtime.config import MAX_DRAFT, SamplingConfig, SpeculativeConfig
from ..runtime.errors import BackendError, InputError
from ..runtime.rules import get_rule
from .cache_key import build_key, up_to_date
from .checkpoint import Checkpoint, listed
from .eagle import EagleDraft
from .graph.attention import LOWERINGS
from .graph.caption_projection import write_caption_projection
from .graph.draft import write_draft
from .graph.draft_sampler import write_draft_sampler
from .graph.image_decoder import write_image_decoder
from .graph.image_encoder import write_image_encoder
from .graph.precision import Precision
from .graph.text_encoder import write_text_encoder
from .graph.transformer import write_target
from .llamagen import SAMPLING, LlamaGenTarget
from .locate import open_checkpoint, read_json
from .neighbors import write_neighbors
from .precision_cost import precision_cost
from .request import BuildRequest, BuildResult
from .size import KNOWN_EXTRAS, check_disk, weights_to_read
from .t5 import TOKENIZER, T5Encoder
from .vq import VqTokenizer

__all__ = ["BuildRequest", "BuildResult", "build_bundle"]

CLASS_NAMES = "class_names.json"

# Precisions whose cost the build measures, on the CPU: all but bf16, for which it has no kernels.
COSTED: tuple[PrecisionName, ...] = ("fp16", "int8", "int4")

Report = Callable[[str], None]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class _Models:
    """The checkpoints, recognised and checked against each other."""

    target: LlamaGenTarget
    draft: EagleDraft | None
    tokenizer: VqTokenizer
    text_encoder: T5Encoder | None
    condition: Condition


def build_bundle(
    request: BuildRequest,
    out: Path,
    report: Report = lambda stage: None,
    progress: Progress = lambda done, total: None,
) -> BuildResult:
    """Build the bundle at `out`, all or nothing; do nothing when it is already there and intact.

    Args: report: called with the stage that begins ("read", "target", "draft", "image decoder", ...). progress: called
    with the number of weights that have been read and of all there are, whenever a tensor is about to be written.
    Raises: InputError for a bad checkpoint or option; BundleError when `out` can't be written.
    """
    if not 0 <= request.max_draft_length <= MAX_DRAFT:
        raise InputError(f"max_draft_length = {request.max_draft_length}: it must be from 0 to {MAX_DRAFT}.")
    if request.grid is not None and not 1 <= request.grid <= MAX_SIDE:
        raise InputError(f"grid = {request.grid}: it must be from 1 to {MAX_SIDE}.")
    precision = Precision(request.precision, request.tensorrt, request.block_size)
    if request.neighbors < 0:
        raise InputError(f"neighbors = {request.neighbors}: it must be at least 0.")
    report("read")
    if request.lowering is None:
        request = replace(request, lowering="tensor_scatter" if onnxruntime_has_tensor_scatter() else "portable")
    sources = _open_sources(request)
    models = _read_models(request, sources)
    sampling, speculative = _defaults(request, sources["target"].path, models)
    fingerprints = {role: checkpoint.fingerprint() for role, checkpoint in sources.items()}
    key = build_key(fingerprints, _options(request))
    existing = up_to_date(out, key)
    if existing is not None:
        return BuildResult(existing, cached=True)

    weights = weights_to_read(sources, request.image_encoder)
    check_disk(out, weights, models.target.shape, precision)
    _watch(sources, sum(weights.values()), progress)
    with write_bundle(out) as folder:
        parts = _write_parts(folder, request, models, precision, report)
        manifest = Manifest(
            name=models.target.config.name or models.target.family,
            family=models.target.family,
            build_key=key,
            condition=models.condition,
            grid=models.target.shape.grid,
            prefix_length=models.target.shape.zero_rows,
            max_draft_length=request.max_draft_length,
            sampling=sampling,
            speculative=speculative,
            sources=tuple(
                Source(role=role, path=checkpoint.path.name, sha256=fingerprints[role])
                for role, checkpoint in sources.items()
            ),
            tools={package: version(package) for package in ("coolsd-trt", "onnx", "numpy")},
            **parts,
        )
        (folder / MANIFEST_NAME).write_text(manifest.model_dump_json(indent=1), encoding="utf-8")
    notes = _notes(sources, models)
    if precision.name in COSTED and manifest.target.precision_cost is None:
        notes = (*notes, f"onnxruntime is not installed: what {precision.name} costs was not measured.")
    return BuildResult(manifest, cached=False, notes=notes)


def _open_sources(request: BuildRequest) -> dict[str, Checkpoint]:
    roles = ("target", "draft", "image_decoder", "text_encoder")
    companions = {"target": (CLASS_NAMES,), "text_encoder": (TOKENIZER,)}
    given = {role: getattr(request, role) for role in roles}
    return {
        role: source if isinstance(source, Checkpoint) else open_checkpoint(source, companions.get(role, ()))
        for role, source in given.items()
        if source is not None
    }


def _watch(sources: Mapping[str, Checkpoint], total: int, progress: Progress) -> None:
    """Report every tensor that is read from now on."""
    done = 0

    def count(weights: int) -> None:
        nonlocal done
        done += weights
        progress(done, total)

    for checkpoint in sources.values():
        checkpoint.watch(count)


def _read_models(request: BuildRequest, sources: Mapping[str, Checkpoint]) -> _Models:
    target = LlamaGenTarget(sources["target"], request.heads, request.grid)
    draft = EagleDraft(sources["draft"], target.shape) if "draft" in sources else None
    tokenizer = VqTokenizer(sources["image_decoder"], target.shape.vocab)
    if request.image_encoder:
        tokenizer.require_encoder()
    text_encoder = None
    if "text_encoder" in sources:
        if target.num_classes:
            raise InputError("text_encoder is given, and this target takes classes. Build without it.")
        text_encoder = T5Encoder(sources["text_encoder"], target.feature_size)
    return _Models(target, draft, tokenizer, text_encoder, _condition(request, target))


def _defaults(request: BuildRequest, path: Path, models: _Models) -> tuple[SamplingConfig, SpeculativeConfig]:
    """The bundle's: what the target's config.json says, else what the released samplers do, as far as it can run."""
    config, most = models.target.config, request.max_draft_length
    usual = {"draft_length": min(max(most, 1), SpeculativeConfig.model_fields["draft_length"].default)}
    try:
        sampling = SamplingConfig(**{**SAMPLING[models.target.family], **config.sampling})
        speculative = SpeculativeConfig(**{**usual, **config.speculative})
    except InputError as error:
        raise InputError(f"{path.with_name('config.json')}: {error}") from None
    if models.draft is None or most == 0:
        return sampling, SpeculativeConfig(rule="ar", **usual)
    if speculative.depth > most:
        raise InputError(
            f"{path.with_name('config.json')}: its speculative settings draft {speculative.depth} tokens, and "
            f"--max-draft is {most}. Use at least {speculative.depth}."
        )
    if "lantern_k" in get_rule(speculative.rule).parameters and not request.neighbors:
        raise InputError(
            f"{path.with_name('config.json')}: its rule {speculative.rule!r} needs the neighbour table. Leave out "
            "--neighbors 0."
        )
    return sampling, speculative


def _options(request: BuildRequest) -> dict[str, object]:
    return {
        "max_draft_length": request.max_draft_length,
        "lowering": request.lowering,
        "class_names": read_json(request.class_names) if request.class_names else None,
        "heads": request.heads,
        "grid": request.grid,
        "image_encoder": request.image_encoder,
        "precision": request.precision,
        "tensorrt": request.tensorrt,
        "block_size": request.block_size,
        "neighbors": request.neighbors,
    }


def _write_parts(
    folder: Path, request: BuildRequest, models: _Models, precision: Precision, report: Report
) -> dict[str, Any]:
    """Specs of the graphs, and of the neighbour table, by their fields of `Manifest`."""
    target, max_draft = models.target, request.max_draft_length
    lowering = request.lowering or "tensor_scatter"
    parts: dict[str, Any] = {}
    report("target")
    parts["target"] = write_target(folder / "target.onnx", target, max_draft, lowering, precision)
    if isinstance(models.condition, CaptionCondition):
        path = folder / "caption_projection.onnx"
        parts["caption_projection"] = write_caption_projection(path, target.caption_weights())
    if models.text_encoder is not None:
        report("text encoder")
        path = folder / "text_encoder.onnx"
        parts["text_encoder"] = write_text_encoder(path, models.text_encoder, target.shape.zero_rows)
    if precision.name in COSTED and _has_onnxruntime():
        report("precision")
        parts["target"] = _with_cost(folder, parts["target"], models)
    if models.draft is not None:
        report("draft")
        head = target.head()
        parts["draft"] = write_draft(folder / "draft.onnx", models.draft, head, max_draft, lowering, precision)
        if max_draft:  # else there is nothing to sample
            path, opset = folder / "draft_sampler.onnx", LOWERINGS[lowering].opset
            parts["draft_sampler"] = write_draft_sampler(path, models.draft.shape, opset)
    report("image decoder")
    parts["image_decoder"] = write_image_decoder(folder / "image_decoder.onnx", models.tokenizer, target.shape.grid)
    if request.image_encoder:
        report("image encoder")
        parts["image_encoder"] = write_image_encoder(folder / "image_encoder.onnx", models.tokenizer)
    if request.neighbors:
        report("neighbours")
        rows = models.tokenizer.tensor("quantize.embedding.weight")
        parts["neighbors"] = write_neighbors(folder / "neighbors.npy", rows, request.neighbors)
    return parts


def _has_onnxruntime() -> bool:
    """Those who build plans for a GPU may do without it."""
    try:
        require_onnxruntime("ort-cpu")
    except BackendError:
        return False
    return True


def _with_cost(folder: Path, spec: TransformerSpec, models: _Models) -> TransformerSpec:
    """The spec with what its precision costs."""
    embeddings = None
    if isinstance(models.condition, CaptionCondition):
        nothing = np.zeros((1, models.condition.slots, models.condition.feature_size), dtype=np.float32)
        embeddings = OrtCaptionProjection(folder / "caption_projection.onnx").project(nothing)[1]
    cost = precision_cost(folder / "target.onnx", spec, models.target, models.condition, embeddings)
    return spec.model_copy(update={"precision_cost": cost})


def _notes(sources: Mapping[str, Checkpoint], models: _Models) -> tuple[str, ...]:
    notes = list(models.target.assumptions)
    for role, checkpoint in sources.items():
        unused = [name for name in checkpoint.unused() if not name.startswith(KNOWN_EXTRAS.get(role, ()))]
        if unused:
            notes.append(f"{checkpoint.path}: ignored {len(unused)} tensors that no {role} has: {listed(unused)}.")
    return tuple(notes)


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
    path = request.class_names
    if path is None and isinstance(request.target, Path):
        folder = request.target if request.target.is_dir() else request.target.parent
        path = folder / CLASS_NAMES if (folder / CLASS_NAMES).is_file() else None
    if path is None:
        return tuple(str(i) for i in range(num_classes))
    names = read_json(path)
    if not isinstance(names, list) or len(names) != num_classes or len(set(map(str, names))) != num_classes:
        raise InputError(f"{path}: expected a JSON list of {num_classes} different class names for this target.")
    return tuple(map(str, names))
