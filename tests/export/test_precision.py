"""Reduced precisions: what they cost, and that a token's numbers do not depend on who shares the pass."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from coolsd_trt.engines.bundle import Bundle
from coolsd_trt.engines.manifest import LoweringName, PrecisionName
from coolsd_trt.engines.ort import OrtTransformer
from coolsd_trt.export.build import BuildRequest, build_bundle
from coolsd_trt.export.graph.precision import Precision
from coolsd_trt.export.graph.quantise import pack_int4, quantise_blocks, quantise_rows
from coolsd_trt.export.graph.transformer import write_target
from coolsd_trt.export.llamagen import LlamaGenTarget
from coolsd_trt.runtime import BackendError, InputError, Pipeline, SpeculativeConfig
from coolsd_trt.runtime.stepping import chain_step
from hypothesis import given
from hypothesis import strategies as st

from .models import LOWERING, ArrayCheckpoint, draft_tensors, shape, target_config, target_tensors, tokenizer_tensors

S = shape(heads=4, kv_heads=2, layers=3, ffn=64, vocab=40)


def checkpoints(classes: int, width: int = 0, **sizes: int) -> dict[str, ArrayCheckpoint]:
    s = shape(heads=4, kv_heads=2, layers=3, ffn=64, vocab=40, **sizes)
    return {
        "target": ArrayCheckpoint(target_tensors(s, classes, width), target_config(s), "target"),
        "draft": ArrayCheckpoint(draft_tensors(s), {"num_attention_heads": 4}, "draft"),
        "image_decoder": ArrayCheckpoint(tokenizer_tensors(40), name="tokenizer"),
    }


FORMS = [Precision("int8"), Precision("int4"), Precision("int8", tensorrt=True), Precision("int4", tensorrt=True)]


@pytest.mark.parametrize("scale_type", [np.float32, np.float16])
def test_rows_are_off_by_half_a_step_at_most(scale_type: type) -> None:
    weight = np.random.default_rng(0).standard_normal((5, 30)).astype(np.float32)
    weight[3] = 0
    codes, scales = quantise_rows(weight, scale_type)
    assert codes.dtype == np.int8 and scales.dtype == scale_type
    step = scales.astype(np.float32)[:, None]
    # Rounding the scale to fp16 may clip the peak by another half of the last digit of 127.
    assert (np.abs(codes * step - weight) <= (0.5001 if scale_type is np.float32 else 0.6) * step).all()


@given(
    out=st.integers(1, 9),
    width=st.integers(1, 300),
    block_size=st.sampled_from([32, 128]),
    scale_type=st.sampled_from([np.float32, np.float16]),
)
def test_blocks_are_off_by_half_a_step_at_most(out: int, width: int, block_size: int, scale_type: type) -> None:
    weight = np.random.default_rng(0).standard_normal((out, width)).astype(np.float32)
    codes, scales = quantise_blocks(weight, block_size, scale_type)
    assert scales.shape == (out, -(-width // block_size))
    assert (codes.min() >= -8) and (codes.max() <= 7)
    step = np.repeat(scales.astype(np.float32), block_size, axis=1)[:, :width]
    assert (np.abs(codes * step - weight) <= (0.5001 if scale_type is np.float32 else 0.51) * step).all()


@given(st.lists(st.integers(-8, 7), min_size=1, max_size=9))
def test_packing_is_onnxs(codes: list[int]) -> None:
    tensor = onnx.TensorProto(name="w", data_type=onnx.TensorProto.INT4, dims=[len(codes)])
    tensor.raw_data = pack_int4(np.array(codes, dtype=np.int8)).tobytes()
    assert onnx.numpy_helper.to_array(tensor).astype(np.int8).tolist() == codes


@pytest.mark.parametrize("sources", [checkpoints(5), checkpoints(0, 6, zero_rows=7)], ids=["classes", "captions"])
@pytest.mark.parametrize("precision, most", [("fp16", 1e-3), ("int8", 0.05), ("int4", 0.2)])
@pytest.mark.parametrize("tensorrt", [False, True])
def test_a_build_measures_what_a_precision_costs(
    sources: dict[str, ArrayCheckpoint], precision: PrecisionName, most: float, tensorrt: bool, tmp_path: Path
) -> None:
    request = BuildRequest(**sources, precision=precision, tensorrt=tensorrt)
    manifest = build_bundle(request, tmp_path / "bundle").manifest
    assert {part.precision for name, part in manifest.parts().items() if name in ("target", "draft")} == {precision}
    cost = Bundle.open(tmp_path / "bundle").manifest.target.precision_cost
    assert cost is not None
    assert 0 < cost.kl < most
    assert 0 < cost.tv < most**0.5


def test_without_onnxruntime_the_cost_is_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise BackendError("onnxruntime is not installed")

    monkeypatch.setattr("coolsd_trt.export.build.require_onnxruntime", missing)
    result = build_bundle(BuildRequest(**checkpoints(5), precision="int4", tensorrt=True), tmp_path / "bundle")
    assert result.manifest.target.precision_cost is None
    assert result.notes == ("onnxruntime is not installed: what int4 costs was not measured.",)


def test_the_manifest_says_how_matrices_are_stored(tmp_path: Path) -> None:
    found = {}
    for precision in FORMS:
        options = {"precision": precision.name, "tensorrt": precision.tensorrt}
        spec = build_bundle(BuildRequest(**checkpoints(5), **options), tmp_path / "bundle").manifest.target
        found[precision] = (spec.quantisation, spec.block_size, spec.cache_dtype, spec.parameters)
    parameters = build_bundle(BuildRequest(**checkpoints(5)), tmp_path / "bundle").manifest.target.parameters
    assert list(found.values()) == [
        ("dynamic", None, "float32", parameters),
        ("weight-only", 32, "float32", parameters),
        ("weight-only", None, "float16", parameters),
        ("weight-only", 32, "float16", parameters),
    ]


@pytest.mark.parametrize("lowering", ["tensor_scatter", "portable"])
def test_onnxruntime_multiplies_int4_as_it_is_stored(lowering: LoweringName, tmp_path: Path) -> None:
    """Every product is fused with the widening of its matrix: none is widened at load, or at every step."""
    import onnxruntime

    s = shape(heads=4, kv_heads=2, layers=1, head_dim=16)
    target = LlamaGenTarget(ArrayCheckpoint(target_tensors(s), target_config(s)))
    write_target(tmp_path / "t.onnx", target, 2, lowering, Precision("int4"))
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(str(tmp_path / "t.onnx"), options, providers=["CPUExecutionProvider"])
    nodes = onnx.load(tmp_path / "optimised.onnx", load_external_data=False).graph.node
    kinds = Counter(node.op_type for node in nodes)
    assert kinds["MatMulNBits"] == 6  # qkv, o, gate, up, down, head
    assert not kinds["DequantizeLinear"]


@pytest.mark.parametrize("precision", FORMS, ids=str)
def test_a_tokens_logits_depend_on_neither_batch_nor_pass(precision: Precision, tmp_path: Path) -> None:
    target = LlamaGenTarget(ArrayCheckpoint(target_tensors(S), target_config(S)))
    spec = write_target(tmp_path / "t.onnx", target, 2, LOWERING, precision)
    ids = np.random.default_rng(0).integers(0, 40, (3, 8))
    engine = OrtTransformer(tmp_path / "t.onnx", spec, threads=1)
    engine.allocate(3, 9)
    together = chain_step(engine, ids, np.zeros(3, int)).logits.copy()
    engine.allocate(3, 9)
    one_by_one = [chain_step(engine, ids[1:2, k : k + 1], np.full(1, k)).logits.copy() for k in range(8)]
    atol = 0.01 if precision.tensorrt else 1e-4
    np.testing.assert_allclose(np.concatenate(one_by_one, axis=1)[0], together[1], atol=atol)


def test_int8_gives_the_same_numbers_on_processors_without_vnni(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = LlamaGenTarget(ArrayCheckpoint(target_tensors(S), target_config(S)))
    spec = write_target(tmp_path / "t.onnx", target, 2, LOWERING, Precision("int8"))
    logits = []
    for has_vnni in (True, False):
        monkeypatch.setattr("coolsd_trt.engines.ort._has_vnni", lambda answer=has_vnni: answer)
        engine = OrtTransformer(tmp_path / "t.onnx", spec, threads=1)
        engine.allocate(1, 9)
        logits.append(chain_step(engine, np.arange(8)[None], np.zeros(1, int)).logits.copy())
    np.testing.assert_allclose(logits[0], logits[1], atol=1e-5)


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_greedy_drafting_equals_greedy_autoregression(precision: PrecisionName, tmp_path: Path) -> None:
    build_bundle(BuildRequest(**checkpoints(5), precision=precision), tmp_path / "bundle")
    with Pipeline.load(tmp_path / "bundle", threads=1) as pipeline:
        runs = [
            pipeline.generate([0, 1], temperature=0, speculative=SpeculativeConfig(rule=rule)).tokens
            for rule in ("ar", "lossless")
        ]
    np.testing.assert_array_equal(*runs)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"precision": "int2"}, r"precision = 'int2'. Expected one of: fp32, fp16, bf16, int8, int4"),
        (
            {"precision": "bf16"},
            r"--precision bf16: onnxruntime has no bfloat16 kernels on the CPU. Use fp16",
        ),
        ({"precision": "int4", "block_size": 64}, r"--block-size 64: expected 32 or 128"),
    ],
)
def test_what_no_backend_runs_is_refused(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=words):
        build_bundle(BuildRequest(**checkpoints(5), **options), tmp_path / "bundle")
    assert not list(tmp_path.iterdir())
