"""Integer weights: what they cost, and that a token's numbers do not depend on who shares the pass."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from coolsd_trt.engines.bundle import Bundle
from coolsd_trt.engines.ort import OrtTransformer
from coolsd_trt.export.build import BuildRequest, build_bundle
from coolsd_trt.export.graph.linear import quantise_rows
from coolsd_trt.export.graph.transformer import write_target
from coolsd_trt.export.llamagen import LlamaGenTarget
from coolsd_trt.runtime import InputError, Pipeline, SpeculativeConfig
from coolsd_trt.runtime.stepping import chain_step

from .models import LOWERING, ArrayCheckpoint, draft_tensors, shape, target_config, target_tensors, tokenizer_tensors

S = shape(heads=4, kv_heads=2, layers=3, ffn=64, vocab=40)


def checkpoints(classes: int, width: int = 0, **sizes: int) -> dict[str, ArrayCheckpoint]:
    s = shape(heads=4, kv_heads=2, layers=3, ffn=64, vocab=40, **sizes)
    return {
        "target": ArrayCheckpoint(target_tensors(s, classes, width), target_config(s), "target"),
        "draft": ArrayCheckpoint(draft_tensors(s), {"num_attention_heads": 4}, "draft"),
        "image_decoder": ArrayCheckpoint(tokenizer_tensors(40), name="tokenizer"),
    }


def test_rows_are_off_by_half_a_step_at_most() -> None:
    weight = np.random.default_rng(0).standard_normal((5, 30)).astype(np.float32)
    weight[3] = 0
    codes, scales = quantise_rows(weight)
    assert codes.dtype == np.int8
    assert (np.abs(codes * scales[:, None] - weight) <= 0.5001 * scales[:, None]).all()


@pytest.mark.parametrize("sources", [checkpoints(5), checkpoints(0, 6, zero_rows=7)], ids=["classes", "captions"])
def test_a_build_measures_what_int8_costs(sources: dict[str, ArrayCheckpoint], tmp_path: Path) -> None:
    manifest = build_bundle(BuildRequest(**sources, precision="int8"), tmp_path / "bundle").manifest
    assert {part.precision for name, part in manifest.parts().items() if name in ("target", "draft")} == {"int8"}
    cost = Bundle.open(tmp_path / "bundle").manifest.target.precision_cost
    assert cost is not None
    assert 0 < cost.kl < 0.05
    assert 0 < cost.tv < 0.1
    assert not list((tmp_path / "bundle").glob("tmp*")), "the fp32 build for comparison is still there"


def test_a_tokens_logits_depend_on_neither_batch_nor_pass(tmp_path: Path) -> None:
    target = LlamaGenTarget(ArrayCheckpoint(target_tensors(S), target_config(S)))
    spec = write_target(tmp_path / "t.onnx", target, 2, LOWERING, "int8")
    ids = np.random.default_rng(0).integers(0, 40, (3, 8))
    engine = OrtTransformer(tmp_path / "t.onnx", spec, threads=1)
    engine.allocate(3, 9)
    together = chain_step(engine, ids, np.zeros(3, int)).logits.copy()
    engine.allocate(3, 9)
    one_by_one = [chain_step(engine, ids[1:2, k : k + 1], np.full(1, k)).logits.copy() for k in range(8)]
    np.testing.assert_allclose(np.concatenate(one_by_one, axis=1)[0], together[1], atol=1e-4)


def test_greedy_drafting_equals_greedy_autoregression(tmp_path: Path) -> None:
    build_bundle(BuildRequest(**checkpoints(5), precision="int8"), tmp_path / "bundle")
    with Pipeline.load(tmp_path / "bundle", threads=1) as pipeline:
        runs = [
            pipeline.generate([0, 1], temperature=0, speculative=SpeculativeConfig(rule=rule)).tokens
            for rule in ("ar", "lossless")
        ]
    np.testing.assert_array_equal(*runs)


def test_an_unknown_precision(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"precision = 'int2'. Expected one of: fp32, fp16, int8"):
        build_bundle(BuildRequest(**checkpoints(5), precision="int2"), tmp_path / "bundle")
