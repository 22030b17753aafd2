"""The decisions of one chain, by hand; the laws over all random numbers stand in test_laws.py."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from coolsd_trt.runtime import InputError
from coolsd_trt.runtime.acceptance import Relaxation
from coolsd_trt.runtime.drift import acceptance_probability, position_drift
from coolsd_trt.runtime.law import Law
from coolsd_trt.runtime.proposal import Proposal
from coolsd_trt.runtime.resampling import residual_distribution
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
    with pytest.raises(InputError, match=r"2 draft tokens with p \(2, 3\).*Expected \[3, V\], \[2, V\] and \[2\]"):
        verify_chain([0, 1], P[:2], Q, [1.0, 1.0], Recorded([]))


HALF = np.array([[0.5, 0.5, 0.0]])


@pytest.mark.parametrize(
    ("tokens", "p", "q", "omega", "message"),
    [
        ([3], np.repeat(HALF, 2, 0), HALF, [1.0], r"tokens \[3\]. Expected integers in 0..2"),
        ([-1], np.repeat(HALF, 2, 0), HALF, [1.0], r"tokens \[-1\]"),
        ([1.7], np.repeat(HALF, 2, 0), HALF, [1.0], "Expected integers"),
        ([0], np.repeat(HALF, 2, 0), HALF, [-1.0], r"omega \[-1.0\]"),
        ([0], np.repeat(HALF, 2, 0), HALF, [np.nan], "Expected finite factors"),
        ([0], np.repeat(HALF, 2, 0), HALF, 1.0, r"omega \(\)"),
        ([0], np.repeat(HALF, 2, 0), HALF - 0.25, [1.0], "q with rows that are no distributions"),
        ([0], np.full((2, 3), np.nan), HALF, [1.0], "p with rows that are no distributions"),
        ([], np.zeros((1, 3)), np.zeros((0, 3)), [], "p with rows that are no distributions"),
        ([0], np.repeat(HALF, 3, 0), HALF, [1.0], r"Expected \[2, V\], \[1, V\] and \[1\]"),
    ],
)
def test_chains_that_make_no_sense_are_refused(
    tokens: list[float], p: np.ndarray, q: np.ndarray, omega: object, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        verify_chain(tokens, p, q, omega, Recorded([0.5] * 4))


def test_a_factor_of_zero_accepts_nothing_and_emits_p() -> None:
    assert verify_chain([0], np.repeat(HALF, 2, 0), HALF, [0.0], Recorded([0.0, 0.4])) == (0, 0)
    assert verify_chain([0], np.repeat(HALF, 2, 0), HALF, [0.0], Recorded([0.0, 0.6])) == (0, 1)


def test_what_is_not_a_number_is_not_hidden() -> None:
    p = HALF[0]
    assert np.isnan(acceptance_probability(p, p, np.nan))
    assert np.isnan(position_drift(p * np.nan, p, 2.0))
    for wrong in ((p * 0, p, 1.0), (p, p, np.nan), (p * np.nan, p, 1.0)):
        with pytest.raises(InputError, match="Expected numbers above 0"):
            residual_distribution(*wrong)
