"""A profile on a fake GPU: what the GPU's clock says, and who else is told of the spans."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from coolsd_trt.engines import backends
from coolsd_trt.engines.bundle import Bundle
from coolsd_trt.engines.loader import load_engines
from coolsd_trt.engines.trt import opener
from coolsd_trt.runtime import SamplingConfig, SpeculativeConfig
from coolsd_trt.tools.profiling import measure
from coolsd_trt.tools.profiling.measure import Subject, profile
from coolsd_trt.tools.profiling.nvtx_ranges import nvtx_ranges
from coolsd_trt.tools.profiling.trace_file import trace_events
from fake_gpu import GPU, FakeCuda, FakeTrt, add_fake_plans


@pytest.fixture
def nvtx(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The package `nvtx`, as the list of what was pushed on it."""
    pushed: list[str] = []
    monkeypatch.setitem(sys.modules, "nvtx", SimpleNamespace(push_range=pushed.append, pop_range=lambda: None))
    return pushed


@pytest.fixture
def subject(tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Subject]:
    cuda = FakeCuda()
    monkeypatch.setattr(backends, "probe_gpu", lambda: GPU)
    monkeypatch.setattr(backends, "load_module", lambda flavour: FakeTrt(cuda))
    monkeypatch.setattr(opener, "Cuda", lambda: cuda)
    monkeypatch.setattr(measure, "stream_bandwidth", lambda threads: 1e10)
    path = add_fake_plans(tiny_bundle, tmp_path / "b")
    engines = load_engines(path, "trt-rtx")
    yield Subject(
        bundle=Bundle.open(path),
        engines=engines,
        prompts={"class_ids": [0]},
        sampling=SamplingConfig(),
        speculative=SpeculativeConfig(rule="lossless", draft_length=3),
        images_per_prompt=1,
        batch_size=1,
        seed=0,
        threads=1,
        base_memory=0,
    )
    engines.close()
    assert cuda.events == {}


def test_the_gpu_has_rows_and_a_track_of_its_own(subject: Subject, nvtx: list[str]) -> None:
    report, spans = profile(subject)
    assert {"target/gpu", "target/engine", "target/copies", "draft/gpu"} <= {part.name for part in report.parts}
    assert sum(part.share for part in report.parts) == pytest.approx(1)
    assert min(min(values) for values in report.part_ms.values()) >= 0
    assert report.bandwidth is None, "the host's memory says nothing of a GPU"
    events = trace_events(spans, "title")["traceEvents"]
    tracks = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert tracks == {1: "rounds", 2: "GPU"}
    gpu, passes = ([event for event in events if event["name"] == name] for name in ("gpu", "engine"))
    assert {event["tid"] for event in gpu} == {2}
    assert len(gpu) == len(passes), "steps and the decoded picture"
    assert sorted(nvtx) == sorted(span.name for span in spans if span.name != "gpu"), "of the run alone"


def test_ranges_are_for_gpus_and_for_those_who_have_the_package(
    nvtx: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert nvtx_ranges("ort-cpu") is None
    assert nvtx_ranges("ort-cuda") is sys.modules["nvtx"]
    monkeypatch.setitem(sys.modules, "nvtx", None)
    assert nvtx_ranges("trt-rtx") is None
