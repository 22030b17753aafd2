"""The sampler of a draft's chain by itself, on vocabularies that do and do not divide into equal blocks."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from coolsd_trt.export.graph.draft_sampler import write_draft_sampler
from coolsd_trt.runtime.config import SamplingConfig
from coolsd_trt.runtime.warping import warp
from onnxruntime import InferenceSession

IMAGES, HIDDEN = 200, 3


class Sampler:
    def __init__(self, folder: Path, vocab: int, opset: int = 18) -> None:
        self.vocab = vocab
        spec = write_draft_sampler(folder / "s.onnx", SimpleNamespace(vocab=vocab, hidden=HIDDEN), opset)
        assert spec.parameters == 0
        self.session = InferenceSession(str(folder / "s.onnx"), providers=["CPUExecutionProvider"])

    def draw(self, of_pictures: np.ndarray, uniforms: np.ndarray, **settings: Any) -> dict[str, np.ndarray]:
        """of_pictures: logits [N, V], without guidance."""
        n = len(of_pictures)
        given = {
            "logits": of_pictures[:, None].astype(np.float32),
            "hidden": np.zeros((n, 1, HIDDEN), dtype=np.float32),
            "last": np.zeros(n, dtype=np.int64),
            "uniforms": uniforms.astype(np.float32),
            "cond_rows": np.arange(n),
            "uncond_rows": np.arange(n),
            "image_of_row": np.arange(n),
            "cfg_scale": np.float32([1]),
            "temperature": np.float32([1]),
            "top_k": np.int64([0]),
            "greedy": np.array([False]),
            **settings,
        }
        names = [value.name for value in self.session.get_outputs()]
        return dict(zip(names, self.session.run(None, given), strict=True))


@pytest.mark.parametrize("vocab", [1, 2, 7, 64, 99, 1021, 16384])
def test_the_inverse_cdf_of_the_law(tmp_path: Path, vocab: int) -> None:
    rng = np.random.default_rng(vocab)
    logits, uniforms = rng.standard_normal((IMAGES, vocab)) * 4, rng.random(IMAGES)
    uniforms[:3] = 0, np.nextafter(1, 0), 0.5
    for top_k in (0, 1, min(5, vocab), min(vocab, 3840)):
        out = Sampler(tmp_path, vocab).draw(logits, uniforms, top_k=np.int64([top_k]))
        law = warp(logits.astype(np.float32), SamplingConfig(top_k=top_k))
        np.testing.assert_allclose(out["q"], law, rtol=1e-5, atol=1e-9)
        edges = np.cumsum(law, axis=1)
        rows = np.arange(IMAGES)
        assert (out["q"][rows, out["token"]] > 0).all()
        assert (edges[rows, out["token"]] >= uniforms - 1e-6).all()
        assert (edges[rows, out["token"]] - law[rows, out["token"]] <= uniforms + 1e-6).all()
        np.testing.assert_array_equal(out["next_input_ids"][:, 0], out["token"])


@pytest.mark.parametrize("temperature", [1e-5, 1e-3, 1, 50])
def test_no_temperature_rounds_the_law(tmp_path: Path, temperature: float) -> None:
    logits = (20 + np.random.default_rng(0).random((IMAGES, 64)) * temperature * 5).astype(np.float32)
    out = Sampler(tmp_path, 64).draw(logits, np.full(IMAGES, 0.5), temperature=np.float32([temperature]))
    law = warp(logits, SamplingConfig(temperature=float(np.float32(temperature))))
    assert np.abs(out["q"] - law).sum(axis=1).max() < 1e-5


def test_frequencies_follow_the_law(tmp_path: Path) -> None:
    logits = np.random.default_rng(0).standard_normal(30)
    n = 20_000
    uniforms = (np.arange(n) + 0.5) / n
    out = Sampler(tmp_path, 30).draw(np.tile(logits, (n, 1)), uniforms)
    counts = np.bincount(out["token"], minlength=30)
    np.testing.assert_allclose(counts / n, out["q"][0], atol=2 / n)


@pytest.mark.parametrize("vocab", [2, 64, 99])
def test_greedy_takes_the_first_of_the_largest(tmp_path: Path, vocab: int) -> None:
    logits = np.zeros((3, vocab))
    logits[1, 1] = 1
    logits[2, -2:] = 5
    out = Sampler(tmp_path, vocab).draw(logits, np.full(3, 0.99), greedy=np.array([True]))
    assert out["token"].tolist() == [0, 1, vocab - 2]


def test_each_row_s_last_token_counts_and_guidance_joins_its_rows(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((4, 3, 8)).astype(np.float32)
    hidden = rng.standard_normal((4, 3, HIDDEN)).astype(np.float32)
    last = np.array([0, 2, 1, 1])
    out = Sampler(tmp_path, 8).draw(
        np.zeros((4, 8)),
        np.full(2, 0.5),
        logits=logits,
        hidden=hidden,
        last=last,
        cond_rows=np.array([0, 2]),
        uncond_rows=np.array([1, 2]),  # the second picture is not guided
        image_of_row=np.array([0, 0, 1, 1]),
        cfg_scale=np.float32([3]),
    )
    cond, uncond, alone = logits[0, 0], logits[1, 2], logits[2, 1]
    expected = warp(np.stack([uncond + 3 * (cond - uncond), alone]), SamplingConfig())
    np.testing.assert_allclose(out["q"], expected, rtol=1e-5)
    np.testing.assert_array_equal(out["next_features"][:, 0], hidden[np.arange(4), last])
    np.testing.assert_array_equal(out["next_input_ids"][:, 0], np.repeat(out["token"], 2))


def test_what_is_not_finite_is_no_law_and_still_a_token(tmp_path: Path) -> None:
    for greedy in (True, False):
        out = Sampler(tmp_path, 16).draw(np.full((2, 16), np.nan), np.full(2, 0.5), greedy=np.array([greedy]))
        assert not (out["q"] > 0).any()
        assert ((out["token"] >= 0) & (out["token"] < 16)).all()
