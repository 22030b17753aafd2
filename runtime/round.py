"""The step loop's two moves: prefill, and one round of speculative decoding over a batch of images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .acceptance import Acceptance
from .config import SamplingConfig
from .drafting import Drafter
from .law import Law
from .proposal import Proposal
from .protocols import CachedTransformer
from .sequence import Batch, ImageSequence
from .spans import spanned
from .stats import PhaseClock
from .stepping import prefill_step, tree_step
from .verification import Verdict, judge
from .warping import Warper


@dataclass
class SpeculativeDecoder:
    """A model pair with its settings. rules: one acceptance test per depth of the drafter's proposals."""

    target: CachedTransformer
    drafter: Drafter
    sampling: SamplingConfig
    rules: Sequence[Acceptance]
    clock: PhaseClock = field(default_factory=PhaseClock)

    def __post_init__(self) -> None:
        self._warp = Warper(self.sampling)

    def prefill(self, batch: Batch) -> None:
        """Feed the conditions and emit every image's first token."""
        with self.clock.phase("target", batch.stats):
            out = prefill_step(self.target, [sequence.prompt for sequence in batch.sequences], batch.branches)
        with self.clock.phase("host", batch.stats):
            batch.features = out.hidden
            for i, sequence in enumerate(batch.sequences):
                p = self._warp(out.logits[batch.rows(i), -1], 0)
                sequence.emit([p.sample(sequence.rng.random())])

    def round(self, batch: Batch) -> None:
        """One target pass: every image of the batch gains between 1 and L + 1 tokens."""
        # The round also emits a token of its own, so the last one of an image is never drafted.
        limits = [min(self.drafter.depth, sequence.remaining - 1) for sequence in batch.sequences]

        # q: the draft proposes tokens on a tree, children of a node drawn from q without replacement
        with self.clock.phase("draft", batch.stats):
            proposals = self.drafter.propose(batch, limits)

        # p: the target sees the pending token and all drafted ones in one pass, each with its own ancestors
        with self.clock.phase("target", batch.stats):
            tokens = np.stack([proposal.tokens for proposal in proposals]).clip(min=0)
            depths = np.stack([proposal.tree.depths for proposal in proposals])
            lineage = np.stack([proposal.tree.lineage for proposal in proposals]).repeat(batch.branches, axis=0)
            out = tree_step(
                self.target,
                batch.per_row(tokens),
                batch.cached,
                batch.per_row(depths),
                lineage,
                visible=batch.visible,
            )

        # accept x with min(1, a(x)/q(x)), COOL-SD: a = omega p; where all fall, draw from [p - min(q, a)]_+
        with self.clock.phase("host", batch.stats):
            verdicts = [
                self._judge(sequence, proposal, out.logits[batch.rows(i)], self.rules[: limits[i]])
                for i, (sequence, proposal) in enumerate(zip(batch.sequences, proposals, strict=True))
            ]
            self._commit(batch, proposals, verdicts, out.hidden)

    def _judge(
        self,
        sequence: ImageSequence,
        proposal: Proposal,
        logits: NDArray[np.float32],
        rules: Sequence[Acceptance],
    ) -> Verdict:
        """logits: [branches, nodes, V]. Only the nodes that the walk visits are warped."""

        def p(node: int) -> Law:
            return self._warp(logits[:, node], sequence.emitted + proposal.tree.depths[node])

        return judge(proposal, p, rules, sequence.rng)

    @spanned("commit")
    def _commit(
        self, batch: Batch, proposals: list[Proposal], verdicts: list[Verdict], hidden: NDArray[np.float32]
    ) -> None:
        """Emit the accepted paths; keep their features and cache entries, drop the other nodes'."""
        paths = [[0, *verdict.path] for verdict in verdicts]
        longest = max(map(len, paths))
        nodes = batch.per_row([path + [0] * (longest - len(path)) for path in paths])
        batch.features = hidden[np.arange(len(nodes))[:, None], nodes]
        for i, (sequence, path, verdict) in enumerate(zip(batch.sequences, paths, verdicts, strict=True)):
            if path != list(range(len(path))):  # a chain's path lies where it belongs
                for row in range(len(nodes))[batch.rows(i)]:
                    self.target.compact(row, sequence.cached + np.array(path), sequence.cached)
            sequence.stats.record(verdict)
            sequence.emit([*proposals[i].tokens[verdict.path].tolist(), verdict.next_token])

    def retire(self, batch: Batch) -> None:
        """Drop finished images: the last ones of the batch move into their rows, caches and features included."""
        for i in reversed(range(len(batch))):
            if batch.sequences[i].remaining:
                continue
            last, branches = len(batch) - 1, batch.branches
            for branch in range(branches if i != last else 0):
                source, destination = last * branches + branch, i * branches + branch
                for engine in (self.target, self.drafter.draft):
                    if engine is not None:
                        engine.copy_row(source, destination)
                batch.features[destination] = batch.features[source]
            batch.sequences[i] = batch.sequences[last]
            del batch.sequences[last]
        batch.features = batch.features[: len(batch) * batch.branches]
