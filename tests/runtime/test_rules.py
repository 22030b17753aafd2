"""Every rule of the registry emits what its formula says; LANTERN's included, with both residuals."""

from __future__ import annotations

import numpy as np
import pytest
from coolsd_trt.runtime import InputError, SpeculativeConfig
from coolsd_trt.runtime.acceptance import Acceptance, Relaxation
from coolsd_trt.runtime.lantern import NeighborAcceptance
from coolsd_trt.runtime.law import Law
from coolsd_trt.runtime.proposal import Proposal
from coolsd_trt.runtime.rules import RULES, get_rule
from coolsd_trt.runtime.sampling import UniformSource, sample_token
from coolsd_trt.runtime.tree import Tree
from coolsd_trt.runtime.verification import judge
from numpy.typing import NDArray

from .edges import EDGES
from .enumeration import exact_law, marginal

Distribution = NDArray[np.float64]
LANTERNS = {
    "lantern": {"delta": 0.2},
    "lantern, wide": {"delta": 0.6},
    "lantern++": {"excess": 1.5},
    "lantern++, wide": {"excess": 9.0},
}


def random_pair(seed: int, size: int) -> tuple[Distribution, Distribution, NDArray[np.uint16]]:
    rng = np.random.default_rng(seed)
    p, q = rng.dirichlet(np.full(size, 0.7), size=2)
    p[rng.choice(size, size // 3, replace=False)] = 0.0
    q[rng.choice(size, size // 4, replace=False)] = 0.0
    others = [[y for y in rng.permutation(size) if y != x] for x in range(size)]
    return p / p.sum(), q / q.sum(), np.array(others, dtype=np.uint16)


def emitted_law(p: Distribution, q: Distribution, rule: Acceptance) -> Distribution:
    def run(rng: UniformSource) -> tuple[int, int, int]:
        x = sample_token(q, rng.random())
        proposal = Proposal(Tree.chain(1), np.array([0, x]), {0: Law.of_dense(q)})
        verdict = judge(proposal, lambda node: Law.of_dense(p), [rule], rng)
        return x, verdict.n_accepted, x if verdict.n_accepted else verdict.next_token

    law = marginal(exact_law(run), lambda outcome: outcome[2])
    return np.array([law[token] for token in range(len(p))])


def borrowed(p: Distribution, rule: NeighborAcceptance, x: int) -> float:
    """c(x), one neighbour after the other."""
    best = total = 0.0
    for neighbor in rule.table[x, : rule.k]:
        total += p[neighbor]
        if total > rule.delta + rule.excess * p[x]:
            break
        best = total
    return best


@pytest.mark.parametrize("k", [0, 1, 3, 7])
@pytest.mark.parametrize("bound", LANTERNS)
@pytest.mark.parametrize("seed", range(4))
def test_lantern_with_the_optimal_residual(seed: int, bound: str, k: int) -> None:
    p, q, table = random_pair(seed, 8)
    rule = NeighborAcceptance(table, k, **LANTERNS[bound])
    law = emitted_law(p, q, rule)
    mass = np.array([min(q[x], p[x] + borrowed(p, rule, x)) if p[x] > 0 else 0.0 for x in range(8)])
    residual = np.maximum(p - mass, 0)
    expected = mass + (1 - mass.sum()) * (residual / residual.sum() if residual.any() else p)
    np.testing.assert_allclose(law, expected, atol=1e-7)
    assert (law[p == 0] == 0).all()
    beta, drift = rule.measure(Law.of_dense(p), Law.of_dense(q))
    assert beta == pytest.approx(mass.sum(), abs=1e-12)
    assert drift == pytest.approx(np.abs(law - p).sum() / 2, abs=1e-7)
    assert k or not rule.lossy
    if not rule.lossy:
        np.testing.assert_allclose(law, p, atol=1e-7)


@pytest.mark.parametrize("k", [0, 1, 3])
@pytest.mark.parametrize("bound", LANTERNS)
@pytest.mark.parametrize("seed", range(4))
def test_lantern_with_its_own_residual(seed: int, bound: str, k: int) -> None:
    p, q, table = random_pair(seed, 8)
    rule = NeighborAcceptance(table, k, **LANTERNS[bound], native=True)
    law = emitted_law(p, q, rule)
    expected = np.zeros(8)
    for x in np.flatnonzero(q):
        accepted = min(1.0, (p[x] + borrowed(p, rule, x)) / q[x]) if p[x] > 0 else 0.0
        expected[x] += q[x] * accepted
        subtracted = q.copy()
        if k and p[table[x, 0]] <= rule.delta + rule.excess * p[x]:
            subtracted[table[x, : k + 1]] = 0.0
        residual = np.maximum(p - subtracted, 0)
        expected += q[x] * (1 - accepted) * (residual / residual.sum() if residual.any() else p)
    np.testing.assert_allclose(law, expected, atol=1e-7)
    assert (law[p == 0] == 0).all()
    assert np.isnan(rule.measure(Law.of_dense(p), Law.of_dense(q))[1]) == rule.lossy


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("bound", LANTERNS)
@pytest.mark.parametrize("case", EDGES)
def test_lantern_at_the_edges(case: str, bound: str, native: bool) -> None:
    p, q = (np.array(values) for values in EDGES[case])
    table = np.array([[y for y in range(4) if y != x] for x in range(4)], dtype=np.uint16)
    rule = NeighborAcceptance(table, 2, **LANTERNS[bound], native=native)
    law = emitted_law(p, q, rule)
    assert law.sum() == pytest.approx(1.0, abs=1e-7)
    assert (law[p == 0] == 0).all()
    if not native:
        assert rule.measure(Law.of_dense(p), Law.of_dense(q))[1] == pytest.approx(np.abs(law - p).sum() / 2, abs=1e-7)


def test_a_bound_beyond_every_sum_still_reaches_only_k() -> None:
    p, _, table = random_pair(9, 6)
    rule = NeighborAcceptance(table, 2, excess=1e9)
    x = int(p.argmax())
    assert rule.weight(Law.of_dense(p), x) == pytest.approx(p[x] + p[table[x, :2]].sum())


def test_large_tables_are_measured_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    p, q, table = random_pair(3, 300)
    rule = NeighborAcceptance(table, 20, delta=0.05)
    whole = rule.measure(Law.of_dense(p), Law.of_dense(q))
    monkeypatch.setattr("coolsd_trt.runtime.lantern.BLOCK", 7)
    np.testing.assert_allclose(rule.measure(Law.of_dense(p), Law.of_dense(q)), whole)


LOSSLESS = {
    "ar": {},
    "lossless": {},
    "cool": {"rule": "lossless"},
    "linear": {"rule": "lossless"},
    "uniform": {"delta": 1.0},
    "lantern": {"lantern_k": 0, "resampling": "native"},
    "lantern++": {"lantern_k": 0},
}


@pytest.mark.parametrize("name", RULES)
def test_every_rule_has_its_lossless_setting(name: str) -> None:
    p, q, table = random_pair(1, 6)
    rule = get_rule(name)
    assert set(rule.parameters) <= set(SpeculativeConfig.model_fields)
    config = SpeculativeConfig(**{"rule": name, **LOSSLESS[name]})
    tests = get_rule(config.rule).acceptances(config, table)
    assert len(tests) == (0 if name == "ar" else 5)
    assert not any(test.lossy for test in tests)
    for test in tests:
        np.testing.assert_allclose(emitted_law(p, q, test), p, atol=1e-7)
    usual = rule.acceptances(SpeculativeConfig(rule=name, delta=2.0), table)
    assert any(test.lossy for test in usual) == rule.lossy
    for test in usual:
        assert (emitted_law(p, q, test)[p == 0] == 0).all()


def test_the_schedules_reach_the_tests() -> None:
    config = SpeculativeConfig(rule="cool", delta=1.1, floor=None)
    tests = get_rule("cool").acceptances(config, None)
    assert all(isinstance(test, Relaxation) for test in tests)
    np.testing.assert_allclose([test.omega for test in tests], [2.855, 1.418, 0.704, 0.350, 0.174], atol=5e-4)


def test_wrong_settings_are_explained() -> None:
    table = random_pair(0, 6)[2]
    with pytest.raises(InputError, match=r"Did you mean 'lantern\+\+'.*ar, lossless, cool"):
        SpeculativeConfig(rule="lantern+")
    with pytest.raises(InputError, match="'cool' has only the optimal one"):
        SpeculativeConfig(rule="cool", resampling="native")
    with pytest.raises(InputError, match="needs the codebook's neighbour table"):
        get_rule("lantern").acceptances(SpeculativeConfig(rule="lantern"), None)
    with pytest.raises(InputError, match="the 5 nearest codes"):
        get_rule("lantern").acceptances(SpeculativeConfig(rule="lantern", lantern_k=6), table)
    for wrong in ({"lantern_delta": 1.0}, {"lantern_lambda": 0.5}, {"lantern_k": -1}, {"resampling": "best"}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            SpeculativeConfig(rule="lantern", **wrong)
