"""What verification emits, by enumeration of the real code on small vocabularies."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from coolsd_trt.runtime import SamplingConfig, acceptance
from coolsd_trt.runtime.acceptance import Relaxation
from coolsd_trt.runtime.drift import acceptance_probability, position_drift
from coolsd_trt.runtime.errors import InputError
from coolsd_trt.runtime.law import Law
from coolsd_trt.runtime.proposal import Proposal
from coolsd_trt.runtime.resampling import residual_distribution
from coolsd_trt.runtime.sampling import UniformSource, sample_token
from coolsd_trt.runtime.schedules import cool_schedule, linear_schedule, uniform_schedule
from coolsd_trt.runtime.tree import Tree
from coolsd_trt.runtime.verification import judge, verify_chain
from coolsd_trt.runtime.warping import warp
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from .edges import EDGES
from .enumeration import Script, exact_law, marginal

Distribution = NDArray[np.float64]
OMEGAS = (0.25, 0.8, 1.0, 1.3, 3.0)


def random_distribution(rng: np.random.Generator, size: int, zeros: int = 0) -> Distribution:
    p = rng.dirichlet(np.full(size, 0.7))
    p[rng.choice(size, zeros, replace=False)] = 0.0
    return p / p.sum()


def emitted_law(p: Distribution, q: Distribution, omega: float) -> Distribution:
    """Law of the first token of a round that drafts one, the draft's own draw included."""

    def run(rng: UniformSource) -> tuple[int, int, int]:
        x = sample_token(q, rng.random())
        n_accepted, token = verify_chain([x], np.stack([p, p]), q[None], [omega], rng)
        return x, n_accepted, x if n_accepted else token

    law = marginal(exact_law(run), lambda outcome: outcome[2])
    return np.array([law[token] for token in range(len(p))])


def formula(p: Distribution, q: Distribution, omega: float) -> Distribution:
    """Accepted mass plus rejected mass times the residual, straight from the paper."""
    mass = q * np.minimum(1.0, np.divide(omega * p, q, out=np.full_like(p, np.inf), where=q > 0))
    residual = np.maximum(p - mass, 0.0)
    return mass + (1 - mass.sum()) * (residual / residual.sum() if residual.sum() > 0 else p)


@pytest.mark.parametrize("size", range(3, 9))
@pytest.mark.parametrize("omega", OMEGAS)
def test_a_position_emits_the_formula(size: int, omega: float) -> None:
    rng = np.random.default_rng(size)
    p, q = random_distribution(rng, size, zeros=size // 3), random_distribution(rng, size, zeros=size // 4)
    law = emitted_law(p, q, omega)
    np.testing.assert_allclose(law, formula(p, q, omega), atol=1e-7)
    assert (law[p == 0] == 0).all()
    assert (law <= max(1.0, omega) * p + 1e-7).all()
    drift = np.abs(law - p).sum() / 2
    assert drift == pytest.approx(position_drift(p, q, omega), abs=1e-7)
    expected = acceptance_probability(p, q, omega) - acceptance_probability(p, q, 1.0)
    assert drift == pytest.approx(max(0.0, expected), abs=1e-7)


distributions = st.integers(3, 8).flatmap(
    lambda size: st.tuples(*[st.lists(st.integers(0, 9), min_size=size, max_size=size).filter(any)] * 2)
)


@settings(max_examples=200, deadline=None)
@given(distributions, st.floats(0.05, 5.0))
def test_laws_on_any_pair(weights: tuple[list[int], list[int]], omega: float) -> None:
    p, q = (np.array(w) / sum(w) for w in weights)
    beta, drift, residual = (
        acceptance_probability(p, q, omega),
        position_drift(p, q, omega),
        residual_distribution(p, q, omega),
    )
    law = np.minimum(q, omega * p) + (1 - beta) * residual
    np.testing.assert_allclose(law, formula(p, q, omega), atol=1e-12)
    assert np.abs(law - p).sum() / 2 == pytest.approx(drift, abs=1e-12)
    assert (law <= max(1.0, omega) * p + 1e-12).all()
    if omega <= 1:
        assert drift == 0
        np.testing.assert_allclose(law, p, atol=1e-12)


def test_the_classical_residual_is_caught_below_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutation check: [p - q]_+ at omega < 1 is biased, and the enumeration sees it."""
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.2, 0.6])
    np.testing.assert_allclose(emitted_law(p, q, 0.5), p, atol=1e-7)
    monkeypatch.setattr(acceptance, "residual_distribution", lambda p, q, omega: residual_distribution(p, q, 1.0))
    assert np.abs(emitted_law(p, q, 0.5) - p).sum() / 2 > 0.05


def chain_law(p: Distribution, q: Distribution, omega: tuple[float, float]) -> dict[tuple[int, ...], float]:
    """Law of the tokens a round of L = 2 emits. p [V, V]-valued tables by prefix: p[()], p[x1], p[x1, x2]."""
    size = q.shape[-1]
    first_p, second_p, bonus_p = p[:1], p[1 : 1 + size], p[1 + size :]

    def run(rng: UniformSource) -> tuple[tuple[int, ...], tuple[int, ...]]:
        x1 = sample_token(q[0], rng.random())
        x2 = sample_token(q[1 + x1], rng.random())
        rows = np.stack([first_p[0], second_p[x1], bonus_p[x1]])
        proposal = Proposal(Tree.chain(2), np.array([0, x1, x2]), {0: Law.of_dense(q[0]), 1: Law.of_dense(q[1 + x1])})
        verdict = judge(proposal, lambda node: Law.of_dense(rows[node]), [Relaxation(w) for w in omega], rng)
        return (x1, x2), (*(x1, x2)[: verdict.n_accepted], verdict.next_token)

    return dict(marginal(exact_law(run), lambda outcome: outcome[1]))


@pytest.mark.parametrize("omega", [(1.0, 1.0), (2.0, 0.5), (1.4, 1.1), (0.6, 0.3)])
def test_a_whole_round_of_two(omega: tuple[float, float]) -> None:
    size, rng = 3, np.random.default_rng(5)
    p = np.stack([random_distribution(rng, size) for _ in range(1 + 2 * size)])
    q = np.stack([random_distribution(rng, size) for _ in range(1 + size)])
    law = chain_law(p, q, omega)

    expected: dict[tuple[int, ...], float] = {}
    mass = [np.minimum(q[0], omega[0] * p[0]), *np.minimum(q[1:], omega[1] * p[1 : 1 + size])]
    for x in range(size):
        expected[(x,)] = (1 - mass[0].sum()) * residual_distribution(p[0], q[0], omega[0])[x]
    for x1, y in product(range(size), repeat=2):
        residual = residual_distribution(p[1 + x1], q[1 + x1], omega[1])
        expected[x1, y] = mass[0][x1] * (1 - mass[1 + x1].sum()) * residual[y]
        for z in range(size):
            expected[x1, y, z] = mass[0][x1] * mass[1 + x1][y] * p[1 + size + x1][z]
    assert sum(law.values()) == pytest.approx(1.0, abs=1e-7)
    for outcome in expected.keys() | law.keys():
        assert law.get(outcome, 0.0) == pytest.approx(expected[outcome], abs=1e-6), outcome
    if max(omega) <= 1:
        # Exactness of the round: the first token has the target's law, and so has the second given the first.
        first = np.array([sum(m for o, m in law.items() if o[0] == x) for x in range(size)])
        np.testing.assert_allclose(first, p[0], atol=1e-6)
        for x1, y in product(range(size), repeat=2):
            long = sum(m for o, m in law.items() if len(o) > 1 and o[0] == x1)
            both = sum(m for o, m in law.items() if o[:2] == (x1, y))
            assert both == pytest.approx(long * p[1 + x1][y], abs=1e-6)


@pytest.mark.parametrize("omega", OMEGAS)
@pytest.mark.parametrize("case", EDGES)
def test_edges(case: str, omega: float) -> None:
    p, q = (np.array(values) for values in EDGES[case])
    law = emitted_law(p, q, omega)
    np.testing.assert_allclose(law, formula(p, q, omega), atol=1e-7)
    assert (law[p == 0] == 0).all()
    assert np.abs(law - p).sum() / 2 == pytest.approx(position_drift(p, q, omega), abs=1e-7)


def test_an_underflowing_residual_falls_back_to_p() -> None:
    p = np.array([0.0, 0.25, 0.75])
    np.testing.assert_array_equal(residual_distribution(p, p, 1.0), p)
    # float32 crumbs: q exceeds p everywhere it matters, so nothing is left to resample from
    crumbs = (p + np.array([0.0, 1e-8, 1e-8])).astype(np.float32)
    fallback = residual_distribution(p.astype(np.float32), crumbs, 2.0)
    assert fallback.sum() == pytest.approx(1.0)
    assert fallback[0] == 0


def test_denormal_residuals_normalise() -> None:
    p = np.array([5e-324, 1.0])
    residual = residual_distribution(p, np.array([0.0, 1.0]), 1.0)
    np.testing.assert_array_equal(residual, [1.0, 0.0])


@pytest.mark.parametrize("omega", [0.5, 1.0, 2.0])
def test_float32_rounding_and_a_large_vocabulary(omega: float) -> None:
    size, rng = 65536, np.random.default_rng(0)
    p, q = (rng.dirichlet(np.full(size, 0.05)).astype(np.float32) for _ in range(2))
    p[rng.random(size) < 0.5] = 0.0
    beta, drift = acceptance_probability(p, q, omega), position_drift(p, q, omega)
    assert 0 <= drift <= beta <= 1
    residual = residual_distribution(p, q, omega)
    assert residual.sum() == pytest.approx(1.0)
    for u in (0.0, 1e-9, 0.5, Script().random(), 1 - 2.0**-53):
        n_accepted, token = verify_chain([int(q.argmax())], np.stack([p, p]), q[None], [omega], Script(0.999999, u))
        assert n_accepted or p[token] > 0
        assert p[sample_token(p, u)] > 0
    assert acceptance_probability(p, p, 1.0) <= 1.0
    assert position_drift(p, p, 3.0) == pytest.approx(0.0, abs=1e-6)


def test_greedy_is_equality_with_the_argmax() -> None:
    logits = np.random.default_rng(1).normal(size=(3, 7))
    greedy = SamplingConfig(temperature=0)
    p = warp(logits, greedy)
    best, wrong = logits.argmax(axis=-1), (logits.argmax(axis=-1) + 1) % 7
    for u in (0.0, 0.3, 1 - 2.0**-53):
        assert verify_chain(best[:2], p, p[:2], [1, 1], Script(*[u] * 3)) == (2, best[2])
        q = np.eye(7)[[best[0], wrong[1]]]
        assert verify_chain([best[0], wrong[1]], p, q, [1, 1], Script(*[u] * 3)) == (1, best[1])


def test_top_k_one_is_greedy() -> None:
    logits = np.random.default_rng(2).normal(size=(4, 9))
    np.testing.assert_array_equal(warp(logits, SamplingConfig(top_k=1)), warp(logits, SamplingConfig(temperature=0)))


def test_the_order_of_the_filters() -> None:
    logits = np.log([0.4, 0.3, 0.2, 0.1])
    # top-2 leaves 4/7 and 3/7, of which top-p keeps one; of all four, top-p 0.5 keeps two
    np.testing.assert_allclose(warp(logits, SamplingConfig(top_k=2, top_p=0.5)), [1, 0, 0, 0])
    first = SamplingConfig(top_k=2, top_p=0.5, top_p_first=True)
    np.testing.assert_allclose(warp(logits, first), [4 / 7, 3 / 7, 0, 0])


def test_greedy_needs_no_square_of_the_vocabulary() -> None:
    logits = np.zeros((2, 65536), dtype=np.float32)
    logits[[0, 1], [7, 65535]] = 1.0
    p = warp(logits, SamplingConfig(temperature=0))
    assert p.argmax(axis=-1).tolist() == [7, 65535]
    assert p.sum() == 2


def test_an_empty_draft_samples_the_target() -> None:
    p = np.array([[0.2, 0.0, 0.8]])
    assert verify_chain([], p, np.empty((0, 3)), [], Script(0.1)) == (0, 0)
    assert verify_chain([], p, np.empty((0, 3)), [], Script(0.2)) == (0, 2)


def test_uniforms_are_taken_in_the_documented_order() -> None:
    p, q = np.full((3, 2), 0.5), np.array([[0.5, 0.5], [0.9, 0.1]])
    source = Script(0.99, 0.99, 0.5)
    assert verify_chain([0, 0], p, q, [1, 1], source) == (1, 1)
    assert source.asked == 3


def test_shapes_that_do_not_fit_are_named() -> None:
    p, q = np.full((2, 3), 1 / 3), np.full((1, 3), 1 / 3)
    with pytest.raises(InputError, match="2 draft tokens"):
        verify_chain([0, 1], p, q, [1.0], Script())
    with pytest.raises(InputError, match="Expected the same"):
        verify_chain([0], p, q[:, :2], [1.0], Script())


def test_schedules() -> None:
    np.testing.assert_allclose(cool_schedule(5, floor=None), [2.855, 1.418, 0.704, 0.350, 0.174], atol=5e-4)
    np.testing.assert_array_equal(cool_schedule(5)[2:], 1.0)
    for delta, length in product((0.5, 1.0, 1.1, 3.0), (1, 2, 5, 16)):
        for nu in (0.0, 0.7, 3.0):
            assert cool_schedule(length, delta, nu, None).mean() == pytest.approx(delta)
        assert linear_schedule(length, delta).mean() == pytest.approx(delta)
        np.testing.assert_allclose(cool_schedule(length, delta, 0.0, None), uniform_schedule(length, delta))
    assert (np.diff(linear_schedule(6)) < 0).all()
