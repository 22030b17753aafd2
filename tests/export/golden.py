"""The golden reference data, and steps through a bundle's engines as its sampler would take them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from coolsd_trt.runtime import Pipeline, SamplingConfig
from coolsd_trt.runtime.condition import Prompt
from coolsd_trt.runtime.stepping import chain_step, guided, prefill_step
from coolsd_trt.runtime.warping import warp

ROOT = Path(__file__).parent.parent.parent
# The whole set lies beside the project; a small part of it is committed.
PLACES = (ROOT.parent / "shared" / "golden", ROOT / "tests" / "golden")

# Settings of the sampled runs, all with cfg_scale as the set has it unless they name their own.
RUNS = {
    "greedy_cfg": dict(temperature=0),
    "greedy_cfg_interval10": dict(temperature=0, cfg_interval=10),
    "greedy_nocfg": dict(temperature=0, cfg_scale=1),
    "icdf_t1_topk_p1": dict(top_k=100),
    "icdf_t09_topk_p09": dict(temperature=0.9, top_k=100, top_p=0.9),
    "icdf_t1_k0_p1": dict(cfg_interval=10),
    "icdf_t12_topk0_p08_nocfg": dict(temperature=1.2, top_p=0.8, cfg_scale=1),
}


def golden_folder(name: str, part: str = "") -> Path:
    """Where that set, with that file or folder, is. Skips the test, saying where it was looked for, when it is
    nowhere."""
    for place in PLACES:
        if (place / name / part).exists():
            return place / name
    wanted = f"{part!r} of golden set {name!r}" if part else f"golden set {name!r}"
    pytest.skip(f"{wanted} is in none of {', '.join(map(str, PLACES))}")


def load(name: str, file: str) -> dict[str, np.ndarray]:
    return dict(np.load(golden_folder(name, file) / file))


class RecordedUniforms:
    """A recorded stream of uniforms in place of a generator."""

    def __init__(self, stream: np.ndarray) -> None:
        self._stream = iter(stream.tolist())

    def random(self) -> float:
        return next(self._stream)


def replay(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, streams: np.ndarray) -> None:
    """Let image i of the next call draw from column i of `streams` [n, N]."""
    monkeypatch.setattr(
        "coolsd_trt.runtime.pipeline.image_generator", lambda seed, index: RecordedUniforms(streams[:, index])
    )


def in_golden_order(rows: np.ndarray) -> np.ndarray:
    """Interleaved rows -> cond 0, cond 1, uncond 0, uncond 1."""
    return np.concatenate([rows[0::2], rows[1::2]])


def uncached(pipeline: Pipeline, prompts: list[Prompt], tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Conditions and image tokens [N, n] in two passes: logits and hidden [2N, n + 1, ...], row k predicts token k."""
    target, prefix = pipeline._engines.target, len(prompts[0].mask)
    target.allocate(2 * len(prompts), prefix + pipeline.info.n_tokens)
    out = prefill_step(target, prompts, 2)
    first = out.logits[:, -1:].copy(), out.hidden[:, -1:].copy()
    ids, starts = np.repeat(tokens, 2, axis=0), np.full(2 * len(prompts), prefix)
    rest = chain_step(target, ids, starts, visible=visible(prompts))
    return np.concatenate([first[0], rest.logits], axis=1), np.concatenate([first[1], rest.hidden], axis=1)


def cached(pipeline: Pipeline, prompts: list[Prompt], tokens: np.ndarray) -> np.ndarray:
    """The same logits, one token at a time."""
    target, prefix = pipeline._engines.target, len(prompts[0].mask)
    target.allocate(2 * len(prompts), prefix + pipeline.info.n_tokens)
    logits = [prefill_step(target, prompts, 2).logits[:, -1:].copy()]
    for k in range(tokens.shape[1]):
        ids, starts = np.repeat(tokens[:, k : k + 1], 2, axis=0), np.full(2 * len(prompts), prefix + k)
        logits.append(chain_step(target, ids, starts, visible=visible(prompts)).logits.copy())
    return np.concatenate(logits, axis=1)


def visible(prompts: list[Prompt]) -> np.ndarray:
    return np.repeat(np.stack([prompt.visible for prompt in prompts]), 2, axis=0)


def check_filters(data: dict[str, np.ndarray]) -> None:
    for key, settings in {
        "a": dict(temperature=0.9, top_k=100, top_p=0.9),
        "b": dict(top_k=100),
        "c": dict(temperature=1.3, top_p=0.7),
    }.items():
        p, expected = warp(data["filter_in_logits"], SamplingConfig(**settings)), data[f"filter_probs_{key}"]
        np.testing.assert_array_equal(p > 0, expected > 0)
        np.testing.assert_allclose(p, expected, atol=1e-6)


def check_guidance(logits: np.ndarray, data: dict[str, np.ndarray], scale: float, atol: float) -> None:
    """CFG, everywhere and within interval 10, on interleaved cached logits."""
    for key, interval in (("logits_cfg", -1), ("logits_cfg_interval10", 10)):
        n = data[key].shape[1]
        combined = guided(logits[:, :n], SamplingConfig(cfg_scale=scale, cfg_interval=interval), np.arange(n))
        np.testing.assert_allclose(combined, data[key], atol=atol, rtol=0)


def check_run(
    pipeline: Pipeline, prompts: list[Prompt], runs: dict[str, np.ndarray], name: str, scale: float, atol: float
) -> np.ndarray:
    """The recorded logits of a run (its first 12 and last 2 tokens), with the run's tokens fed back; all logits."""
    tokens, settings = runs[f"seq_{name}"], RUNS.get(name, {})
    n = tokens.shape[1]
    logits, _ = uncached(pipeline, prompts, tokens[:, :-1])
    sampling = SamplingConfig(cfg_scale=settings.get("cfg_scale", scale), cfg_interval=settings.get("cfg_interval", -1))
    logits = guided(logits, sampling, np.arange(n)) if sampling.guided else logits[0::2]
    np.testing.assert_allclose(logits[:, [*range(12), n - 2, n - 1]], runs[f"logits_{name}"], atol=atol, rtol=0)
    return logits


def check_gumbel(logits: np.ndarray, data: dict[str, np.ndarray], runs: dict[str, np.ndarray]) -> None:
    with np.errstate(divide="ignore"):
        drawn = np.log(warp(logits, SamplingConfig(top_k=100))) + data["gumbel"].swapaxes(0, 1)
    np.testing.assert_array_equal(drawn.argmax(axis=-1), runs["seq_gumbel_t1_topk_p1"])
