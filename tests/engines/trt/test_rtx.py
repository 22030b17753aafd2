"""Plans really built by tensorrt-rtx, which needs neither GPU nor driver for it. Running them does."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import tiny
from coolsd_trt.engines.bundle import Bundle
from coolsd_trt.engines.manifest import PrecisionName
from coolsd_trt.engines.trt import plans
from coolsd_trt.engines.trt.build import parse_network
from coolsd_trt.engines.trt.flavour import FLAVOURS, load_module, new_log
from coolsd_trt.engines.trt.plans import PlanRequest, PlanResult, build_plans
from coolsd_trt.export.build import BuildRequest, build_bundle
from coolsd_trt.runtime import BackendError, InputError, Pipeline

pytest.importorskip("tensorrt_rtx", reason="needs tensorrt-rtx: pip install 'coolsd-trt[rtx]'")
pytestmark = pytest.mark.slow

CAPABILITIES = ("8.9", "12.0")
LAYERS, HEADS = 2, 2


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rtx")
    return tiny.make_checkpoints(folder, dim=128, layers=LAYERS, heads=HEADS, kv_heads=HEADS, ffn=256, vocab=64)


def graphs(checkpoints: Path, out: Path, precision: PrecisionName) -> Path:
    parts = (checkpoints / name for name in ("target", "image_tokenizer", "draft"))
    options = {"max_draft_length": 8, "lowering": "tensor_scatter", "precision": precision, "tensorrt": True}
    build_bundle(BuildRequest(*parts, **options), out)
    return out


@pytest.fixture(scope="module", params=["fp16", "fp32", "int8", "int4"])
def built(
    request: pytest.FixtureRequest, checkpoints: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[PlanResult]]:
    out = graphs(checkpoints, tmp_path_factory.mktemp("bundles") / request.param, request.param)
    return out, build_plans(out, PlanRequest("trt-rtx", CAPABILITIES, max_batch=2))


def test_plans_for_two_gpu_generations(
    built: tuple[Path, list[PlanResult]], record_property: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path, results = built
    manifest = Bundle.open(path).manifest
    assert [result.cached for result in results] == [False, False]
    assert tuple(engines.compute_capability for engines in manifest.engine_sets) == CAPABILITIES
    for engines in manifest.engine_sets:
        assert engines.precision == manifest.target.precision
        assert set(engines.plans) == {"target", "draft", "image decoder"}
        for part, plan in engines.plans.items():
            assert (path / plan.file.name).stat().st_size == plan.file.size > 1_000_000
            assert plan.workspace > 0
            facts = f"{plan.seconds:.1f} s, {plan.file.size / 1e6:.1f} MB, workspace {plan.workspace / 1e6:.1f} MB"
            record_property(f"{engines.key} {part}", facts)
            with capsys.disabled():
                print(f"\n  {engines.key} {part}: {facts}", end="")


def test_a_second_build_does_nothing_and_a_damaged_plan_is_built_again(
    built: tuple[Path, list[PlanResult]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, results = built
    request = PlanRequest("trt-rtx", CAPABILITIES[:1], max_batch=2)
    before = Bundle.open(path).manifest
    assert [result.cached for result in build_plans(path, request)] == [True]
    assert Bundle.open(path).manifest == before

    class Stop(Exception):
        pass

    def stop(stage: str) -> None:
        if stage == "8.9 draft":
            raise Stop

    plan = path / results[0].engines.plans["target"].file.name
    content = plan.read_bytes()
    plan.write_bytes(content[:-1])
    with pytest.raises(Stop):
        build_plans(path, request, report=stop)
    # Half a set is no set: the manifest and the other files are as they were.
    assert Bundle.open(path).manifest == before
    assert not list(path.glob("engines/.*"))
    plan.write_bytes(content)
    monkeypatch.setattr(plans, "_builder_digest", lambda: "another builder")
    with pytest.raises(Stop):
        build_plans(path, request, report=stop)


def test_the_bundle_still_runs_on_the_cpu(built: tuple[Path, list[PlanResult]]) -> None:
    with Pipeline.load(built[0]) as pipeline:
        assert (pipeline.backend, pipeline.generate([0]).tokens.shape) == ("ort-cpu", (1, 16))
        assert "trt-rtx: " in pipeline.backend_reason


def test_caches_are_updated_in_place_and_attention_is_driven_by_the_mask(
    built: tuple[Path, list[PlanResult]],
) -> None:
    bundle = Bundle.open(built[0])
    trt = load_module(FLAVOURS["trt-rtx"])
    for part, layers in (("target", LAYERS), ("draft", 1)):
        log = new_log(trt)
        spec = bundle.manifest.parts()[part]
        network, parser = parse_network(trt, log, trt.Builder(log), bundle.file(spec.files[0]), spec)
        found = [network.get_layer(i) for i in range(network.num_layers)]
        kinds = Counter(layer.type.name for layer in found)
        assert kinds["KV_CACHE_UPDATE"] == 2 * layers
        assert kinds["ATTENTION_INPUT"] == kinds["ATTENTION_OUTPUT"] == layers
        assert not kinds["SCATTER"] and not kinds["SOFTMAX"] and not kinds["PLUGIN_V3"]
        for layer in found:
            if layer.type == trt.LayerType.KV_CACHE_UPDATE:
                assert layer.get_input(0).is_network_input and layer.get_output(0).is_network_output
                assert layer.get_input(0).dtype == layer.get_output(0).dtype
            if layer.type == trt.LayerType.ATTENTION_INPUT:
                layer.__class__ = trt.IAttentionInputLayer
                assert layer.attention.causal_kind == trt.CausalMaskKind.NONE
                assert layer.attention.mask is not None
                assert layer.attention.mask.dtype == trt.bool
        del parser


def test_bfloat16_has_plans_and_nothing_else(checkpoints: Path, tmp_path: Path) -> None:
    path = graphs(checkpoints, tmp_path / "b", "bf16")
    engines = build_plans(path, PlanRequest("trt-rtx", CAPABILITIES[:1], max_batch=1))[0].engines
    assert (engines.precision, set(engines.plans)) == ("bf16", {"target", "draft", "image decoder"})
    assert Bundle.open(path).manifest.target.cache_dtype == "bfloat16"
    with pytest.raises(BackendError, match=r"bfloat16, for which onnxruntime has no kernels on the CPU"):
        Pipeline.load(path, backend="ort-cpu")


@pytest.mark.parametrize(
    "request_, words",
    [
        (PlanRequest("trt-rtx", ("9.0",)), r"9\.0: tensorrt_rtx .* does not build for it.*8\.9, 12\.0"),
        (PlanRequest("trt-rtx", ("ada",)), r"--compute-capability 'ada': expected a number like 8\.9"),
        (PlanRequest("trt-rtx", ("8.9",), max_batch=0), r"max_batch = 0: it must be at least 1"),
    ],
)
def test_bad_options_are_named(built: tuple[Path, list[PlanResult]], request_: PlanRequest, words: str) -> None:
    with pytest.raises(InputError, match=words):
        build_plans(built[0], request_)


def test_without_a_gpu_the_options_say_what_is_missing(
    built: tuple[Path, list[PlanResult]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_gpu() -> None:
        raise BackendError("no usable NVIDIA driver.")

    monkeypatch.setattr(plans, "probe_gpu", no_gpu)
    with pytest.raises(InputError, match="--compute-capability is missing, and this machine can't tell: no usable"):
        build_plans(built[0], PlanRequest("trt-rtx"))
    with pytest.raises(BackendError, match=r"builds for the GPU it builds on.*or use --backend trt-rtx"):
        build_plans(built[0], PlanRequest("trt"))


def test_the_portable_lowering_is_refused(tiny_checkpoints: Path, tmp_path: Path) -> None:
    parts = (tiny_checkpoints / name for name in ("target", "image_tokenizer"))
    build_bundle(BuildRequest(*parts, lowering="portable"), tmp_path / "b")
    with pytest.raises(InputError, match=r"its lowering is portable.*--lowering tensor_scatter"):
        build_plans(tmp_path / "b", PlanRequest("trt-rtx", ("8.9",)))
