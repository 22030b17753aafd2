"""The decisions of one chain, by hand; the laws over all random numbers stand in test_laws.py."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from coolsd_trt.runtime import InputError
from coolsd_trt.runtime.acceptance import Relaxation
from coolsd_trt.runtime.law import Law
from coolsd_trt.runtime.proposal import Proposal
from coolsd_trt.runtime.tree import Tree
from coolsd_trt.runtime.verification import Verdict, judge, verify_chain

P = np.array([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8], [0.2, 0.6, 0.2]])
Q = np.array([[0.2, 0.6, 0.2], [0.5, 0.25, 0.25]])


class Recorded:
    """A stream of uniforms, used up in order."""

    def __init__(self, values: Iterable[float]) -> None:
        self.values = list(values)

    def random(self) -> float:
        return self.values.pop(0)


def judged(tokens: list[int], omega: list[float], uniforms: list[float]) -> Verdict:
    proposal = Proposal(Tree.chain(len(tokens)), np.array([0, *tokens]), dict(enumerate(map(Law.of_dense, Q))))
    return judge(proposal, lambda node: Law.of_dense(P[node]), [Relaxation(w) for w in omega], Recorded(uniforms))


def test_all_accepted_gives_the_bonus_token() -> None:
    # x = (0, 2): p/q is 2.5 and 3.2, both certain; the bonus comes from p_3 at 0.5.
    rng = Recorded([0.99, 0.99, 0.5])
    assert verify_chain([0, 2], P, Q, [1.0, 1.0], rng) == (2, 1)
    assert not rng.values


def test_the_first_rejection_ends_the_walk() -> None:
    # x_1 = 1: p/q = 0.5, so 0.5 rejects (strictly below accepts); the residual [p - q]_+ is all on token 0.
    rng = Recorded([0.5, 0.7])
    assert verify_chain([1, 2], P, Q, [1.0, 1.0], rng) == (0, 0)
    assert not rng.values
    assert verify_chain([1, 2], P, Q, [1.0, 1.0], Recorded([0.4999, 0.0, 0.0])) == (2, 0)


def test_omega_scales_the_test() -> None:
    assert verify_chain([1, 2], P, Q, [1.9, 1.0], Recorded([0.94, 0.0, 0.0]))[0] == 2
    assert verify_chain([1, 2], P, Q, [1.9, 1.0], Recorded([0.96, 0.0]))[0] == 0
    assert verify_chain([0, 2], P, Q, [0.2, 1.0], Recorded([0.51, 0.0]))[0] == 0


def test_acceptance_and_drift_are_counted_for_the_positions_reached() -> None:
    verdict = judged([1, 2], [2.0, 1.0], [0.9, 0.0, 0.0])
    # beta_1(2) = .2 + .6 + .2, beta_1(1) = .2 + .3 + .2; position 2 is exact.
    np.testing.assert_allclose(verdict.acceptance, [1.0, 0.1 + 0.1 + 0.25])
    assert verdict.drift == pytest.approx(0.3)
    stopped = judged([1, 2], [1.0, 2.0], [0.9, 0.0])
    assert len(stopped.acceptance) == 1
    assert stopped.drift == 0


def test_an_empty_draft_draws_from_p() -> None:
    assert verify_chain([], P[:1], np.zeros((0, 3)), [], Recorded([0.6])) == (0, 1)


def test_shapes_that_do_not_fit_are_named() -> None:
    with pytest.raises(InputError, match=r"2 draft tokens with p for 2.*Expected 3, 2 and 2"):
        verify_chain([0, 1], P[:2], Q, [1.0, 1.0], Recorded([]))
