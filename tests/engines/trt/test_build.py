"""How the enterprise flavour is asked to build, on a stand-in for its module: it builds on GPUs only."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from coolsd_trt.engines.bundle import Bundle
from coolsd_trt.engines.cuda import Gpu
from coolsd_trt.engines.manifest import LoweringName
from coolsd_trt.engines.trt import flavour, plans
from coolsd_trt.engines.trt.flavour import FLAVOURS, load_module, parse_capability
from coolsd_trt.engines.trt.plans import PlanRequest, build_plans, find_plans, planned_parts
from coolsd_trt.export.build import BuildRequest, build_bundle
from coolsd_trt.runtime import BackendError, BundleError, InputError


class FakeEnterprise(MagicMock):
    """`tensorrt` 10.16, as far as a build needs it."""

    __version__ = "10.16.1"
    __name__ = "tensorrt"
    ILogger = type("ILogger", (), {"ERROR": 1, "__init__": lambda self: None})
    BuilderFlag = SimpleNamespace(TF32="tf32")
    NetworkDefinitionCreationFlag = SimpleNamespace(STRONGLY_TYPED=1)


def request(checkpoints: Path) -> BuildRequest:
    parts = (checkpoints / name for name in ("target", "image_tokenizer", "draft"))
    return BuildRequest(*parts, max_draft_length=8, lowering="tensor_scatter")


@pytest.fixture
def trt(monkeypatch: pytest.MonkeyPatch) -> FakeEnterprise:
    """TensorRT on a machine with an RTX 40 GPU."""
    module = FakeEnterprise()
    builder, config = module.Builder.return_value, module.Builder.return_value.create_builder_config.return_value
    builder.create_network.return_value.num_layers = 0
    builder.build_serialized_network.return_value = b"plan"
    config.add_optimization_profile.return_value = 0
    config.get_timing_cache.return_value.serialize.return_value = b"timings"
    monkeypatch.setattr(plans, "load_module", lambda flavour: module)
    monkeypatch.setattr(plans, "probe_gpu", lambda: Gpu("RTX 4090", "8.9", 24 * 10**9))
    return module


def test_it_builds_for_the_gpu_it_is_on_strongly_typed_and_keeps_its_timings(
    trt: FakeEnterprise, tiny_checkpoints: Path, tmp_path: Path
) -> None:
    bundle = tmp_path / "b"
    build_bundle(request(tiny_checkpoints), bundle)
    [result] = build_plans(bundle, PlanRequest("trt", max_batch=3))
    assert (result.engines.compute_capability, result.engines.key) == ("8.9", "trt-10.16.1-sm89-fp32-b3")
    builder, config = trt.Builder.return_value, trt.Builder.return_value.create_builder_config.return_value
    builder.create_network.assert_called_with(1 << 1)
    config.clear_flag.assert_called_with("tf32")
    config.set_flag.assert_not_called()
    config.set_compute_capability.assert_not_called()
    assert [call.args[0] for call in config.create_timing_cache.call_args_list] == [b"", *[b"timings"] * 3]
    assert (bundle / "engines" / "trt-10.16.1-sm89.timing").read_bytes() == b"timings"
    shapes = {call.args[0]: call.args[1:] for call in builder.create_optimization_profile().set_shape.call_args_list}
    assert shapes["mask"] == ((1, 1, 3, 25), (6, 1, 6, 25), (6, 1, 9, 25))
    assert shapes["codes"] == ((1, 16), (1, 16), (1, 16))
    found = find_plans(Bundle.open(bundle).manifest, "trt", "10.16.1", "8.9")
    assert found == result.engines
    with pytest.raises(BundleError, match=r"built by version 10\.16\.1, 11\.0\.0 is installed"):
        find_plans(Bundle.open(bundle).manifest, "trt", "11.0.0", "8.9")


def test_timings_of_another_gpu_are_taken_again(trt: FakeEnterprise, tiny_checkpoints: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "b"
    build_bundle(request(tiny_checkpoints), bundle)
    config = trt.Builder.return_value.create_builder_config.return_value
    config.create_timing_cache.side_effect = lambda stored: None if stored == b"damaged" else stored
    config.set_timing_cache.side_effect = lambda cache, ignore_mismatch: cache != b"of another GPU"
    for stored in (b"of another GPU", b"damaged"):
        (bundle / "engines").mkdir(exist_ok=True)
        (bundle / "engines" / "trt-10.16.1-sm89.timing").write_bytes(stored)
        config.set_timing_cache.reset_mock()
        build_plans(bundle, PlanRequest("trt", max_batch=1 if stored == b"damaged" else 2))
        accepted = [call.args[0] for call in config.set_timing_cache.call_args_list if call.args[0] == b""]
        assert accepted == [b""], "only the first plan meets the bad timings"
        assert (bundle / "engines" / "trt-10.16.1-sm89.timing").read_bytes() == b"timings"


@pytest.mark.parametrize(
    "version, needed, other",
    [
        ("10.3.0", "portable", "tensor_scatter"),
        ("10.14.1", "portable", "tensor_scatter"),
        ("10.15.1", "tensor_scatter", "portable"),
        ("11.4.0", "tensor_scatter", "portable"),
    ],
)
def test_the_lowering_follows_what_this_tensorrt_has(
    trt: FakeEnterprise, tiny_checkpoints: Path, tmp_path: Path, version: str, needed: LoweringName, other: LoweringName
) -> None:
    trt.__version__ = version
    assert plans.needed_lowering("trt") == needed
    build_bundle(replace(request(tiny_checkpoints), lowering=other), tmp_path / "b")
    with pytest.raises(InputError, match=rf"its lowering is {other}; tensorrt {version} wants {needed}\. .*--lowering"):
        build_plans(tmp_path / "b", PlanRequest("trt"))
    build_bundle(replace(request(tiny_checkpoints), lowering=needed), tmp_path / "b")
    [result] = build_plans(tmp_path / "b", PlanRequest("trt"))
    assert set(result.engines.plans) == {"target", "draft", "draft sampler", "image decoder"}


def test_it_does_not_build_for_another_gpu(trt: FakeEnterprise, tiny_bundle: Path) -> None:
    with pytest.raises(InputError, match=r"12\.0: TensorRT builds for the GPU it builds on, and this one has 8\.9"):
        build_plans(tiny_bundle, PlanRequest("trt", ("12.0",)))


def test_a_graph_it_refuses_is_named_and_leaves_nothing(
    trt: FakeEnterprise, tiny_checkpoints: Path, tmp_path: Path
) -> None:
    bundle = tmp_path / "b"
    build_bundle(request(tiny_checkpoints), bundle)
    trt.Builder.return_value.build_serialized_network.return_value = None
    with pytest.raises(BackendError, match=r"target\.onnx: TensorRT 10\.16\.1 can't build it"):
        build_plans(bundle, PlanRequest("trt"))
    assert list((bundle / "engines").iterdir()) == []
    assert Bundle.open(bundle).manifest.engine_sets == ()


def test_a_package_that_is_missing_or_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flavour.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BackendError, match=r"tensorrt is not installed.*pypi\.nvidia\.com"):
        load_module(FLAVOURS["trt"])
    monkeypatch.setattr(flavour.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(flavour.importlib, "import_module", lambda name: SimpleNamespace(__version__="10.2.0"))
    with pytest.raises(BackendError, match=r"tensorrt 10\.2\.0 is installed and too old\. Expected 10\.3 or newer"):
        load_module(FLAVOURS["trt"])


@pytest.mark.parametrize("text", ["", "89", "8.", "sm89", "8.9.1"])
def test_capabilities_are_numbers(text: str) -> None:
    with pytest.raises(InputError, match="expected a number like"):
        parse_capability(text)


def test_int8_graphs_for_the_cpu_get_no_plans(trt: FakeEnterprise, tiny_checkpoints: Path, tmp_path: Path) -> None:
    build_bundle(replace(request(tiny_checkpoints), precision="int8"), tmp_path / "b")
    with pytest.raises(InputError, match=r"its int8 graphs are made for the CPU.*--precision int8 --backend trt-rtx"):
        build_plans(tmp_path / "b", PlanRequest("trt"))


def test_parts_that_stay_on_the_cpu_get_no_plans(trt: FakeEnterprise, tiny_checkpoints: Path, tmp_path: Path) -> None:
    build_bundle(request(tiny_checkpoints), tmp_path / "b")
    manifest = Bundle.open(tmp_path / "b").manifest
    with_encoder = manifest.model_copy(update={"image_encoder": manifest.image_decoder})
    assert "image encoder" in with_encoder.parts()
    assert set(planned_parts(with_encoder)) == {"target", "draft", "draft sampler", "image decoder"}
