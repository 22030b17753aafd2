"""Drafting with an EAGLE-1 draft: one catch-up pass over what was just emitted, then one pass per level of a tree; or
all of a chain in one call, where the engine can."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .config import SamplingConfig
from .errors import BackendError
from .law import Law
from .proposal import NOTHING, Proposal
from .protocols import CachedTransformer, ChainDraft, ChainInput
from .sampling import UniformSource
from .sequence import Batch
from .stepping import chain_step, guided, guides, tree_step
from .tree import Tree
from .warping import NOT_FINITE, Warper


class Drafter(Protocol):
    """Proposes tokens for every image of a batch."""

    @property
    def draft(self) -> CachedTransformer | None:
        """The engine that guesses, if any."""

    @property
    def depth(self) -> int:
        """L, the most tokens of a proposal that can stand."""

    @property
    def size(self) -> int:
        """The most nodes that target or draft see in a round, the pending token included."""

    def propose(self, batch: Batch, limits: Sequence[int]) -> list[Proposal]:
        """One proposal per image, all of one size; nothing deeper than `limits[i]` need be in image i's."""


@dataclass(frozen=True)
class NoDraft:
    """Plain autoregression."""

    draft: None = None
    depth: int = 0
    size: int = 1

    def propose(self, batch: Batch, limits: Sequence[int]) -> list[Proposal]:
        return [Proposal.empty(Tree.chain(0), sequence.pending) for sequence in batch.sequences]


@dataclass(frozen=True)
class StaticDrafter:
    """The same tree every round; children are drawn from the draft's law without replacement (greedy: its best)."""

    draft: CachedTransformer
    tree: Tree
    sampling: SamplingConfig

    @cached_property
    def _warp(self) -> Warper:
        return Warper(self.sampling)

    @property
    def depth(self) -> int:
        return self.tree.depth

    @property
    def size(self) -> int:
        return self.tree.size

    def propose(self, batch: Batch, limits: Sequence[int]) -> list[Proposal]:
        tree = self.tree.truncated(max(limits))
        proposals = [Proposal.empty(tree, sequence.pending) for sequence in batch.sequences]
        if not tree.depth:
            return proposals
        logits, features = catch_up(self.draft, batch)
        parents: list[int] = [0]
        drafted: list[int] = []  # nodes in the draft's cache
        for depth in range(tree.depth):
            for i, sequence in enumerate(batch.sequences):
                if depth < limits[i]:
                    index = sequence.emitted + depth
                    self._offer(proposals[i], parents, logits[batch.rows(i)], index, sequence.rng)
            level = [child for node in parents for child in tree.children[node] if tree.children[child]]
            if not level:
                break
            drafted += level
            ids = np.stack([proposal.tokens[level] for proposal in proposals]).clip(min=0)
            features = features[:, [parents.index(tree.parents[node]) for node in level]]
            lineage = tree.lineage[np.ix_(level, drafted)][None]
            depths = np.full((1, len(level)), depth)
            out = tree_step(self.draft, batch.per_row(ids), batch.cached, depths, lineage, features)
            logits, features, parents = out.logits, out.hidden, level
        return proposals

    def _offer(
        self, proposal: Proposal, parents: list[int], logits: NDArray[np.float32], index: int, rng: UniformSource
    ) -> None:
        """Choose the children of one level's nodes, image tokens number `index`. logits: [branches, nodes, V]."""
        for column, node in enumerate(parents):
            count = len(proposal.tree.children[node])
            if proposal.tokens[node] == NOTHING:
                continue
            if self.sampling.greedy:
                scores = guided(logits[:, column], self.sampling, index)[0]
                proposal.offer(node, best(scores, count), None)
            else:
                q = self._warp(logits[:, column], index)
                proposal.offer(node, q.draw_distinct(count, rng), q)


@dataclass(frozen=True)
class FusedDrafter:
    """`StaticDrafter` for a chain, in one engine call: the same tokens for the same uniforms, but for a uniform that
    lies within rounding of an edge."""

    draft: ChainDraft
    depth: int
    sampling: SamplingConfig

    @property
    def size(self) -> int:
        return self.depth + 1

    def propose(self, batch: Batch, limits: Sequence[int]) -> list[Proposal]:
        tree = Tree.chain(max(limits))
        proposals = [Proposal.empty(tree, sequence.pending) for sequence in batch.sequences]
        if not tree.depth:
            return proposals
        uniforms = np.zeros((self.depth, len(batch)))
        if not self.sampling.greedy:
            for i, sequence in enumerate(batch.sequences):
                uniforms[: limits[i], i] = [sequence.rng.random() for _ in range(limits[i])]
        ids, counts = _catch_up_ids(batch)
        start, features = batch.cached - counts, batch.features[:, : ids.shape[1]]
        guided = guides(self.sampling, batch.emitted + np.arange(self.depth)[:, None])
        out = self.draft.chain(ChainInput(ids, features, start, counts, uniforms, guided, self.sampling))
        for i, proposal in enumerate(proposals):
            for depth in range(limits[i]):
                self._offer(proposal, depth, int(out.tokens[depth, i]), out.q[depth, i])
        return proposals

    def _offer(self, proposal: Proposal, node: int, token: int, q: NDArray[np.floating[Any]]) -> None:
        if not q[token] > 0:
            raise BackendError(NOT_FINITE)
        if self.sampling.greedy:
            proposal.offer(node, [token], None)
        else:
            # The engine's next chain overwrites q: both ways copy.
            law = Law.of_dense(q) if self.sampling.top_k else Law(np.arange(len(q)), q.astype(np.float64), len(q))
            if q.dtype != np.float64:
                law = Law(law.tokens, law.mass / law.mass.sum(), law.size)
            proposal.offer(node, [token], law)


def static_drafter(draft: CachedTransformer, tree: Tree, sampling: SamplingConfig) -> Drafter:
    """The drafter of a tree: fused where it is a chain that the engine can run whole."""
    is_chain = tree == Tree.chain(tree.depth)
    if is_chain and isinstance(draft, ChainDraft) and tree.depth <= draft.longest_chain and draft.samples(sampling):
        return FusedDrafter(draft, tree.depth, sampling)
    return StaticDrafter(draft, tree, sampling)


def catch_up(draft: CachedTransformer, batch: Batch) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Feed the draft what the last target pass emitted.

    EAGLE (arXiv 2401.15077): position j takes the target's feature f_j and the token at j + 1, and predicts f_{j+1},
    whose logits give the token at j + 2. True features are used as far as the target has them, the draft's own after.
    Returns: logits [rows, 1, V] and hidden [rows, 1, H] at each row's last position, where the root's children grow.
    """
    ids, ends = _catch_up_ids(batch)
    last = np.arange(len(ids))[:, None], ends[:, None] - 1
    out = chain_step(draft, ids, batch.cached - ends, batch.features[:, : ids.shape[1]])
    return out.logits[last], out.hidden[last]


def best(scores: NDArray[np.floating], count: int) -> list[int]:
    """The `count` largest of [V], largest first, ties by index; all of them when there are not as many."""
    # Filtered tokens all tie at the bottom, and partitioning is slow on ties: they are kept out of it.
    bottom = scores.min()
    top = np.flatnonzero(scores > bottom)
    if len(top) > count:
        values = scores[top]
        top = top[values >= np.partition(values, -count)[-count]]
    ranked = top[np.argsort(-scores[top], kind="stable")][:count]
    missing = count - len(ranked)
    rest: list[int] = np.flatnonzero(scores == bottom)[:missing].tolist() if missing else []
    return [*ranked.tolist(), *rest]


def _catch_up_ids(batch: Batch) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The tokens emitted by the last pass, one per feature: ids [rows, M] padded at the end, and their counts [rows].

    After prefill there is a feature per condition position but only one token: the rest of the prefix has id 0
    (the reference drafter's convention).
    """
    fresh = []
    for sequence in batch.sequences:
        prefilled = sequence.emitted == len(sequence.last_emitted)
        prefix = [0] * (sequence.prefix_length - 1) if prefilled else []
        fresh.append(prefix + sequence.last_emitted)
    counts = [len(ids) for ids in fresh]
    padded = [ids + [0] * (max(counts) - len(ids)) for ids in fresh]
    return batch.per_row(padded), batch.per_row(counts)
