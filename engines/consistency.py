"""What the fields of a manifest must agree on, beyond each one's own range."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..runtime.condition import CaptionCondition, ClassCondition
from ..runtime.rules import get_rule

if TYPE_CHECKING:
    from .manifest import Manifest, TransformerSpec

STEP_INPUTS = ("input_ids", "position_ids", "mask", "write_indices")
CACHE_DTYPES = ("float32", "float16", "bfloat16")


def problems(m: Manifest) -> Iterator[str]:
    """What is wrong with a manifest as a whole, a clause each, the part or field first."""
    yield from _files(m)
    yield from _condition(m)
    yield from _transformers(m)
    yield from _defaults(m)
    height, width = m.image_decoder.image_size
    if height % m.grid[0] or width % m.grid[1]:
        yield f"image_decoder makes {width}x{height} pixels of {m.grid[1]}x{m.grid[0]} tokens"


def _files(m: Manifest) -> Iterator[str]:
    for part, spec in m.parts().items():
        graph = f"{part.replace(' ', '_')}.onnx"
        found = [file.name for file in spec.files]
        if found not in ([graph], [graph, f"{graph}.data"]):
            yield f"{part} has the files {', '.join(found)}, expected {graph} and perhaps its .data"
    names = [record.name for record in m.files()]
    for name in names:
        if "/" in name or names.count(name) > 1:
            yield f"the file {name} is listed twice, or outside the bundle's own folder"
    for engines in m.engine_sets:
        for plan in engines.plans.values():
            folder, _, name = plan.file.name.rpartition("/")
            if folder != f"engines/{engines.key}":
                yield f"the plan {name} is in {folder or 'no folder'}, expected engines/{engines.key}"


def _condition(m: Manifest) -> Iterator[str]:
    if isinstance(m.condition, ClassCondition):
        expected = (1, m.target.vocab_size, len(m.condition.names))
        if (m.prefix_length, m.condition.id_offset, m.condition.null_class) != expected:
            yield "condition: prefix_length, id_offset and null_class do not fit the target's tokens and classes"
    elif m.prefix_length != m.condition.slots:
        yield f"condition has {m.condition.slots} slots, prefix_length is {m.prefix_length}"
    captions = isinstance(m.condition, CaptionCondition)
    if captions != (m.caption_projection is not None) or (m.text_encoder is not None and not captions):
        yield "caption_projection is for models that take captions, which need it; text_encoder is for them, too"


def _transformers(m: Manifest) -> Iterator[str]:
    yield from _steps("target", m.target, takes_features=isinstance(m.condition, CaptionCondition))
    needed = m.prefix_length + m.grid[0] * m.grid[1] + m.max_draft_length
    if m.target.positions < needed:
        yield f"target has {m.target.positions} positions, {needed} are needed for the image and its drafts"
    if m.draft is None:
        if m.draft_sampler is not None:
            yield "draft_sampler is there, and there is no draft"
        return
    yield from _steps("draft", m.draft, takes_features=True)
    # The draft's positions are shifted by one.
    if m.draft.positions < needed - 1:
        yield f"draft has {m.draft.positions} positions, {needed - 1} are needed for the image and its drafts"
    if (m.draft.hidden_size, m.draft.vocab_size) != (m.target.hidden_size, m.target.vocab_size):
        yield "draft and target differ in hidden_size or vocab_size"


def _steps(part: str, spec: TransformerSpec, takes_features: bool) -> Iterator[str]:
    """The engine contract: names of a step's inputs and outputs, shape and type of the caches."""
    kinds = [f"{kind}_{i}" for i in range(spec.layers) for kind in ("key", "value")]
    inputs = {*STEP_INPUTS, *(f"past_{kind}" for kind in kinds), *(["features"] if takes_features else [])}
    outputs = {"logits", "hidden", *(f"present_{kind}" for kind in kinds)}
    for where, expected, tensors in (("inputs", inputs, spec.inputs), ("outputs", outputs, spec.outputs)):
        if wrong := sorted(expected ^ {tensor.name for tensor in tensors}):
            yield f"{part} has {where} that do not fit its layers: {', '.join(wrong[:4])}"
            return
    caches = [tensor for tensor in spec.inputs if tensor.name.startswith("past_")]
    shapes, dtypes = {tensor.shape for tensor in caches}, {tensor.dtype for tensor in caches}
    if shapes != {("batch", spec.kv_heads, "cache_length", spec.head_dim)}:
        yield f"{part} has caches that do not fit kv_heads and head_dim"
    if len(dtypes) != 1 or not dtypes <= set(CACHE_DTYPES):
        yield f"{part} has caches of type {', '.join(sorted(dtypes))}, expected one of {', '.join(CACHE_DTYPES)}"


def _defaults(m: Manifest) -> Iterator[str]:
    rule = get_rule(m.speculative.rule)
    if not rule.drafts:
        return
    if m.draft is None:
        yield f"speculative has rule {rule.name!r}, which needs a draft, and there is none"
    elif m.speculative.depth > m.max_draft_length:
        yield f"speculative drafts {m.speculative.depth} tokens, max_draft_length is {m.max_draft_length}"
    if m.neighbors is None and "lantern_k" in rule.parameters:
        yield f"speculative has rule {rule.name!r}, which needs neighbors, and there are none"
