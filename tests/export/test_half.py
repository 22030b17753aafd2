"""fp16 graphs on onnxruntime's CPU provider, against the fp32 graphs of the same checkpoints."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import tiny
from coolsd_trt.engines.bundle import Bundle
from coolsd_trt.engines.manifest import LoweringName, PrecisionName, TransformerSpec
from coolsd_trt.engines.ort import OrtTransformer
from coolsd_trt.export.build import BuildRequest, build_bundle
from coolsd_trt.runtime import Pipeline, SpeculativeConfig
from coolsd_trt.runtime.protocols import StepOutput
from coolsd_trt.runtime.stepping import chain_step

VOCAB, HIDDEN = 40, 48
LOWERINGS: tuple[LoweringName, ...] = ("tensor_scatter", "portable")


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[LoweringName, PrecisionName], Bundle]:
    folder = tmp_path_factory.mktemp("precision")
    tiny.make_checkpoints(folder, dim=HIDDEN, layers=3, heads=3, kv_heads=3, ffn=80, vocab=VOCAB, seed=3)
    parts = (folder / "target", folder / "image_tokenizer", folder / "draft")
    bundles = {}
    for lowering in LOWERINGS:
        for precision in ("fp32", "fp16"):
            out = folder / f"{lowering}-{precision}"
            build_bundle(BuildRequest(*parts, max_draft_length=8, lowering=lowering, precision=precision), out)
            bundles[lowering, precision] = Bundle.open(out)
    return bundles


def run(bundle: Bundle, spec: TransformerSpec | None, features: np.ndarray | None) -> list[StepOutput]:
    """A prefill of 8 tokens, then 6 tokens at different lengths per row."""
    assert spec is not None
    engine = OrtTransformer(bundle.file(spec.files[0]), spec, threads=1)
    engine.allocate(3, 20)
    ids = np.random.default_rng(0).integers(0, VOCAB, (3, 14))
    outputs = []
    for span, lengths in ((slice(0, 8), np.zeros(3, np.int64)), (slice(8, 14), np.array([8, 6, 3]))):
        out = chain_step(engine, ids[:, span], lengths, features[:, span] if features is not None else None)
        outputs.append(StepOutput(out.logits.copy(), out.hidden.copy()))
    engine.close()
    return outputs


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("part", ["target", "draft"])
def test_fp16_agrees_with_fp32(bundles: dict, lowering: LoweringName, part: str) -> None:
    features = np.random.default_rng(1).standard_normal((3, 14, HIDDEN)).astype(np.float32) if part == "draft" else None
    whole, half = (
        run(bundles[lowering, precision], getattr(bundles[lowering, precision].manifest, part), features)
        for precision in ("fp32", "fp16")
    )
    for expected, found in zip(whole, half, strict=True):
        assert found.logits.dtype == found.hidden.dtype == np.float32
        for name in ("logits", "hidden"):
            reference = getattr(expected, name)
            np.testing.assert_allclose(getattr(found, name), reference, atol=0.01 * reference.std())


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_an_fp16_bundle_is_half_as_large_and_says_what_it_is(bundles: dict, lowering: LoweringName) -> None:
    whole, half = (bundles[lowering, precision].manifest for precision in ("fp32", "fp16"))
    assert (half.target.precision, half.draft.precision, half.image_decoder.precision) == ("fp16", "fp16", "fp32")
    assert half.target.cache_dtype == "float16"
    assert half.target.parameters == whole.target.parameters
    assert half.target.files[1].size < 0.6 * whole.target.files[1].size


def test_sums_and_squares_stay_float32(bundles: dict) -> None:
    bundle = bundles["portable", "fp16"]
    model = onnx.load(bundle.file(bundle.manifest.target.files[0]), load_external_data=False)
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True).graph
    types = {value.name: value.type.tensor_type.elem_type for value in [*inferred.value_info, *inferred.output]}
    for node in model.graph.node:
        if node.op_type in ("ReduceMean", "Softmax", "Sqrt"):
            assert types[node.output[0]] == onnx.TensorProto.FLOAT, node.name
        if node.op_type == "MatMul":
            assert types[node.output[0]] == onnx.TensorProto.FLOAT16, node.name


def test_pictures_come_out_of_an_fp16_bundle(bundles: dict) -> None:
    with Pipeline.load(bundles["tensor_scatter", "fp16"].path) as pipeline:
        made = pipeline.generate([0, 1], speculative=SpeculativeConfig(rule="lossless"))
    assert made.tokens.shape == (2, 16)
