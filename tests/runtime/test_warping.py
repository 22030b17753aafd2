from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from coolsd_trt.runtime import BackendError, SamplingConfig
from coolsd_trt.runtime.warping import combine_cfg, warp
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

LOGITS = arrays(np.float32, (3, 12), elements=st.floats(-20, 20, width=32))


@pytest.mark.parametrize(
    "name, settings",
    [
        ("a", {"temperature": 0.9, "top_k": 100, "top_p": 0.9}),
        ("b", {"temperature": 1.0, "top_k": 100}),
        ("c", {"temperature": 1.3, "top_p": 0.7}),
    ],
)
def test_matches_the_official_filters(golden: Path, name: str, settings: dict) -> None:
    data = np.load(golden / "llamagen_c2i" / "goldens.npz")
    probabilities = warp(data["filter_in_logits"], SamplingConfig(**settings))
    np.testing.assert_allclose(probabilities, data[f"filter_probs_{name}"], atol=1e-6)
    assert ((probabilities == 0) == (data[f"filter_probs_{name}"] == 0)).all()


def test_cfg_interpolates_from_the_unconditional_branch() -> None:
    cond, uncond = np.array([1.0, 3.0], np.float32), np.array([2.0, 1.0], np.float32)
    np.testing.assert_array_equal(combine_cfg(cond, uncond, 1.0), cond)
    np.testing.assert_array_equal(combine_cfg(cond, uncond, 4.0), [-2.0, 9.0])
    assert combine_cfg(cond, uncond, 4.0).dtype == np.float32


def test_ties_with_the_kth_largest_survive() -> None:
    p = warp(np.array([3.0, 2.0, 2.0, 1.0]), SamplingConfig(top_k=2))
    assert (p > 0).tolist() == [True, True, True, False]
    assert p[1] == p[2]


def test_the_entry_that_crosses_top_p_is_kept_and_the_largest_always() -> None:
    logits = np.log([0.5, 0.3, 0.2])
    assert (warp(logits, SamplingConfig(top_p=0.6)) > 0).tolist() == [True, True, False]
    assert (warp(logits, SamplingConfig(top_p=1e-9)) > 0).tolist() == [True, False, False]


def test_temperature_zero_is_the_argmax() -> None:
    np.testing.assert_array_equal(warp(np.array([[0.0, 2.0, 1.0]]), SamplingConfig(temperature=0)), [[0.0, 1.0, 0.0]])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_not_finite_are_refused(bad: float) -> None:
    with pytest.raises(BackendError, match="not finite"):
        warp(np.array([0.0, bad, 1.0]), SamplingConfig())


@given(LOGITS, st.floats(0.05, 3), st.integers(0, 12), st.floats(0.05, 1))
def test_rows_are_distributions_that_keep_the_largest(
    logits: np.ndarray, temperature: float, top_k: int, top_p: float
) -> None:
    p = warp(logits, SamplingConfig(temperature=temperature, top_k=top_k, top_p=top_p))
    np.testing.assert_allclose(p.sum(axis=-1), 1, rtol=1e-12)
    # Equal logits get equal mass, so the largest probability belongs to every largest logit.
    assert (np.take_along_axis(p, logits.argmax(-1)[:, None], -1)[:, 0] == p.max(-1)).all()
    assert (p >= 0).all()
