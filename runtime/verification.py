"""The acceptance test along a draft: which drafted tokens stand, and which token follows them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .acceptance import Acceptance, Relaxation
from .errors import InputError
from .law import Law
from .proposal import Proposal
from .sampling import UniformSource
from .spans import spanned
from .tree import Tree

Distribution = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Verdict:
    """Outcome of one draft.

    path: the drafted nodes that stand, from the root's child on. next_token: the token emitted after them.
    acceptance: [reached] probability beta_i, at each depth the walk reached, that one of the candidates stands; summed
    over the candidates that were tested, which is right in the mean. drift: total variation from the target, summed
    over the same tests.
    """

    path: list[int]
    next_token: int
    acceptance: NDArray[np.float64]
    drift: float

    @property
    def n_accepted(self) -> int:
        """Drafted tokens that stand, 0..L."""
        return len(self.path)


def verify_chain(
    draft_tokens: ArrayLike, p: Distribution, q: Distribution, omega: ArrayLike, rng: UniformSource
) -> tuple[int, int]:
    """COOL-SD's verification of a chain (arXiv 2601.09212; omega = 1 is speculative sampling, arXiv 2211.17192).

    Token i stands with probability `min(1, omega_i p_i(x_i) / q_i(x_i))`; the first that does not is replaced by a
    draw from the residual; if all stand, a bonus token comes from `p_{L+1}`. Uniforms are taken in a fixed order: one
    per position reached, then one for the emitted token.

    Args:
        draft_tokens: [L] int, drawn from q. L may be 0: then one token is drawn from p_1.
        p: [L+1, V] target distributions after warping. q: [L, V] the draft's, after the same warping.
        omega: [L] relaxation, each at least 0.
        rng: source of uniforms on [0, 1).
    Returns: (n_accepted, next_token).
    Raises: InputError when the shapes do not fit together, or the values are not what is said here.
    """
    tokens, p, q, omega = np.asarray(draft_tokens), np.asarray(p), np.asarray(q), np.asarray(omega, dtype=np.float64)
    length = _check_chain(tokens, p, q, omega)
    rules = [Relaxation(w) for w in omega.tolist()]
    laws = dict(enumerate(map(Law.of_dense, q)))
    proposal = Proposal(Tree.chain(length), np.concatenate([[0], tokens]), laws)
    verdict = judge(proposal, lambda node: Law.of_dense(p[node]), rules, rng)
    return verdict.n_accepted, verdict.next_token


def _check_chain(tokens: NDArray[Any], p: Distribution, q: Distribution, omega: NDArray[np.float64]) -> int:
    """L. Raises: InputError, see `verify_chain`."""
    length = tokens.size
    if tokens.ndim != 1 or p.ndim != 2 or len(p) != length + 1 or omega.shape != (length,) or len(q) != length:
        raise InputError(
            f"verify_chain got {length} draft tokens with p {p.shape}, q {q.shape} and omega {omega.shape}. "
            f"Expected [{length + 1}, V], [{length}, V] and [{length}]."
        )
    if length and q.shape[1:] != p.shape[1:]:
        raise InputError(f"verify_chain got p over {p.shape[1:]} and q over {q.shape[1:]} tokens. Expected the same.")
    if length and not (tokens.dtype.kind in "iu" and tokens.min() >= 0 and tokens.max() < p.shape[1]):
        raise InputError(f"verify_chain got draft tokens {tokens.tolist()}. Expected integers in 0..{p.shape[1] - 1}.")
    if not (np.isfinite(omega) & (omega >= 0)).all():
        raise InputError(f"verify_chain got omega {omega.tolist()}. Expected finite factors, at least 0.")
    for name, rows in (("p", p), ("q", q)):
        if not ((rows >= 0).all() and np.isfinite(rows).all() and rows.any(axis=1).all()):
            raise InputError(f"verify_chain got {name} with rows that are no distributions: warp the logits first.")
    return length


@spanned("verify")
def judge(proposal: Proposal, p: Callable[[int], Law], rules: Sequence[Acceptance], rng: UniformSource) -> Verdict:
    """Walk from the root: at each node the first child that stands is the next; if none does, the residual speaks.

    Args:
        p: node -> the target's law after it; asked only for nodes the walk visits, once each.
        rules: the acceptance test by depth, the root's children first. The walk is at most so long.
        rng: source of uniforms on [0, 1): one per candidate tested, then one for the emitted token.
    """
    node, path, acceptance, drift = 0, list[int](), list[float](), 0.0
    for rule in rules:
        if not proposal.candidates(node):
            break
        trial = _try_children(proposal, node, p(node), rule, rng)
        acceptance.append(trial.acceptance)
        drift += trial.drift
        if trial.accepted is None:
            return Verdict(path, trial.residual.sample(rng.random()), np.array(acceptance), drift)
        node = trial.accepted
        path.append(node)
    return Verdict(path, p(node).sample(rng.random()), np.array(acceptance), drift)


@dataclass(frozen=True)
class _Trial:
    """accepted: the child that stands, None if none does. residual: what is left of p then."""

    accepted: int | None
    residual: Law
    acceptance: float
    drift: float


def _try_children(proposal: Proposal, node: int, p: Law, rule: Acceptance, rng: UniformSource) -> _Trial:
    """Test siblings in turn, each against what its elders' rejections left of p and the law it was drawn from.

    At a <= p the emitted law is exactly p, whatever the number of siblings (by induction from the last one). The sum
    of each test's total variation from its own residual bounds, in the mean, that of the node (triangle inequality).
    """
    acceptance = drift = 0.0
    children = proposal.candidates(node)
    tokens = [int(proposal.tokens[child]) for child in children]
    for child, token, q in zip(children, tokens, _laws(proposal.q.get(node), tokens, p.size), strict=False):
        beta, variation = rule.measure(p, q)
        acceptance += beta
        drift += variation
        # u < a/q without the division, so q = 0 needs no case of its own and a = 0 never stands.
        if rng.random() * q[token] < rule.weight(p, token):
            return _Trial(child, p, acceptance, drift)
        p = rule.residual(p, q, token)
    return _Trial(None, p, acceptance, drift)


def _laws(q: Law | None, tokens: list[int], size: int) -> Iterator[Law]:
    """The law each sibling was drawn from: q without its elders; without q, the law that holds only itself."""
    for token in tokens:
        if q is None:
            yield Law.one_hot(token, size)
        else:
            yield q
            q = q.without(token)
