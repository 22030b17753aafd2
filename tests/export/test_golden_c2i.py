"""Class-conditional LlamaGen against the official code: checkpoint -> bundle -> onnxruntime."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from coolsd_trt.export.build import BuildRequest, build_bundle
from coolsd_trt.runtime import Pipeline, SamplingConfig, SpeculativeConfig
from coolsd_trt.runtime.stepping import chain_step, guided
from coolsd_trt.runtime.warping import warp

from .golden import feed, golden_folder, replay

AR = SpeculativeConfig(rule="ar")
RUNS = {
    "greedy_cfg": dict(temperature=0),
    "greedy_cfg_interval10": dict(temperature=0, cfg_interval=10),
    "greedy_nocfg": dict(temperature=0, cfg_scale=1),
    "icdf_t1_topk_p1": dict(top_k=100),
    "icdf_t09_topk_p09": dict(temperature=0.9, top_k=100, top_p=0.9),
    "icdf_t1_k0_p1": dict(cfg_interval=10),
    "icdf_t12_topk0_p08_nocfg": dict(temperature=1.2, top_p=0.8, cfg_scale=1),
}


@pytest.fixture(scope="module")
def folder() -> Path:
    return golden_folder("llamagen_c2i")


@pytest.fixture(scope="module")
def data(folder: Path) -> dict[str, np.ndarray]:
    return dict(np.load(folder / "goldens.npz"))


@pytest.fixture(scope="module")
def runs(folder: Path) -> dict[str, np.ndarray]:
    return dict(np.load(folder / "sampling.npz"))


@pytest.fixture(scope="module", params=["model.safetensors", "c2i_tiny_256.pt"])
def pipeline(folder: Path, tmp_path_factory: pytest.TempPathFactory, request) -> Iterator[Pipeline]:
    if not (folder / request.param).is_file():
        pytest.skip(f"{folder / request.param} is not there")
    out = tmp_path_factory.mktemp("bundle") / "c2i"
    build_bundle(BuildRequest(folder / request.param, golden_folder("llamagen_vq16") / "vq_ds16_tiny.pt"), out)
    with Pipeline.load(out, threads=1) as loaded:
        yield loaded


def branches(pipeline: Pipeline, class_ids: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Interleaved rows, cond then uncond of each image: the class token, then the image tokens."""
    info = pipeline.info
    classes = np.stack([class_ids, np.full_like(class_ids, info.null_class)], axis=1).reshape(-1, 1)
    return np.concatenate([classes + info.class_id_offset, np.repeat(tokens, 2, axis=0)], axis=1)


def in_golden_order(rows: np.ndarray) -> np.ndarray:
    """Interleaved rows -> cond 0, cond 1, null, null."""
    return np.concatenate([rows[0::2], rows[1::2]])


def test_uncached_pass(pipeline: Pipeline, data: dict[str, np.ndarray]) -> None:
    target, n = pipeline._engines.target, data["logits_full"].shape[1]
    target.allocate(4, 270)
    out = chain_step(target, branches(pipeline, data["class_ids"], data["tokens"])[:, :n], np.zeros(4, np.int64))
    np.testing.assert_allclose(in_golden_order(out.logits), data["logits_full"], atol=1e-4, rtol=0)
    hidden = data["final_norm_output"]
    np.testing.assert_allclose(in_golden_order(out.hidden)[:, : hidden.shape[1]], hidden, atol=1e-4, rtol=0)


def test_cached_steps_guidance_and_interval(pipeline: Pipeline, data: dict[str, np.ndarray]) -> None:
    target, rows = pipeline._engines.target, data["rows"]
    target.allocate(4, 270)
    ids = branches(pipeline, data["class_ids"], data["tokens"])[:, : rows[-1] + 1]
    logits = feed(target, ids, np.zeros(4, np.int64))
    np.testing.assert_allclose(in_golden_order(logits)[:, rows], data["logits_cached"], atol=1e-4, rtol=0)
    for key, interval in (("logits_cfg", -1), ("logits_cfg_interval10", 10)):
        n = data[key].shape[1]
        combined = guided(logits[:, :n], SamplingConfig(cfg_scale=4, cfg_interval=interval), np.arange(n))
        np.testing.assert_allclose(combined, data[key], atol=5e-4, rtol=0)


@pytest.mark.parametrize(
    "key, settings",
    [
        ("a", dict(temperature=0.9, top_k=100, top_p=0.9)),
        ("b", dict(top_k=100)),
        ("c", dict(temperature=1.3, top_p=0.7)),
    ],
)
def test_filters(data: dict[str, np.ndarray], key: str, settings: dict) -> None:
    p = warp(data["filter_in_logits"], SamplingConfig(**settings))
    expected = data[f"filter_probs_{key}"]
    np.testing.assert_array_equal(p > 0, expected > 0)
    np.testing.assert_allclose(p, expected, atol=1e-6)


@pytest.mark.parametrize("name", RUNS)
def test_sampled_runs_token_for_token(
    pipeline: Pipeline,
    data: dict[str, np.ndarray],
    runs: dict[str, np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    replay(pipeline, monkeypatch, runs.get(f"uniforms_{name}", np.zeros((256, 2))))
    settings = {"cfg_scale": 4, **RUNS[name]}
    result = pipeline.generate(data["class_ids"].tolist(), speculative=AR, **settings)
    np.testing.assert_array_equal(result.tokens, runs[f"seq_{name}"])


@pytest.mark.parametrize("name", [*RUNS, "gumbel_t1_topk_p1"])
def test_logits_along_the_sampled_runs(
    pipeline: Pipeline, data: dict[str, np.ndarray], runs: dict[str, np.ndarray], name: str
) -> None:
    if f"logits_{name}" not in runs:
        pytest.skip(f"logits_{name} is not part of the committed subset")
    tokens, expected = runs[f"seq_{name}"], runs[f"logits_{name}"]
    target, n = pipeline._engines.target, tokens.shape[1]
    target.allocate(4, 270)
    ids = branches(pipeline, data["class_ids"], tokens)[:, :n]
    logits = chain_step(target, ids, np.zeros(4, np.int64)).logits
    settings = RUNS.get(name, {})
    sampling = SamplingConfig(cfg_scale=settings.get("cfg_scale", 4), cfg_interval=settings.get("cfg_interval", -1))
    logits = guided(logits, sampling, np.arange(n)) if sampling.guided else logits[0::2]
    np.testing.assert_allclose(logits[:, [*range(12), n - 2, n - 1]], expected, atol=5e-4, rtol=0)
    if name.startswith("gumbel"):
        with np.errstate(divide="ignore"):
            drawn = np.log(warp(logits, SamplingConfig(top_k=100))) + data["gumbel"].swapaxes(0, 1)
        np.testing.assert_array_equal(drawn.argmax(axis=-1), tokens)
