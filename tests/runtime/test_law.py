"""A law kept as its survivors behaves like the dense vector it stands for."""

from __future__ import annotations

import numpy as np
import pytest
from coolsd_trt.runtime import SamplingConfig
from coolsd_trt.runtime.acceptance import Relaxation
from coolsd_trt.runtime.drift import acceptance_probability, position_drift
from coolsd_trt.runtime.law import Law
from coolsd_trt.runtime.resampling import residual_distribution
from coolsd_trt.runtime.sampling import sample_token
from coolsd_trt.runtime.warping import survivors
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray


@st.composite
def dense_pairs(draw: st.DrawFn) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Two distributions over 9 tokens, each with zeros, not on the same tokens."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    p, q = rng.dirichlet(np.full(9, 0.6), size=2)
    p[rng.choice(9, draw(st.integers(0, 8)), replace=False)] = 0
    q[rng.choice(9, draw(st.integers(0, 8)), replace=False)] = 0
    return p / p.sum(), q / q.sum()


@given(dense_pairs(), st.floats(0, 1, exclude_max=True))
def test_reading_sampling_and_removing(pair: tuple[NDArray[np.float64], ...], u: float) -> None:
    p = pair[0]
    law = Law.of_dense(p)
    np.testing.assert_array_equal(law.dense(), p)
    assert [law[x] for x in range(9)] == p.tolist()
    others = np.array([8, 0, 3])
    np.testing.assert_array_equal(law.at(others), p[others])
    assert law.sample(u) == sample_token(p, u)
    x = law.sample(u)
    rest = law.without(x)
    expected = np.where(np.arange(9) == x, 0, p)
    assert rest.empty == (not expected.any())
    if not rest.empty:
        np.testing.assert_allclose(rest.dense(), expected / expected.sum(), rtol=1e-12)


@given(dense_pairs(), st.sampled_from([0.3, 1.0, 1.8, 20.0]))
def test_on_survivors_alone_verification_computes_the_dense_formulas(
    pair: tuple[NDArray[np.float64], ...], omega: float
) -> None:
    p, q = pair
    rule, p_law, q_law = Relaxation(omega), Law.of_dense(p), Law.of_dense(q)
    beta, drift = rule.measure(p_law, q_law)
    assert beta == pytest.approx(acceptance_probability(p, q, omega), abs=1e-12)
    assert drift == pytest.approx(position_drift(p, q, omega), abs=1e-12)
    residual = rule.residual(p_law, q_law, 0).dense()
    np.testing.assert_allclose(residual, residual_distribution(p, q, omega), rtol=1e-9, atol=1e-15)
    for x in range(9):
        assert rule.weight(p_law, x) == omega * p[x]


@pytest.mark.parametrize("shape", ["random", "sorted", "few peaks", "ties", "alternating"])
@pytest.mark.parametrize("k", [1, 16, 100, 1000, 4095, 4096, 9999])
def test_guessing_the_threshold_never_changes_who_survives(shape: str, k: int) -> None:
    """The guess looks at one logit in sixteen; here also at ones that mislead it."""
    rng = np.random.default_rng(k)
    x = rng.normal(size=4096).astype(np.float32)
    if shape == "sorted":
        x.sort()
    elif shape == "few peaks":
        x[::16] += 100
    elif shape == "ties":
        x = np.round(x)
    elif shape == "alternating":
        x[::16] -= 100
    law = survivors(x, SamplingConfig(top_k=k))
    kth = np.sort(x)[-min(k, len(x))]
    np.testing.assert_array_equal(law.tokens, np.flatnonzero(x >= kth))
