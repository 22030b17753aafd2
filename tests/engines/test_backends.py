"""Which backend runs, what is refused before anything is deserialised, and pictures from a fake GPU."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from coolsd_trt.engines import backends, ort_cuda
from coolsd_trt.engines.manifest import MANIFEST_NAME, LoweringName, PrecisionName
from coolsd_trt.engines.trt import opener
from coolsd_trt.export.build import BuildRequest, build_bundle
from coolsd_trt.runtime import BackendError, BundleError, Pipeline, SpeculativeConfig
from coolsd_trt.runtime.drafting import StaticDrafter, static_drafter
from fake_gpu import GPU, FakeCuda, FakeTrt, add_fake_plans


@pytest.fixture
def cuda() -> FakeCuda:
    return FakeCuda()


@pytest.fixture
def trt(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> FakeTrt:
    """A machine with a GPU and TensorRT."""
    module = FakeTrt(cuda)
    monkeypatch.setattr(backends, "probe_gpu", lambda: GPU)
    monkeypatch.setattr(backends, "load_module", lambda flavour: module)
    monkeypatch.setattr(opener, "Cuda", lambda: cuda)
    return module


def no_gpu() -> None:
    raise BackendError("no usable NVIDIA driver on this machine.")


def first_plan(bundle: Path, part: str = "target") -> Path:
    return next(bundle.glob(f"engines/*/{part}.plan"))


@pytest.mark.parametrize("rule", ["ar", "lossless", "cool"])
def test_pictures_are_those_of_the_cpu(
    tiny_bundle: Path, tmp_path: Path, trt: FakeTrt, cuda: FakeCuda, rule: str
) -> None:
    bundle = add_fake_plans(tiny_bundle, tmp_path / "b")
    options = {"seed": 3, "images_per_prompt": 2, "batch_size": 4, "speculative": SpeculativeConfig(rule=rule)}
    with Pipeline.load(tiny_bundle, "ort-cpu") as cpu, Pipeline.load(bundle, "trt-rtx") as gpu:
        assert (gpu.backend, gpu.backend_reason) == ("trt-rtx", "asked for")
        expected, made = (pipeline.generate([0, 2, 4], **options) for pipeline in (cpu, gpu))
    np.testing.assert_array_equal(made.tokens, expected.tokens)
    np.testing.assert_allclose(np.stack(made.images), np.stack(expected.images), atol=1)
    assert "launch" in cuda.names()
    assert (cuda.device, cuda.pinned, cuda.graphs, cuda.closed) == ({}, {}, [], 1)


@pytest.mark.parametrize("tree", [None, [[0], [1], [0, 0], [1, 0], [1, 0, 0]]])
def test_a_tensorrt_without_kv_cache_updates_makes_the_same_pictures(
    tiny_checkpoints: Path, tmp_path: Path, cuda: FakeCuda, trt: FakeTrt, monkeypatch: pytest.MonkeyPatch, tree: object
) -> None:
    parts = (tiny_checkpoints / name for name in ("target", "image_tokenizer", "draft"))
    build_bundle(BuildRequest(*parts, max_draft_length=8, lowering="portable"), tmp_path / "graphs")
    bundle = add_fake_plans(tmp_path / "graphs", tmp_path / "b", flavour="trt", version="10.3.0")
    monkeypatch.setattr(backends, "load_module", lambda flavour: FakeTrt(cuda, "10.3.0", rtx=False))
    options = {"seed": 3, "images_per_prompt": 2, "batch_size": 4, "speculative": SpeculativeConfig(tree=tree)}
    with Pipeline.load(bundle, "ort-cpu") as cpu, Pipeline.load(bundle, "trt") as gpu:
        expected, made = (pipeline.generate([0, 2, 4], **options) for pipeline in (cpu, gpu))
    np.testing.assert_array_equal(made.tokens, expected.tokens)
    assert "launch" in cuda.names()
    assert (cuda.device, cuda.pinned, cuda.graphs, cuda.closed) == ({}, {}, [], 1)


def test_what_was_opened_is_freed_when_a_later_part_has_no_room(
    tiny_bundle: Path, tmp_path: Path, trt: FakeTrt, cuda: FakeCuda
) -> None:
    bundle = add_fake_plans(tiny_bundle, tmp_path / "b")
    cuda._capacity = 4500  # the activations of the draft and its sampler, and not of the target
    with pytest.raises(BackendError, match="out of GPU memory: the activations of target needs"):
        Pipeline.load(bundle, "trt-rtx")
    assert (cuda.device, cuda.closed) == ({}, 1)


def test_a_plan_larger_than_the_free_memory_is_said_to_be(
    tiny_bundle: Path, tmp_path: Path, trt: FakeTrt, cuda: FakeCuda
) -> None:
    bundle = add_fake_plans(tiny_bundle, tmp_path / "b")
    trt.full = True
    with pytest.raises(BackendError, match=r"draft\.plan: TensorRT 1\.7\.1 can't load it"):
        Pipeline.load(bundle, "trt-rtx")
    cuda._capacity = 10
    with pytest.raises(BackendError, match=r"out of GPU memory: the plan draft\.plan needs .*Lower --batch-size"):
        Pipeline.load(bundle, "trt-rtx")


def test_auto_prefers_tensorrt_then_cuda_then_the_cpu_and_says_why(
    tiny_bundle: Path, tmp_path: Path, trt: FakeTrt, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = add_fake_plans(tiny_bundle, tmp_path / "b")
    with Pipeline.load(bundle) as pipeline:
        assert (pipeline.backend, pipeline.backend_reason) == ("trt-rtx", "first choice")
    with Pipeline.load(tiny_bundle) as pipeline:
        assert pipeline.backend == "ort-cpu"
        assert "trt-rtx: the bundle has no TensorRT plans; trt: the bundle has no" in pipeline.backend_reason
        assert "has no CUDAExecutionProvider" in pipeline.backend_reason
    monkeypatch.setattr(backends, "probe_gpu", no_gpu)
    with Pipeline.load(bundle) as pipeline:
        assert pipeline.backend == "ort-cpu"
        assert pipeline.backend_reason.startswith("trt-rtx: no usable NVIDIA driver on this machine; trt: ")


def test_what_was_asked_is_never_replaced(tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = add_fake_plans(tiny_bundle, tmp_path / "b")
    monkeypatch.setattr(backends, "probe_gpu", no_gpu)
    for name, words in (
        ("trt-rtx", "backend trt-rtx: no usable NVIDIA driver"),
        ("trt", "backend trt: the bundle has only plans of trt-rtx"),
        ("ort-cuda", "backend ort-cuda: the installed onnxruntime .* has no CUDAExecutionProvider"),
    ):
        with pytest.raises((BackendError, BundleError), match=words):
            Pipeline.load(bundle, name)


def test_the_driver_is_asked_before_tensorrt_is_touched(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = add_fake_plans(tiny_bundle, tmp_path / "b")
    monkeypatch.setattr(backends, "probe_gpu", no_gpu)
    monkeypatch.setattr(backends, "load_module", lambda flavour: pytest.fail("TensorRT was loaded first"))
    with pytest.raises(BackendError, match="no usable NVIDIA driver"):
        Pipeline.load(bundle, "trt-rtx")


@pytest.mark.parametrize(
    "made_for, words",
    [
        ({"version": "1.6.0"}, r"built by version 1\.6\.0, 1\.7\.1 is installed.*--backend trt-rtx"),
        ({"flavour": "trt"}, r"only plans of trt\..*--backend trt-rtx"),
        ({"capability": "12.0"}, r"for compute capability 12\.0, this GPU has 8\.9.*--compute-capability 8\.9"),
    ],
)
def test_plans_for_something_else_are_refused_before_they_are_loaded(
    tiny_bundle: Path, tmp_path: Path, trt: FakeTrt, made_for: dict, words: str
) -> None:
    bundle = add_fake_plans(tiny_bundle, tmp_path / "b", **made_for)
    with pytest.raises(BundleError, match=words):
        Pipeline.load(bundle, "trt-rtx")
    assert trt.deserialised == 0


def swap(bundle: Path) -> None:
    target, draft = first_plan(bundle), first_plan(bundle, "draft")
    contents = target.read_bytes(), draft.read_bytes()
    target.write_bytes(contents[1])
    draft.write_bytes(contents[0])


@pytest.mark.parametrize(
    "damage, words",
    [
        (lambda b: first_plan(b).write_bytes(first_plan(b).read_bytes()[:-3]), r"target\.plan: .* truncated"),
        (lambda b: first_plan(b).write_bytes(b"#" + first_plan(b).read_bytes()[1:]), r"target\.plan: sha256 is"),
        (lambda b: first_plan(b).unlink(), r"target\.plan: the file is missing"),
        (swap, r"target\.plan: .* was replaced"),
    ],
)
def test_damaged_and_swapped_plans_are_refused_before_they_are_loaded(
    tiny_bundle: Path, tmp_path: Path, trt: FakeTrt, damage: Callable[[Path], object], words: str
) -> None:
    bundle = add_fake_plans(tiny_bundle, tmp_path / "b")
    damage(bundle)
    with pytest.raises(BundleError, match=words):
        Pipeline.load(bundle, "trt-rtx")
    assert trt.deserialised == 0


def test_plans_swapped_in_the_manifest_are_told_by_their_graphs(
    tiny_bundle: Path, tmp_path: Path, trt: FakeTrt, cuda: FakeCuda
) -> None:
    bundle = add_fake_plans(tiny_bundle, tmp_path / "b")
    content = json.loads((bundle / MANIFEST_NAME).read_text())
    plans = content["engine_sets"][0]["plans"]
    plans["target"], plans["draft"] = plans["draft"], plans["target"]
    (bundle / MANIFEST_NAME).write_text(json.dumps(content))
    with pytest.raises(BundleError, match=r"draft\.plan, which was made from another graph for the target"):
        Pipeline.load(bundle, "trt-rtx")
    plans["target"] = plans.pop("draft")
    (bundle / MANIFEST_NAME).write_text(json.dumps(content))
    with pytest.raises(BundleError, match=r"the manifest has no plan for the draft"):
        Pipeline.load(bundle, "trt-rtx")
    assert (trt.deserialised, cuda.device) == (0, {})


def test_of_several_sizes_the_largest_is_taken(tiny_bundle: Path, tmp_path: Path, trt: FakeTrt) -> None:
    both = add_fake_plans(add_fake_plans(tiny_bundle, tmp_path / "a", max_batch=3), tmp_path / "both", max_batch=1)
    with Pipeline.load(both, "trt-rtx") as pipeline:
        assert pipeline.generate([0, 1, 2], batch_size=3).tokens.shape == (3, 16)


def test_bfloat16_is_refused_on_the_cpu(tiny_checkpoints: Path, tmp_path: Path) -> None:
    parts = (tiny_checkpoints / name for name in ("target", "image_tokenizer", "draft"))
    request = BuildRequest(*parts, precision="bf16", tensorrt=True, lowering="tensor_scatter")
    manifest = build_bundle(request, tmp_path / "b").manifest
    assert manifest.target.cache_dtype == "bfloat16"
    with pytest.raises(BackendError, match="bfloat16, for which onnxruntime has no kernels on the CPU"):
        Pipeline.load(tmp_path / "b", "ort-cpu")


class GpuSession:
    """An onnxruntime session that says it runs on the GPU, over a fake GPU's memory."""

    def __init__(self, session: object, providers: list[str]) -> None:
        self._session, self.providers = session, providers

    def get_providers(self) -> list[str]:
        return [*self.providers, "CPUExecutionProvider"]

    def io_binding(self) -> object:
        binding = self._session.io_binding()
        places: list[tuple[str, str]] = []

        def on_cpu(bind: Callable[..., None]) -> Callable[..., None]:
            def call(name: str, device: str, *rest: object) -> None:
                places.append((name, device))
                bind(name, "cpu", *rest)

            return call

        return SimpleNamespace(
            bind_input=on_cpu(binding.bind_input),
            bind_output=on_cpu(binding.bind_output),
            places=places,
            real=binding,
        )

    def run_with_iobinding(self, binding: SimpleNamespace) -> None:
        assert all((device == "cuda") == name.startswith(("past_", "present_")) for name, device in binding.places)
        self._session.run_with_iobinding(binding.real)

    def run(self, *arguments: object) -> object:
        return self._session.run(*arguments)

    def __getattr__(self, name: str) -> object:
        return getattr(self._session, name)


@pytest.fixture
def onnxruntime_gpu(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list, GpuSession]]:
    """onnxruntime-gpu on a machine with a GPU. Lists what was opened: file, providers with options, session."""
    import onnxruntime

    real = onnxruntime.InferenceSession
    opened = []

    def session(path: str, options: object, providers: list, enable_fallback: int) -> object:
        assert not enable_fallback
        made = real(path, options, providers=["CPUExecutionProvider"])
        names = [name for name, _ in providers]
        if names == ["CPUExecutionProvider"]:
            return made
        opened.append((Path(path).stem, providers, GpuSession(made, names)))
        return opened[-1][2]

    monkeypatch.setattr(onnxruntime, "InferenceSession", session)
    available = ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: available)
    monkeypatch.setattr(backends, "probe_gpu", lambda: GPU)
    monkeypatch.setattr(ort_cuda, "Cuda", lambda: cuda)
    return opened


@pytest.mark.usefixtures("onnxruntime_gpu")
def test_the_cuda_provider_keeps_caches_on_the_device(tiny_bundle: Path, cuda: FakeCuda) -> None:
    options = {"seed": 3, "images_per_prompt": 4, "speculative": SpeculativeConfig(rule="cool", delta=2.0)}
    with Pipeline.load(tiny_bundle, "ort-cpu") as cpu, Pipeline.load(tiny_bundle, "ort-cuda") as gpu:
        expected, made = (pipeline.generate([0, 2], **options) for pipeline in (cpu, gpu))
        assert len(cuda.device) == 2 * 2 + 2 * 1
    np.testing.assert_array_equal(made.tokens, expected.tokens)
    assert "move" in cuda.names()
    assert (cuda.device, cuda.closed) == ({}, 1)


@pytest.mark.parametrize("lowering", ["tensor_scatter", "portable"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("backend", ["ort-cuda", "ort-trt"])
def test_chains_run_on_the_cuda_provider_in_one_call(
    tiny_checkpoints: Path,
    tmp_path: Path,
    cuda: FakeCuda,
    onnxruntime_gpu: list[tuple[str, list, GpuSession]],
    monkeypatch: pytest.MonkeyPatch,
    backend: str,
    precision: PrecisionName,
    lowering: LoweringName,
) -> None:
    parts = (tiny_checkpoints / name for name in ("target", "image_tokenizer", "draft"))
    made_for = {"precision": precision, "lowering": lowering, "tensorrt": True}
    build_bundle(BuildRequest(*parts, max_draft_length=8, **made_for), tmp_path / "b")
    options = {"seed": 3, "images_per_prompt": 2, "speculative": SpeculativeConfig(rule="cool", draft_length=3)}
    made = []
    for drafter in (static_drafter, StaticDrafter):
        monkeypatch.setattr("coolsd_trt.runtime.pipeline.static_drafter", drafter)
        with Pipeline.load(tmp_path / "b", backend) as pipeline:
            made.append(pipeline.generate([0, 2, 4], batch_size=4, **options).tokens)
    np.testing.assert_array_equal(*made)
    assert (cuda.device, cuda.closed) == ({}, 2)
    chain = next(providers for name, providers, _ in onnxruntime_gpu if name == "draft_gpu_chain_3")
    assert [provider for provider, _ in chain] == ["CUDAExecutionProvider"]
    names = [name for name, _, _ in onnxruntime_gpu]
    assert names.count("draft_gpu_chain_3") == names.count("draft") == 1, "each way opens what it runs"


@pytest.mark.usefixtures("onnxruntime_gpu")
def test_a_tree_makes_the_same_pictures_on_every_backend(
    tiny_bundle: Path, tmp_path: Path, trt: FakeTrt, cuda: FakeCuda
) -> None:
    plans = add_fake_plans(tiny_bundle, tmp_path / "b")
    tree = SpeculativeConfig(rule="lossless", tree=[[0], [1], [0, 0], [1, 0], [1, 0, 0]])
    made = {}
    for backend in ("ort-cpu", "ort-cuda", "ort-trt", "trt-rtx"):
        del cuda.log[:]
        with Pipeline.load(plans, backend) as pipeline:
            made[backend] = pipeline.generate([0, 2], seed=5, batch_size=2, speculative=tree).tokens
        assert ("move_strided" in cuda.names()) == (backend != "ort-cpu")
    for tokens in made.values():
        np.testing.assert_array_equal(tokens, made["ort-cpu"])
    assert (cuda.device, cuda.closed) == ({}, 3)


@pytest.mark.usefixtures("onnxruntime_gpu")
def test_a_provider_that_silently_fell_back_is_refused(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = shutil.copytree(tiny_bundle, tmp_path / "b")
    monkeypatch.setattr(GpuSession, "get_providers", lambda self: [*self.providers[1:], "CPUExecutionProvider"])
    with pytest.raises(BackendError, match=r"CUDAExecutionProvider was asked, .* fell back to CPUExecutionProvider"):
        Pipeline.load(bundle, "ort-cuda")
    with pytest.raises(BackendError, match=r"TensorrtExecutionProvider was asked, .* to CUDAExecutionProvider"):
        Pipeline.load(bundle, "ort-trt")


def test_the_tensorrt_provider_keeps_caches_on_the_device_and_its_engines_in_the_bundle(
    tiny_bundle: Path, tmp_path: Path, cuda: FakeCuda, onnxruntime_gpu: list[tuple[str, list, GpuSession]]
) -> None:
    bundle = shutil.copytree(tiny_bundle, tmp_path / "b")
    options = {"seed": 3, "images_per_prompt": 4, "speculative": SpeculativeConfig(rule="cool", delta=2.0)}
    with Pipeline.load(bundle, "ort-cpu") as cpu, Pipeline.load(bundle, "ort-trt") as gpu:
        expected, made = (pipeline.generate([0, 2], **options) for pipeline in (cpu, gpu))
        assert len(cuda.device) == 2 * 2 + 2 * 1
        with pytest.raises(BackendError, match=r"a batch of 9 pictures was asked; backend ort-trt takes 8"):
            gpu.generate([0] * 9, batch_size=9)
    np.testing.assert_array_equal(made.tokens, expected.tokens)
    assert (cuda.device, cuda.closed) == ({}, 1)

    (folder,) = (bundle / "engines").iterdir()
    assert folder.name.startswith("ort-trt-")
    (_, draft, _), (_, target, session), (name, decoder, _) = onnxruntime_gpu
    assert [provider for provider, _ in target] == ["TensorrtExecutionProvider", "CUDAExecutionProvider"]
    asked = target[0][1]
    assert (asked["trt_engine_cache_path"], asked["trt_engine_cache_prefix"]) == (str(folder), "target")
    assert "mask:1x1x1x25" in asked["trt_profile_min_shapes"].split(",")
    assert "mask:16x1x9x25" in asked["trt_profile_max_shapes"].split(",")
    assert "features:2x6x32" in draft[0][1]["trt_profile_opt_shapes"].split(",")
    # Every dynamic input has a range, and the cache length is a number by then.
    inputs = {value.name: value.shape for value in session.get_inputs()}
    assert {entry.split(":")[0] for entry in asked["trt_profile_min_shapes"].split(",")} == set(inputs)
    assert inputs["past_key_0"][2] == inputs["mask"][3] == 25
    assert (name, decoder) == ("image_decoder", [("CUDAExecutionProvider", {})])


@pytest.mark.usefixtures("onnxruntime_gpu")
def test_the_tensorrt_provider_is_refused_what_it_can_not_do(
    tiny_bundle: Path, tiny_checkpoints: Path, tmp_path: Path
) -> None:
    parts = (tiny_checkpoints / name for name in ("target", "image_tokenizer", "draft"))
    build_bundle(BuildRequest(*parts, precision="int4"), tmp_path / "int4")
    with pytest.raises(BackendError, match="backend ort-trt: the bundle is int4, expected fp32 or fp16"):
        Pipeline.load(tmp_path / "int4", "ort-trt")
    bundle = shutil.copytree(tiny_bundle, tmp_path / "b")
    (bundle / "engines").write_text("in the way")
    with pytest.raises(BackendError, match=r"engines/ort-trt-.* can't be written .*Make the bundle writable"):
        Pipeline.load(bundle, "ort-trt")


@pytest.mark.usefixtures("onnxruntime_gpu")
def test_auto_does_not_wait_for_engines(tiny_bundle: Path) -> None:
    with Pipeline.load(tiny_bundle) as pipeline:
        assert pipeline.backend == "ort-cuda"
        assert "ort-trt" not in pipeline.backend_reason
