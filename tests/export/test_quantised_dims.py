"""Integer weights on models of other sizes: the graph computes with exactly the weights that rounding left."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from coolsd_trt.engines.manifest import PrecisionName
from coolsd_trt.engines.ort import OrtTransformer
from coolsd_trt.export.build import BuildRequest, build_bundle
from coolsd_trt.export.graph.precision import Precision
from coolsd_trt.export.graph.quantise import quantise_blocks, quantise_rows
from coolsd_trt.export.graph.transformer import write_target
from coolsd_trt.export.llamagen import LlamaGenTarget
from coolsd_trt.runtime import Pipeline, SpeculativeConfig
from coolsd_trt.runtime.stepping import chain_step
from hypothesis import given, settings
from hypothesis import strategies as st

from .models import (
    LOWERING,
    ArrayCheckpoint,
    Tensors,
    draft_tensors,
    shape,
    target_config,
    target_logits,
    target_tensors,
    tokenizer_tensors,
)
from .test_dims import FEW, SHAPES

WEIGHT_ONLY = st.sampled_from(
    [
        Precision("int4", block_size=32),
        Precision("int4", block_size=128),
        Precision("int8", tensorrt=True),
        Precision("int4", tensorrt=True, block_size=128),
    ]
)
QUANTISED: tuple[PrecisionName, ...] = ("int8", "int4")
MATRICES = ("wqkv.weight", "wo.weight", "w1.weight", "w2.weight", "w3.weight")


def rounded(tensors: Tensors, precision: Precision) -> Tensors:
    """The tensors as the graph should hold them."""

    def stored(name: str, value: np.ndarray) -> np.ndarray:
        if not name.endswith((*MATRICES, "output.weight")):
            return value.astype(precision.float_type).astype(np.float32) if name.startswith("tok") else value
        if precision.of_matrix(value.shape[1], head=name == "output.weight") == "int8":
            codes, scales = quantise_rows(value, precision.float_type)
            return codes * scales.astype(np.float32)[:, None]
        codes, scales = quantise_blocks(value, precision.block_size, precision.float_type)
        wide = np.repeat(scales.astype(np.float32), precision.block_size, axis=1)
        return codes * wide[:, : value.shape[1]]

    return {name: stored(name, value) for name, value in tensors.items()}


@FEW
@given(s=SHAPES, precision=WEIGHT_ONLY)
def test_graphs_hold_the_rounded_weights(s, precision: Precision, tmp_path: Path) -> None:
    tensors = target_tensors(s, classes=3)
    target = LlamaGenTarget(ArrayCheckpoint(tensors, target_config(s)))
    spec = write_target(tmp_path / "t.onnx", target, 2, LOWERING, precision)
    # As it stands: optimised for the CPU, products with integer weights round their inputs, too.
    engine = OrtTransformer(tmp_path / "t.onnx", spec, threads=1, low_memory=True)
    ids = np.random.default_rng(1).integers(0, s.vocab, (1, s.grid[0] * s.grid[1]))
    ids[:, 0] = s.vocab + 1
    engine.allocate(1, ids.shape[1] + 1)
    logits = chain_step(engine, ids, np.zeros(1, int)).logits[0]
    held = rounded(tensors, precision)
    table = np.concatenate([held["tok_embeddings.weight"], held["cls_embedding.embedding_table.weight"]])
    expected = target_logits(held, s, table[ids[0]].astype(np.float64), np.tri(ids.shape[1], dtype=bool))
    np.testing.assert_allclose(logits, expected, atol=0.05 if precision.tensorrt else 3e-4)


@settings(FEW, max_examples=8)
@given(s=SHAPES, name=st.sampled_from(QUANTISED), block_size=st.sampled_from([32, 128]), tensorrt=st.booleans())
def test_whole_bundles_draw_pictures(s, name: PrecisionName, block_size: int, tensorrt: bool, tmp_path_factory) -> None:
    out = tmp_path_factory.mktemp("dims") / "bundle"
    draft = ArrayCheckpoint(draft_tensors(s), {"num_attention_heads": s.heads}, "draft")
    tokenizer = ArrayCheckpoint(tokenizer_tensors(s.vocab), name="tokenizer")
    target = ArrayCheckpoint(target_tensors(s), target_config(s), "target")
    options = {"precision": name, "block_size": block_size, "tensorrt": tensorrt}
    spec = build_bundle(BuildRequest(target, tokenizer, draft, max_draft_length=3, **options), out).manifest.target
    assert spec.precision_cost is not None and np.isfinite(spec.precision_cost.kl)
    with Pipeline.load(out, threads=1) as pipeline:
        made = pipeline.generate([0], speculative=SpeculativeConfig(rule="cool", draft_length=3))
    assert made.images[0].shape == (s.grid[0] * 2, s.grid[1] * 2, 3)


def test_matrices_of_int4_graphs_that_are_int8() -> None:
    kinds = {
        (tensorrt, width, head): Precision("int4", tensorrt).of_matrix(width, head)
        for tensorrt in (False, True)
        for width in (64, 48)
        for head in (False, True)
    }
    assert [key for key, kind in kinds.items() if kind == "int8"] == [
        (False, 64, True),
        (False, 48, True),
        (True, 64, True),
        (True, 48, False),
        (True, 48, True),
    ]


@pytest.mark.parametrize("heads, head_dim", [(3, 16), (1, 100)])
def test_a_width_that_is_no_multiple_of_the_block(heads: int, head_dim: int, tmp_path: Path) -> None:
    """48 is one block and a half, 100 three and an eighth: the last block is shorter."""
    s = shape(heads=heads, kv_heads=heads, head_dim=head_dim, ffn=50)
    sources = (ArrayCheckpoint(target_tensors(s), target_config(s)), ArrayCheckpoint(tokenizer_tensors(s.vocab)))
    draft = ArrayCheckpoint(draft_tensors(s), {"num_attention_heads": s.heads})
    build_bundle(BuildRequest(*sources, draft, precision="int4"), tmp_path / "bundle")
    with Pipeline.load(tmp_path / "bundle", threads=1) as pipeline:
        runs = [
            pipeline.generate([0, 4], temperature=0, speculative=SpeculativeConfig(rule=rule)).tokens
            for rule in ("ar", "lossless")
        ]
    np.testing.assert_array_equal(*runs)
