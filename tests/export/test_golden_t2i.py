"""Text-conditional LlamaGen against the official code: checkpoint -> bundle -> onnxruntime."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from coolsd_trt.export.build import BuildRequest, build_bundle
from coolsd_trt.runtime import Pipeline, SpeculativeConfig
from coolsd_trt.runtime.condition import Prompt, caption_prompts
from coolsd_trt.runtime.stepping import prefill_step

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

SET = "llamagen_t2i"
SCALE = 7.5


@pytest.fixture(scope="module", params=["llamagen_t2i/t2i_tiny_256.pt", "lantern_llamagen/target"])
def pipeline(tmp_path_factory: pytest.TempPathFactory, request) -> Iterator[Pipeline]:
    """From the official file and from the same weights in LANTERN's names."""
    folder, name = request.param.split("/")
    target = golden_folder(folder, name) / name
    out = tmp_path_factory.mktemp("bundle") / "t2i"
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
    return caption_prompts(pipeline.info.condition, pipeline._engines.caption_projection, *captions(data))


def captions(data: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    return data["t5_features_right_padded"], data["t5_attention_mask"]


def test_prompts(pipeline: Pipeline, prompts: list[Prompt], data: dict[str, np.ndarray]) -> None:
    features = np.concatenate([prompt.features for prompt in prompts])
    np.testing.assert_allclose(in_golden_order(features), data["cond_embeddings"], atol=1e-5, rtol=0)
    seen = np.stack([prompt.visible for prompt in prompts])
    np.testing.assert_array_equal(seen, data["emb_mask_left_padded"])
    if pipeline.info.condition.padded_rows == "self":
        sums = np.stack([prompt.mask.sum(axis=1) for prompt in prompts])
        np.testing.assert_array_equal(sums, data["full_mask_row_sums"][:2, :120])
    image_rows = seen.sum(axis=1)[:, None] + np.arange(1, 256)
    np.testing.assert_array_equal(image_rows, data["full_mask_row_sums"][:2, 120:])


def test_logits_of_the_condition(pipeline: Pipeline, prompts: list[Prompt], data: dict[str, np.ndarray]) -> None:
    target = pipeline._engines.target
    target.allocate(4, 140)
    logits = prefill_step(target, prompts, 2).logits[:, 112:]
    np.testing.assert_allclose(in_golden_order(logits), data["prefill_logits_all"], atol=1e-4, rtol=0)


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
    check_guidance(logits, data, SCALE, atol=1e-3)


def test_filters(data: dict[str, np.ndarray]) -> None:
    check_filters(data)


@pytest.mark.parametrize("name", RUNS)
def test_sampled_runs_token_for_token(
    pipeline: Pipeline, data: dict[str, np.ndarray], runs: dict[str, np.ndarray], monkeypatch, name: str
) -> None:
    replay(pipeline, monkeypatch, runs.get(f"uniforms_{name}", np.zeros((256, 2))))
    features, mask = captions(data)
    inputs = {"caption_features": features, "caption_mask": mask}
    settings = {"cfg_scale": SCALE, "top_k": 0, "speculative": SpeculativeConfig(rule="ar"), **RUNS[name]}
    result = pipeline.generate(**inputs, **settings)
    np.testing.assert_array_equal(result.tokens, runs[f"seq_{name}"])


@pytest.mark.parametrize("name", [*RUNS, "gumbel_t1_topk_p1"])
def test_logits_along_the_sampled_runs(
    pipeline: Pipeline, prompts: list[Prompt], data: dict[str, np.ndarray], runs: dict[str, np.ndarray], name: str
) -> None:
    logits = check_run(pipeline, prompts, runs, name, SCALE, atol=1e-3)
    if name.startswith("gumbel"):
        check_gumbel(logits, data, runs)
