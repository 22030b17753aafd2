"""Plans really built by tensorrt-rtx, which needs neither GPU nor driver for it. Running them does."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
from coolsd_trt.engines.bundle import Bundle
from coolsd_trt.engines.trt import plans
from coolsd_trt.engines.trt.plans import PlanRequest, PlanResult, build_plans
from coolsd_trt.export.build import BuildRequest, build_bundle
from coolsd_trt.runtime import BackendError, InputError, Pipeline

pytest.importorskip("tensorrt_rtx", reason="needs tensorrt-rtx: pip install 'coolsd-trt[rtx]'")
pytestmark = pytest.mark.slow

CAPABILITIES = ("8.9", "12.0")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[PlanResult]]:
    folder = tmp_path_factory.mktemp("rtx")
    tiny.make_checkpoints(folder, dim=128, ffn=256, vocab=64)
    parts = (folder / name for name in ("target", "image_tokenizer", "draft"))
    options = {"max_draft_length": 8, "lowering": "tensor_scatter", "precision": "fp16", "tensorrt": True}
    request = BuildRequest(*parts, **options)
    build_bundle(request, folder / "bundle")
    return folder / "bundle", build_plans(folder / "bundle", PlanRequest("trt-rtx", CAPABILITIES, max_batch=2))


def test_plans_for_two_gpu_generations(built: tuple[Path, list[PlanResult]]) -> None:
    path, results = built
    manifest = Bundle.open(path).manifest
    assert [result.cached for result in results] == [False, False]
    assert tuple(engines.compute_capability for engines in manifest.engine_sets) == CAPABILITIES


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
