"""Class-conditional LlamaGen against the official code: checkpoint -> bundle -> onnxruntime."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from coolsd_trt.export.build import BuildRequest, build_bundle
from coolsd_trt.runtime import Pipeline, SpeculativeConfig
from coolsd_trt.runtime.condition import Prompt, class_prompts

from .golden import (
    RUNS,
    cached,
    check_filters,
    check_guidance,
    check_gumbel,
    check_run,
    golden_folder,
    in_golden_order,
    load,
    replay,
    uncached,
)
from .models import ArrayCheckpoint, tokenizer_tensors

SET = "llamagen_c2i"
SCALE = 4


@pytest.fixture(scope="module", params=["model.safetensors", "c2i_tiny_256.pt"])
def pipeline(tmp_path_factory: pytest.TempPathFactory, request) -> Iterator[Pipeline]:
    target = golden_folder(SET) / request.param
    if not target.is_file():
        pytest.skip(f"{target} is not there")
    out = tmp_path_factory.mktemp("bundle") / "c2i"
    build_bundle(BuildRequest(target, ArrayCheckpoint(tokenizer_tensors(512))), out)
    with Pipeline.load(out, threads=1) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def data() -> dict[str, np.ndarray]:
    return load(SET, "goldens.npz")


@pytest.fixture(scope="module")
def runs() -> dict[str, np.ndarray]:
    return load(SET, "sampling.npz")


@pytest.fixture
def prompts(pipeline: Pipeline, data: dict[str, np.ndarray]) -> list[Prompt]:
    return class_prompts(pipeline.info.condition, data["class_ids"].tolist())


def test_uncached_pass(pipeline: Pipeline, prompts: list[Prompt], data: dict[str, np.ndarray]) -> None:
    n = data["logits_full"].shape[1]
    logits, hidden = uncached(pipeline, prompts, data["tokens"][:, : n - 1])
    np.testing.assert_allclose(in_golden_order(logits), data["logits_full"], atol=1e-4, rtol=0)
    expected = data["final_norm_output"]
    np.testing.assert_allclose(in_golden_order(hidden)[:, : expected.shape[1]], expected, atol=1e-4, rtol=0)


def test_cached_steps_and_guidance(pipeline: Pipeline, prompts: list[Prompt], data: dict[str, np.ndarray]) -> None:
    rows = data["rows"]
    logits = cached(pipeline, prompts, data["tokens"][:, : rows[-1]])
    np.testing.assert_allclose(in_golden_order(logits)[:, rows], data["logits_cached"], atol=1e-4, rtol=0)
    check_guidance(logits, data, SCALE, atol=5e-4)


def test_filters(data: dict[str, np.ndarray]) -> None:
    check_filters(data)


@pytest.mark.parametrize("name", RUNS)
def test_sampled_runs_token_for_token(
    pipeline: Pipeline, data: dict[str, np.ndarray], runs: dict[str, np.ndarray], monkeypatch, name: str
) -> None:
    replay(pipeline, monkeypatch, runs.get(f"uniforms_{name}", np.zeros((256, 2))))
    settings = {"cfg_scale": SCALE, "top_k": 0, "speculative": SpeculativeConfig(rule="ar"), **RUNS[name]}
    result = pipeline.generate(data["class_ids"].tolist(), **settings)
    np.testing.assert_array_equal(result.tokens, runs[f"seq_{name}"])


@pytest.mark.parametrize("name", [*RUNS, "gumbel_t1_topk_p1"])
def test_logits_along_the_sampled_runs(
    pipeline: Pipeline, prompts: list[Prompt], data: dict[str, np.ndarray], runs: dict[str, np.ndarray], name: str
) -> None:
    if f"logits_{name}" not in runs:
        pytest.skip(f"logits_{name} is not part of the committed subset")
    logits = check_run(pipeline, prompts, runs, name, SCALE, atol=5e-4)
    if name.startswith("gumbel"):
        check_gumbel(logits, data, runs)
