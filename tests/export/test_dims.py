"""The same code on models of other sizes: the graph in onnxruntime against the formulas in NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from coolsd_trt.engines.ort import OrtImageDecoder, OrtTransformer
from coolsd_trt.export.build import BuildRequest, build_bundle
from coolsd_trt.export.eagle import EagleDraft
from coolsd_trt.export.graph.draft import write_draft
from coolsd_trt.export.graph.image_decoder import write_image_decoder
from coolsd_trt.export.graph.transformer import write_target
from coolsd_trt.export.llamagen import LlamaGenTarget
from coolsd_trt.export.vq import VqTokenizer
from coolsd_trt.runtime import Pipeline, SpeculativeConfig
from coolsd_trt.runtime.stepping import chain_step
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .models import (
    LOWERING,
    ArrayCheckpoint,
    draft_tensors,
    shape,
    target_config,
    target_logits,
    target_tensors,
    to_hf_names,
    tokenizer_tensors,
)

SHAPES = st.builds(
    lambda kv_heads, group, **sizes: shape(heads=kv_heads * group, kv_heads=kv_heads, **sizes),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 3),
    layers=st.integers(1, 3),
    head_dim=st.sampled_from([4, 8, 12, 20, 100]),
    ffn=st.integers(3, 40),
    vocab=st.integers(2, 40),
    grid=st.integers(2, 6).map(lambda side: (side, side)),
)
FEW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@FEW
@given(s=SHAPES, hf=st.booleans())
def test_class_conditional_targets(s, hf: bool, tmp_path: Path) -> None:
    tensors = target_tensors(s, classes=3)
    named = to_hf_names(tensors, s) if hf else tensors
    target = LlamaGenTarget(ArrayCheckpoint(named, target_config(s)))
    assert (target.shape, target.num_classes, target.family) == (s, 3, "llamagen-c2i")
    engine = OrtTransformer(tmp_path / "t.onnx", write_target(tmp_path / "t.onnx", target, 2, LOWERING), threads=1)

    ids = np.random.default_rng(1).integers(0, s.vocab, (2, s.grid[0] * s.grid[1]))
    ids[:, 0] = s.vocab + np.array([1, 3])  # a class, and the null class
    engine.allocate(2, ids.shape[1] + 1)
    # In two pieces, so that the cache takes part.
    parts = [chain_step(engine, ids[:, :3], np.zeros(2, int)).logits.copy()]
    parts.append(chain_step(engine, ids[:, 3:], np.full(2, 3)).logits)
    table = np.concatenate([tensors["tok_embeddings.weight"], tensors["cls_embedding.embedding_table.weight"]])
    for row, logits in zip(ids, np.concatenate(parts, axis=1), strict=True):
        expected = target_logits(tensors, s, table[row].astype(np.float64), np.tri(len(row), dtype=bool))
        np.testing.assert_allclose(logits, expected, atol=2e-4)


@settings(FEW, max_examples=10)
@given(s=SHAPES, slots=st.integers(2, 9), width=st.integers(1, 12))
def test_text_conditional_targets(s, slots: int, width: int, tmp_path: Path) -> None:
    s = shape(**{**{k: v for k, v in s.__dict__.items() if k != "hidden"}, "zero_rows": slots})
    tensors = target_tensors(s, classes=0, width=width)
    target = LlamaGenTarget(ArrayCheckpoint(tensors, target_config(s)))
    assert (target.shape, target.num_classes, target.feature_size) == (s, 0, width)
    engine = OrtTransformer(tmp_path / "t.onnx", write_target(tmp_path / "t.onnx", target, 2, LOWERING), threads=1)

    rng = np.random.default_rng(1)
    ids = rng.integers(0, s.vocab, (1, slots + 3))
    ids[:, :slots] = -1
    features = rng.standard_normal((1, slots + 3, s.hidden)).astype(np.float32)
    engine.allocate(1, slots + 4)
    logits = chain_step(engine, ids, np.zeros(1, int), features).logits[0]
    x = np.concatenate([features[0, :slots], tensors["tok_embeddings.weight"][ids[0, slots:]]])
    expected = target_logits(tensors, s, x.astype(np.float64), np.tri(len(x), dtype=bool))
    np.testing.assert_allclose(logits, expected, atol=2e-4)


@settings(FEW, max_examples=10)
@given(s=SHAPES, draft_layers=st.integers(1, 2))
def test_whole_bundles_decode_losslessly(s, draft_layers: int, tmp_path_factory) -> None:
    """Greedy drafting equals greedy autoregression, whatever the sizes."""
    out = tmp_path_factory.mktemp("dims") / "bundle"
    draft = ArrayCheckpoint(draft_tensors(s, draft_layers), {"num_attention_heads": s.heads}, "draft")
    tokenizer = ArrayCheckpoint(tokenizer_tensors(s.vocab), name="tokenizer")
    target = ArrayCheckpoint(target_tensors(s), target_config(s), "target")
    build_bundle(BuildRequest(target, tokenizer, draft, max_draft_length=3), out)
    with Pipeline.load(out, threads=1) as pipeline:
        runs = [
            pipeline.generate([0, 4], temperature=0, speculative=SpeculativeConfig(rule=rule, draft_length=3))
            for rule in ("ar", "lossless")
        ]
        np.testing.assert_array_equal(runs[0].tokens, runs[1].tokens)
        assert runs[0].images[0].shape == (s.grid[0] * 2, s.grid[1] * 2, 3)


@pytest.mark.parametrize("layers", [1, 2])
def test_drafts_of_several_layers_have_an_input_norm_after_the_first(layers: int, tmp_path: Path) -> None:
    s = shape()
    tensors = draft_tensors(s, layers)
    assert ("layers.1.input_layernorm.weight" in tensors) == (layers == 2)
    assert "layers.0.input_layernorm.weight" not in tensors
    draft = EagleDraft(ArrayCheckpoint(tensors), s)
    spec = write_draft(tmp_path / "d.onnx", draft, target_tensors(s)["output.weight"], 2, LOWERING)
    assert (spec.layers, draft.shape.zero_rows) == (layers, 0)


def test_tokenizers_of_other_depths(tmp_path: Path) -> None:
    """VQ-8's multipliers: three upsamplings."""
    tokenizer = VqTokenizer(ArrayCheckpoint(tokenizer_tensors(12, (1, 2, 2, 4))), 12)
    assert write_image_decoder(tmp_path / "d.onnx", tokenizer, (3, 3)).image_size == (24, 24)
    pixels = OrtImageDecoder(tmp_path / "d.onnx", threads=1).decode(np.arange(9)[None])
    assert pixels.shape == (1, 3, 24, 24)
    assert np.isfinite(pixels).all()
