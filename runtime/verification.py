"""The acceptance test along a drafted chain: how many tokens stand, and which token follows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .acceptance import Acceptance, Relaxation
from .errors import InputError
from .sampling import UniformSource, sample_token

Distributions = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Verdict:
    """Outcome of one chain.

    n_accepted: drafted tokens that stand, 0..L. next_token: the token emitted after them.
    acceptance: [reached] acceptance probability beta_i at each position the walk reached. drift: total variation from
    the target summed over those positions.
    """

    n_accepted: int
    next_token: int
    acceptance: NDArray[np.float64]
    drift: float


def verify_chain(
    draft_tokens: ArrayLike, p: Distributions, q: Distributions, omega: ArrayLike, rng: UniformSource
) -> tuple[int, int]:
    """COOL-SD's verification of a chain; see `judge_chain`, of which this returns the two decisions.

    Args: draft_tokens [L] int; p [L+1, V]; q [L, V]; omega [L] relaxation, each > 0; rng with `.random()`.
    Returns: (n_accepted, next_token).
    Raises: InputError when the shapes do not fit together.
    """
    relaxations = [Relaxation(w) for w in np.asarray(omega, dtype=np.float64).tolist()]
    verdict = judge_chain(draft_tokens, p, q, relaxations, rng)
    return verdict.n_accepted, verdict.next_token


def judge_chain(
    draft_tokens: ArrayLike, p: Distributions, q: Distributions, rules: Sequence[Acceptance], rng: UniformSource
) -> Verdict:
    """Accept tokens up to the first that fails its test.

    Token i stands with probability `min(1, a_i(x_i) / q_i(x_i))`; the first that does not is replaced by a draw from
    the rule's residual; if all stand, a bonus token comes from `p_{L+1}`. Uniforms are taken in a fixed order: one per
    position reached, then one for the emitted token.

    Args:
        draft_tokens: [L] int, drawn from q. L may be 0: then one token is drawn from p_1.
        p: [L+1, V] target distributions after warping. q: [L, V] the draft's, after the same warping.
        rules: L acceptance tests.
        rng: source of uniforms on [0, 1).
    Raises: InputError when the shapes do not fit together.
    """
    tokens = np.asarray(draft_tokens, dtype=np.int64).tolist()
    length = len(tokens)
    if len(p) != length + 1 or len(q) != length or len(rules) != length:
        raise InputError(
            f"verify_chain got {length} draft tokens with p for {len(p)}, q for {len(q)} and omega for "
            f"{len(rules)} positions. Expected {length + 1}, {length} and {length}."
        )
    acceptance, drift = [], 0.0
    for i, (token, rule) in enumerate(zip(tokens, rules, strict=True)):
        beta, variation = rule.measure(p[i], q[i])
        acceptance.append(beta)
        drift += variation
        # u < a/q without the division, so q = 0 needs no case of its own and a = 0 never stands.
        if not rng.random() * q[i][token] < rule.weight(p[i], token):
            residual = rule.residual(p[i], q[i], token)
            return Verdict(i, sample_token(residual, rng.random()), np.array(acceptance), drift)
    return Verdict(length, sample_token(p[length], rng.random()), np.array(acceptance), drift)
