"""Real models built by tensorrt-rtx, without a GPU: the demo pair, and LlamaGen-B with random weights.

What a plan took and weighs is printed, and put into the test report.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from coolsd_trt.engines.bundle import Bundle
from coolsd_trt.engines.manifest import PrecisionName, TransformerSpec
from coolsd_trt.engines.trt.build import parse_network
from coolsd_trt.engines.trt.plans import PlanRequest, build_plans
from coolsd_trt.export.build import BuildRequest, build_bundle
from coolsd_trt.export.random_weights import random_checkpoints

trt = pytest.importorskip("tensorrt_rtx", reason="needs tensorrt-rtx: pip install 'coolsd-trt[rtx]'")
from coolsd_trt.engines.trt.flavour import new_log  # noqa: E402

pytestmark = pytest.mark.slow

DEMO = Path(__file__).parents[3] / "tools" / "demo"
CAPABILITIES = ("8.9", "12.0")
# Bytes of compiled code a plan may carry beside its weights.
KERNELS = 24e6
PRECISIONS: tuple[PrecisionName, ...] = ("fp16", "fp32", "bf16", "int8", "int4")


@pytest.fixture(scope="module", params=PRECISIONS)
def demo(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    out = tmp_path_factory.mktemp("demo") / request.param
    parts = (DEMO / name for name in ("target", "image_tokenizer", "draft"))
    build_bundle(BuildRequest(*parts, lowering="tensor_scatter", precision=request.param, tensorrt=True), out)
    return Bundle.open(out)


def test_the_demo_pair_for_two_gpu_generations(
    demo: Bundle, record_property: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    build_plans(demo.path, PlanRequest("trt-rtx", CAPABILITIES))
    check_plans(Bundle.open(demo.path), CAPABILITIES, record_property, capsys)


def test_a_released_size(tmp_path: Path, record_property: Any, capsys: pytest.CaptureFixture[str]) -> None:
    options = {"lowering": "tensor_scatter", "precision": "fp16", "tensorrt": True, "neighbors": 0}
    build_bundle(BuildRequest(**random_checkpoints("c2i-B", 0), **options), tmp_path / "b")
    build_plans(tmp_path / "b", PlanRequest("trt-rtx", CAPABILITIES[:1]))
    bundle = Bundle.open(tmp_path / "b")
    check_plans(bundle, CAPABILITIES[:1], record_property, capsys)
    for part in ("target", "draft"):
        check_network(bundle, part)


@pytest.mark.parametrize("part", ["target", "draft"])
def test_caches_are_updated_in_place_and_attention_is_driven_by_the_mask(demo: Bundle, part: str) -> None:
    check_network(demo, part)


def check_plans(
    bundle: Bundle, capabilities: tuple[str, ...], record_property: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every part has a plan for every capability, of a size that its weights and kernels explain."""
    manifest = bundle.manifest
    assert tuple(engines.compute_capability for engines in manifest.engine_sets) == capabilities
    for engines in manifest.engine_sets:
        assert engines.precision == manifest.target.precision
        assert set(engines.plans) == {"target", "draft", "draft sampler", "image decoder"}
        for part, plan in engines.plans.items():
            bundle.check(plan.file)
            facts = f"{plan.seconds:.1f} s, {plan.file.size / 1e6:.1f} MB, workspace {plan.workspace / 1e6:.1f} MB"
            record_property(f"{manifest.name} {engines.key} {part}", facts)
            with capsys.disabled():
                print(f"\n  {manifest.name} {engines.key} {part}: {facts}", end="")
            weights = sum(file.size for file in manifest.parts()[part].files)
            assert 0.9 * weights < plan.file.size < 1.1 * weights + KERNELS
            assert plan.workspace > 0


def check_network(bundle: Bundle, part: str) -> None:
    """What TensorRT's parser made of a target or draft: one update in place for each cache, attention by the mask."""
    spec = bundle.manifest.parts()[part]
    assert isinstance(spec, TransformerSpec)
    log = new_log(trt)
    network, parser = parse_network(trt, log, trt.Builder(log), bundle.file(spec.files[0]), spec)
    updated, attentions = set(), 0
    for i in range(network.num_layers):
        layer = network.get_layer(i)
        assert layer.type.name not in ("SCATTER", "SOFTMAX", "PLUGIN", "PLUGIN_V2", "PLUGIN_V3")
        if layer.type == trt.LayerType.KV_CACHE_UPDATE:
            past, present = layer.get_input(0), layer.get_output(0)
            assert past.is_network_input and present.is_network_output
            assert past.dtype == present.dtype
            updated.add((past.name, present.name))
        if layer.type == trt.LayerType.ATTENTION_INPUT:
            layer.__class__ = trt.IAttentionInputLayer
            assert layer.attention.causal_kind == trt.CausalMaskKind.NONE
            assert layer.attention.mask.dtype == trt.bool
            attentions += 1
    caches = {f"{kind}_{i}" for kind in ("key", "value") for i in range(spec.layers)}
    assert updated == {(f"past_{cache}", f"present_{cache}") for cache in caches}
    assert attentions == spec.layers
    del parser
