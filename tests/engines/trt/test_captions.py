"""A text-conditional pair on TensorRT: features as an input, a prefill profile, the caption projection."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tiny
from coolsd_trt.engines import backends
from coolsd_trt.engines.bundle import Bundle
from coolsd_trt.engines.trt import opener
from coolsd_trt.engines.trt.plans import PlanRequest, build_plans
from coolsd_trt.engines.trt.profiles import profiles_of
from coolsd_trt.export.build import BuildRequest, build_bundle
from coolsd_trt.export.locate import open_checkpoint
from coolsd_trt.runtime import Pipeline, SpeculativeConfig
from fake_gpu import GPU, FakeCuda, FakeTrt, add_fake_plans


@pytest.fixture(scope="module")
def bundle(golden: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("captions")
    target, rng = golden / "lantern_llamagen" / "target", np.random.default_rng(0)
    vocab, hidden = open_checkpoint(target).shapes["lm_head.weight"]
    tiny.save(folder / "tokenizer", tiny.tokenizer_tensors(rng, vocab))
    draft = tiny.draft_tensors(rng, hidden, 2 * hidden, vocab)
    tiny.save(folder / "draft", draft, num_attention_heads=4, input_type="t2i")
    request = BuildRequest(
        target, folder / "tokenizer", folder / "draft", max_draft_length=8, lowering="tensor_scatter"
    )
    build_bundle(request, folder / "bundle")
    yield folder / "bundle"


def test_a_condition_longer_than_a_draft_has_a_profile_of_its_own(bundle: Path) -> None:
    manifest = Bundle.open(bundle).manifest
    prefix = manifest.prefix_length
    assert prefix > 9
    found = {profile.name: profile.tokens for profile in profiles_of(manifest, "target", 2)}
    assert found == {"decode": (1, 1, 2), "verify": (3, 6, 9), "prefill": (10, prefix, prefix)}
    assert [profile.name for profile in profiles_of(manifest, "caption projection", 2)] == ["picture"]


def test_pictures_are_those_of_the_cpu(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda()
    monkeypatch.setattr(backends, "probe_gpu", lambda: GPU)
    monkeypatch.setattr(backends, "load_module", lambda flavour: FakeTrt(cuda))
    monkeypatch.setattr(opener, "Cuda", lambda: cuda)
    condition = Bundle.open(bundle).manifest.condition
    features = np.random.default_rng(1).standard_normal((2, 7, condition.feature_size)).astype(np.float32)
    made = []
    for path, backend in ((bundle, "ort-cpu"), (add_fake_plans(bundle, tmp_path / "b"), "trt-rtx")):
        with Pipeline.load(path, backend, threads=1) as pipeline:
            lossless = SpeculativeConfig(rule="lossless")
            made.append(pipeline.generate(caption_features=features, seed=2, speculative=lossless))
    np.testing.assert_array_equal(made[0].tokens, made[1].tokens)
    assert (cuda.device, cuda.pinned, cuda.closed) == ({}, {}, 1)


@pytest.mark.slow
def test_tensorrt_rtx_builds_it(bundle: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="needs tensorrt-rtx: pip install 'coolsd-trt[rtx]'")
    [result] = build_plans(bundle, PlanRequest("trt-rtx", ("8.9",), max_batch=2))
    assert set(result.engines.plans) == {"target", "draft", "draft sampler", "image decoder", "caption projection"}
