"""Trees: their shape against the reference's index tables, and the law of siblings drawn without replacement."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
from coolsd_trt.runtime import InputError, SpeculativeConfig
from coolsd_trt.runtime.acceptance import Acceptance, Relaxation
from coolsd_trt.runtime.drafting import best
from coolsd_trt.runtime.dynamic import _Growth
from coolsd_trt.runtime.lantern import NeighborAcceptance
from coolsd_trt.runtime.law import Law
from coolsd_trt.runtime.proposal import Proposal
from coolsd_trt.runtime.sampling import UniformSource
from coolsd_trt.runtime.tree import Tree
from coolsd_trt.runtime.trees import TREES
from coolsd_trt.runtime.verification import judge
from numpy.typing import NDArray

from ..export.golden import golden_folder
from .edges import EDGES
from .enumeration import Script, exact_law

Distribution = NDArray[np.float64]


@pytest.mark.parametrize("name", TREES)
def test_the_references_trees(name: str) -> None:
    reference = json.loads((golden_folder("lantern_llamagen", "trees") / "trees" / f"{name}.json").read_text())
    tree, verify = TREES[name], reference["verify"]
    assert Tree.from_paths(reference["choices"]) == tree
    assert Tree.from_paths(reference["choices"][::-1]) == tree
    np.testing.assert_array_equal(tree.depths, verify["position_ids"])
    np.testing.assert_array_equal(tree.lineage, verify["attn_mask"])
    paths = [[node for node in row if node >= 0] for row in verify["retrieve_indices"]]
    for path in paths:
        assert path[0] == 0
        assert all(tree.parents[child] == node for node, child in pairwise(path))
        assert not tree.children[path[-1]]
    assert len(paths) == sum(not children for children in tree.children)


def test_truncation_keeps_the_upper_levels() -> None:
    tree = TREES["naive_extend_57"]
    assert tree.truncated(5) == tree
    assert tree.truncated(0) == Tree.chain(0)
    assert tree.truncated(2).depth == 2
    assert tree.truncated(2).size == 19
    assert Tree.chain(5).truncated(3) == Tree.chain(3)


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ([], "no paths"),
        ([[0], [0]], r"\[0\] is there twice"),
        ([[0, 0]], r"\[0, 0\] continues \[0\], which is missing"),
        ([[0], [2]], r"\[2\] has no elder sibling \[1\]"),
        ([[0], []], r"\[\] is not a path"),
        ([[0], [-1]], "is not a path"),
        ([[0], [True]], "is not a path"),
        ([[0], 3], "3 is not a path"),
        ("naive_extend_75", "no such tree. Did you mean 'naive_extend_57'"),
    ],
)
def test_bad_trees_are_explained(paths: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        SpeculativeConfig(tree=paths)


class NodeLaw(NamedTuple):
    """emitted: law [V] of the next token. stands: probability that a child does. acceptance, drift: means reported."""

    emitted: Distribution
    stands: float
    acceptance: float
    drift: float


def node_law(p: Distribution, q: Distribution, n_children: int, rule: Acceptance) -> NodeLaw:
    """Of a node whose children are drawn from q."""
    tree = Tree.from_paths([[rank] for rank in range(n_children)])

    def run(rng: UniformSource) -> tuple[object, ...]:
        proposal = Proposal.empty(tree, 0)
        law = Law.of_dense(q)
        proposal.offer(0, law.draw_distinct(n_children, rng), law)
        verdict = judge(proposal, lambda node: Law.of_dense(p), [rule], rng)
        stands = proposal.tokens[verdict.path].tolist()
        reported = float(verdict.acceptance.sum()), verdict.drift
        return (tuple(proposal.tokens.tolist()), len(stands), *stands, verdict.next_token), reported

    emitted, stands, acceptance, drift = np.zeros(len(p)), 0.0, 0.0, 0.0
    for (outcome, reported), mass in exact_law(run).items():
        emitted[outcome[2]] += mass
        stands += mass * outcome[1]
        acceptance += mass * reported[0]
        drift += mass * reported[1]
    return NodeLaw(emitted, stands, acceptance, drift)


def random_pair(seed: int, size: int) -> tuple[Distribution, Distribution]:
    rng = np.random.default_rng(seed)
    p, q = rng.dirichlet(np.ones(size), size=2)
    p[rng.integers(size)] = 0.0
    return p / p.sum(), q


@pytest.mark.parametrize("omega", [0.4, 1.0])
@pytest.mark.parametrize("n_children", [1, 2, 3, 4])
def test_siblings_are_exact_up_to_omega_one(n_children: int, omega: float) -> None:
    p, q = random_pair(n_children, 5)
    law = node_law(p, q, n_children, Relaxation(omega))
    np.testing.assert_allclose(law.emitted, p, atol=1e-6)
    assert law.drift == 0
    assert law.acceptance == pytest.approx(law.stands, abs=1e-6)


@pytest.mark.parametrize("n_children", [2, 4])
@pytest.mark.parametrize("case", EDGES)
def test_siblings_are_exact_at_the_edges(case: str, n_children: int) -> None:
    p, q = (np.array(values) for values in EDGES[case])
    for rule in (Relaxation(1.0), Relaxation(0.5)):
        np.testing.assert_allclose(node_law(p, q, n_children, rule).emitted, p, atol=1e-6)
    lossy = node_law(p, q, n_children, Relaxation(2.0))
    assert (lossy.emitted[p == 0] == 0).all()
    assert np.abs(lossy.emitted - p).sum() / 2 <= lossy.drift + 1e-7


def test_siblings_of_a_large_vocabulary() -> None:
    size, rng = 65536, np.random.default_rng(0)
    p, q = (rng.dirichlet(np.full(size, 0.05)).astype(np.float32) for _ in range(2))
    p[rng.random(size) < 0.5] = 0.0
    p_law, q_law = Law.of_dense(p / p.sum()), Law.of_dense(q / q.sum())
    for seed in range(50):
        source = np.random.default_rng(seed)
        proposal = Proposal.empty(Tree.from_paths([[0], [1], [2], [3]]), 0)
        proposal.offer(0, q_law.draw_distinct(4, source), q_law)
        assert len(set(proposal.tokens[1:].tolist())) == 4
        verdict = judge(proposal, lambda node: p_law, [Relaxation(1.0)], source)
        assert all(p[proposal.tokens[node]] > 0 for node in verdict.path)
        assert p[verdict.next_token] > 0
        assert 0 <= verdict.acceptance[0] <= 4


def test_every_sibling_adds_acceptance() -> None:
    p, q = random_pair(7, 5)
    accepted = [node_law(p, q, n, Relaxation(1.0)).stands for n in (1, 2, 3)]
    assert accepted[0] < accepted[1] < accepted[2]


@pytest.mark.parametrize("n_children", [1, 2, 3])
@pytest.mark.parametrize("seed", range(2))
def test_reported_drift_bounds_that_of_siblings(seed: int, n_children: int) -> None:
    p, q = random_pair(seed, 5)
    table = np.array([[y for y in range(5) if y != x] for x in range(5)], dtype=np.uint16)
    for rule in (Relaxation(1.7), NeighborAcceptance(table, 2, delta=0.3), NeighborAcceptance(table, 3, excess=2.0)):
        law = node_law(p, q, n_children, rule)
        variation = np.abs(law.emitted - p).sum() / 2
        assert variation <= law.drift + 1e-7
        assert n_children > 1 or variation == pytest.approx(law.drift, abs=1e-7)
        assert (law.emitted[p == 0] == 0).all()
        assert law.acceptance == pytest.approx(law.stands, abs=1e-6)


def test_sampling_siblings_with_replacement_would_be_caught() -> None:
    """Mutation check: verifying the second sibling against the whole q is biased, and the enumeration sees it."""
    p, q = np.array([0.4, 0.4, 0.2]), np.array([0.6, 0.3, 0.1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("coolsd_trt.runtime.verification._laws", lambda q, tokens, size: [q for _ in tokens])
        law = node_law(p, q, 2, Relaxation(1.0)).emitted
    assert np.abs(law - p).sum() / 2 > 0.01
    np.testing.assert_allclose(node_law(p, q, 2, Relaxation(1.0)).emitted, p, atol=1e-6)


@pytest.mark.parametrize("omega", [0.4, 1.0])
def test_chosen_children_are_exact_too(omega: float) -> None:
    p, _ = random_pair(2, 5)
    tree = Tree.from_paths([[0], [1], [2]])

    def run(rng: UniformSource) -> tuple[object, ...]:
        proposal = Proposal.empty(tree, 0)
        proposal.offer(0, [4, 0, 2], None)
        verdict = judge(proposal, lambda node: Law.of_dense(p), [Relaxation(omega)], rng)
        return len(verdict.path), *verdict.path, (proposal.tokens[[*verdict.path]].tolist() or [verdict.next_token])[0]

    law = np.zeros(5)
    for outcome, mass in exact_law(run).items():
        law[outcome[-1] if not outcome[0] else [4, 0, 2][outcome[1] - 1]] += mass
    np.testing.assert_allclose(law, p, atol=1e-6)


def test_a_draft_without_enough_tokens_leaves_places_empty() -> None:
    q = Law.of_dense(np.array([0.0, 1.0, 0.0]))
    assert q.draw_distinct(3, Script(0.5)) == [1]
    proposal = Proposal.empty(Tree.from_paths([[0], [1], [0, 0]]), 2)
    proposal.offer(0, [1], q)
    assert proposal.tokens.tolist() == [2, 1, -1, -1]
    p = np.array([0.5, 0.0, 0.5])
    verdict = judge(proposal, lambda node: Law.of_dense(p), [Relaxation(1.0)] * 2, Script(0.0, 0.9))
    assert (verdict.path, verdict.next_token) == ([], 2)


def test_tree_walks_ask_only_for_the_nodes_they_visit() -> None:
    asked = []

    def p(node: int) -> Law:
        asked.append(node)
        return Law.of_dense(np.array([0.0, 0.5, 0.5]))

    q = Law.of_dense(np.full(3, 1 / 3))
    proposal = Proposal(TREES["chain"], np.array([0, 1, 0, 1, 1, 1]), dict.fromkeys(range(5), q))
    verdict = judge(proposal, p, [Relaxation(1.0)] * 5, Script())
    assert verdict.path == [1]
    assert asked == [0, 1]


def test_a_dynamic_tree_keeps_the_likeliest_paths() -> None:
    growth = _Growth(pending=9, branches=2)
    growth.expand(np.array([[0.6, 0.1, 0.3]]))
    assert growth.frontier == [1, 2]
    growth.expand(np.array([[0.1, 0.8, 0.1], [0.5, 0.3, 0.2]]))
    # scores: 0 -> .6, 2 -> .3; 0 1 -> .48, 0 0 -> .06; 2 0 -> .15, 2 1 -> .09
    assert [growth.tokens[node] for node in growth.frontier] == [1, 0]
    assert growth.columns == [0, 1]
    assert growth.lineage.tolist() == [[True, False, True, False], [False, True, False, True]]
    proposal = growth.proposal(growth.likeliest(4, depth=2), 5)
    assert proposal.tokens.tolist() == [9, 0, 2, 1, 0]
    assert proposal.tree.parents == (-1, 0, 0, 1, 2)
    assert growth.proposal(growth.likeliest(3, depth=2), 4).tree.parents == (-1, 0, 0, 1)


def test_a_dynamic_tree_of_a_one_hot_draft_is_a_chain() -> None:
    growth = _Growth(pending=0, branches=3)
    growth.expand(np.array([[0.0, 1.0, 0.0, 0.0]]))
    growth.expand(np.tile([0.0, 0.0, 1.0, 0.0], (3, 1)))
    proposal = growth.proposal(growth.likeliest(5, depth=2), 6)
    assert proposal.tokens.tolist() == [0, 1, 2, -1, -1, -1]
    assert proposal.tree.parents == (-1, 0, 1, 0, 0, 0)


def test_best_orders_ties_by_index() -> None:
    scores = np.array([0.0, 3.0, 1.0, 3.0, 0.0, 1.0, 3.0])
    ranked = [1, 3, 6, 2, 5, 0, 4]
    for count in range(1, 9):
        assert best(scores, count) == ranked[:count]
    assert best(np.zeros(3), 2) == [0, 1]
