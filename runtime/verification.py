"""The acceptance test along a drafted chain: how many tokens stand, and which token follows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .drift import acceptance_probability, position_drift
from .errors import InputError
from .resampling import residual_distribution
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
    """Accept or reject a chain of drafted tokens; see `judge_chain`, of which this returns the two decisions.

    Args: draft_tokens [L] int; p [L+1, V]; q [L, V]; omega [L]; rng with `.random()`.
    Returns: (n_accepted, next_token).
    """
    verdict = judge_chain(draft_tokens, p, q, omega, rng)
    return verdict.n_accepted, verdict.next_token


def judge_chain(
    draft_tokens: ArrayLike, p: Distributions, q: Distributions, omega: ArrayLike, rng: UniformSource
) -> Verdict:
    """COOL-SD's verification (arXiv 2601.09212; with omega = 1, speculative sampling, arXiv 2211.17192).

    Token i stands with probability `min(1, omega_i p_i(x_i) / q_i(x_i))`; the first that does not is replaced by a
    draw from the residual; if all stand, a bonus token comes from `p_{L+1}`. Uniforms are taken in a fixed order:
    one per position reached, then one for the emitted token.

    Args:
        draft_tokens: [L] int, drawn from q. L may be 0: then one token is drawn from p_1.
        p: [L+1, V] target distributions after warping. q: [L, V] the draft's, after the same warping.
        omega: [L] relaxation, each > 0.
        rng: source of uniforms on [0, 1).
    Raises: InputError when the shapes do not fit together.
    """
    tokens, relaxations = np.asarray(draft_tokens, dtype=np.int64), np.asarray(omega, dtype=np.float64)
    length = len(tokens)
    if len(p) != length + 1 or len(q) != length or len(relaxations) != length:
        raise InputError(
            f"verify_chain got {length} draft tokens with p for {len(p)}, q for {len(q)} and omega for "
            f"{len(relaxations)} positions. Expected {length + 1}, {length} and {length}."
        )
    acceptance, drift = [], 0.0
    for i, (token, w) in enumerate(zip(tokens.tolist(), relaxations.tolist(), strict=True)):
        acceptance.append(acceptance_probability(p[i], q[i], w))
        drift += position_drift(p[i], q[i], w)
        # u < min(1, w p/q) without the division, so q = 0 needs no case of its own and p = 0 is never accepted.
        if not rng.random() * q[i][token] < w * p[i][token]:
            residual = residual_distribution(p[i], q[i], w)
            return Verdict(i, sample_token(residual, rng.random()), np.array(acceptance), drift)
    return Verdict(length, sample_token(p[length], rng.random()), np.array(acceptance), drift)
