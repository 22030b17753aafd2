"""Dynamic trees (EAGLE-2, arXiv 2406.16858): each round keeps the nodes the draft itself finds most likely."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .config import SamplingConfig
from .drafting import best, catch_up
from .proposal import NOTHING, Proposal
from .protocols import CachedTransformer
from .sequence import Batch
from .stepping import guided, tree_step
from .tree import Tree
from .warping import softmax, warp


@dataclass(frozen=True)
class DynamicDrafter:
    """Expands the `branches` likeliest nodes of each level and keeps the `nodes` likeliest of all that were seen.

    A node's score is the log of the draft's probability of its path. Nothing is drawn: verification treats every node
    as chosen, which is exact because the choice never looks at the target.
    """

    draft: CachedTransformer
    depth: int
    sampling: SamplingConfig
    branches: int
    nodes: int

    @property
    def size(self) -> int:
        return max(self.nodes, (self.depth - 1) * self.branches) + 1

    def propose(self, batch: Batch, limits: Sequence[int]) -> list[Proposal]:
        growths = [_Growth(sequence.pending, self.branches) for sequence in batch.sequences]
        if max(limits):
            logits, features = catch_up(self.draft, batch)
            for depth in range(max(limits)):
                if depth:
                    logits, features = self._step(batch, growths, depth - 1, features)
                scores = guided(logits, self.sampling, (batch.emitted + depth)[:, None])
                for growth, rows in zip(growths, scores, strict=True):
                    growth.expand(self._law(rows))
        # An image close to its end has no use for deeper levels, and must not see that others had.
        kept = [growth.likeliest(self.nodes, limit) for growth, limit in zip(growths, limits, strict=True)]
        size = max(map(len, kept))
        return [growth.proposal(nodes, size) for growth, nodes in zip(growths, kept, strict=True)]

    def _step(
        self, batch: Batch, growths: list[_Growth], depth: int, features: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Run the frontier through the draft. features: [rows, width, H] of the frontier before it."""
        ids = batch.per_row([[growth.tokens[node] for node in growth.frontier] for growth in growths])
        columns = batch.per_row([growth.columns for growth in growths])
        lineage = np.stack([growth.lineage for growth in growths]).repeat(batch.branches, axis=0)
        grown_from = features[np.arange(len(columns))[:, None], columns]
        depths = np.full((1, ids.shape[1]), depth)
        out = tree_step(self.draft, ids, batch.cached, depths, lineage, grown_from)
        return out.logits, out.hidden

    def _law(self, logits: NDArray[np.float32]) -> NDArray[np.float64]:
        return softmax(logits.astype(np.float64)) if self.sampling.greedy else warp(logits, self.sampling)


class _Growth:
    """All nodes seen for one image so far; node 0 is the pending token.

    frontier: nodes to expand next, likeliest first. columns: where each one's parent stood in the frontier before.
    lineage: [frontier, nodes in the draft's cache] what each one sees there, itself included.
    """

    def __init__(self, pending: int, branches: int) -> None:
        self.branches = branches
        self.tokens = [pending]
        self.parents = [-1]
        self.depths = [0]
        self.scores = [0.0]
        self.frontier = [0]
        self.columns = [0]
        self.lineage: NDArray[np.bool_] = np.zeros((1, 0), dtype=bool)

    def expand(self, law: NDArray[np.float64]) -> None:
        """Give every frontier node its likeliest children. law: [frontier, V]."""
        first = len(self.tokens)
        column_of: list[int] = []
        for column, (node, row) in enumerate(zip(self.frontier, law, strict=True)):
            for token in best(row, self.branches):
                self.tokens.append(token)
                self.parents.append(node)
                self.depths.append(self.depths[node] + 1)
                self.scores.append(self.scores[node] + (math.log(row[token]) if row[token] > 0 else -math.inf))
                column_of.append(column)
        chosen = best(np.array(self.scores[first:]), self.branches)
        self.frontier = [first + i for i in chosen]
        self.columns = [column_of[i] for i in chosen]
        own = np.eye(len(chosen), dtype=bool)
        self.lineage = np.concatenate([self.lineage[self.columns], own], axis=1)

    def likeliest(self, nodes: int, depth: int) -> list[int]:
        """The likeliest nodes that are no deeper than `depth`, and the root, in the order they were seen. A parent is
        never less likely than its child and was seen before it, so it is among them."""
        scores = np.where(np.array(self.depths) <= depth, self.scores, -math.inf)
        return [node for node in sorted(best(scores, nodes + 1)) if scores[node] > -math.inf]

    def proposal(self, kept: list[int], size: int) -> Proposal:
        """Some of the nodes as a proposal, filled up to `size` with empty children of the root."""
        number = {node: i for i, node in enumerate(kept)}
        parents = [number[self.parents[node]] for node in kept[1:]]
        empty = size - len(kept)
        tokens = np.array([self.tokens[node] for node in kept] + [NOTHING] * empty, dtype=np.int64)
        return Proposal(Tree((-1, *parents, *[0] * empty)), tokens)
