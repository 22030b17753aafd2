"""The written-out law against the enumeration of the real verification."""

from __future__ import annotations

import numpy as np
import pytest
from coolsd_trt.runtime.acceptance import Acceptance, Relaxation
from coolsd_trt.runtime.lantern import NeighborAcceptance
from coolsd_trt.runtime.law import Law
from coolsd_trt.runtime.proposal import Proposal
from coolsd_trt.runtime.sampling import UniformSource
from coolsd_trt.runtime.tree import Tree
from coolsd_trt.runtime.verification import judge
from coolsd_trt.tools.evaluation.emitted import emitted_law, total_variation

from ...runtime.enumeration import exact_law

SIZE = 6
TABLE = np.array([[y for y in range(SIZE) if y != x] for x in range(SIZE)], dtype=np.uint16)
RULES = [
    Relaxation(0.5),
    Relaxation(1.7),
    NeighborAcceptance(TABLE, 2, delta=0.2),
    NeighborAcceptance(TABLE, 3, excess=2.0),
    NeighborAcceptance(TABLE, 2, delta=0.2, native=True),
    NeighborAcceptance(TABLE, 3, excess=2.0, native=True),
]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_it_is_what_verification_emits(rule: Acceptance) -> None:
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.ones(SIZE)), rng.dirichlet(np.ones(SIZE))
    p[2], q[4] = 0.0, 0.0
    laws = Law.of_dense(p / p.sum()), Law.of_dense(q / q.sum())

    def run(source: UniformSource) -> tuple[int, int, int]:
        x = laws[1].sample(source.random())
        proposal = Proposal(Tree.chain(1), np.array([0, x]), {0: laws[1]})
        verdict = judge(proposal, lambda node: laws[0], [rule], source)
        return x, verdict.n_accepted, x if verdict.n_accepted else verdict.next_token

    expected = np.zeros(SIZE)
    for (_, _, token), mass in exact_law(run).items():
        expected[token] += mass
    law = emitted_law(rule, *laws)
    np.testing.assert_allclose(law, expected, atol=1e-6)
    drift = rule.measure(*laws)[1]
    if not np.isnan(drift):
        assert total_variation(law, laws[0]) == pytest.approx(drift, abs=1e-12)
