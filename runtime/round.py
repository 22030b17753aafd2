"""The step loop's two moves: prefill, and one round of speculative decoding over a batch of images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .acceptance import Acceptance
from .config import SamplingConfig
from .drafting import draft_chain
from .protocols import CachedTransformer
from .sampling import sample_token
from .sequence import Batch
from .stats import PhaseClock
from .stepping import chain_step, guided
from .verification import judge_chain
from .warping import warp


@dataclass
class SpeculativeDecoder:
    """A model pair with its settings. rules: L acceptance tests, none for plain autoregression."""

    target: CachedTransformer
    draft: CachedTransformer | None
    sampling: SamplingConfig
    rules: Sequence[Acceptance]
    clock: PhaseClock = field(default_factory=PhaseClock)

    def prefill(self, batch: Batch, condition_ids: NDArray[np.int64]) -> None:
        """Feed the condition ([rows, prefix]) and emit every image's first token."""
        with self.clock.phase("target", batch.stats):
            out = chain_step(self.target, condition_ids, np.zeros(len(condition_ids), dtype=np.int64))
        with self.clock.phase("host", batch.stats):
            batch.features = out.hidden
            p = warp(guided(out.logits[:, -1], self.sampling, 0), self.sampling)
            for i, sequence in enumerate(batch.sequences):
                sequence.emit([sample_token(p[i], sequence.rng.random())])

    def round(self, batch: Batch) -> None:
        """One target pass: every image of the batch gains between 1 and L + 1 tokens."""
        # The round also emits a token of its own, so the last one of an image is never drafted.
        lengths = [min(len(self.rules), sequence.remaining - 1) for sequence in batch.sequences]

        # q: the draft proposes x_1..x_L, x_i ~ q_i
        with self.clock.phase("draft", batch.stats):
            if self.draft is not None and max(lengths) > 0:
                drafts, q = draft_chain(self.draft, batch, lengths, self.sampling)
            else:
                drafts, q = np.zeros((len(batch), 0), dtype=np.int64), np.zeros((len(batch), 0, 0))

        # p: the target sees the pending token and x_1..x_L in one pass and gives p_1..p_{L+1}
        with self.clock.phase("target", batch.stats):
            pending = np.array([[sequence.pending] for sequence in batch.sequences])
            ids = np.concatenate([pending, drafts], axis=1)
            out = chain_step(self.target, np.repeat(ids, batch.branches, axis=0), batch.cached)

        # accept x_i with min(1, a_i/q_i), (COOL-SD: a = omega p); a rejected one is replaced from [p - min(q, a)]_+
        with self.clock.phase("host", batch.stats):
            batch.features = out.hidden
            token_index = batch.emitted[:, None] + np.arange(ids.shape[1])
            p = warp(guided(out.logits, self.sampling, token_index), self.sampling)
            for i, (sequence, length) in enumerate(zip(batch.sequences, lengths, strict=True)):
                verdict = judge_chain(
                    drafts[i, :length], p[i, : length + 1], q[i, :length], self.rules[:length], sequence.rng
                )
                sequence.stats.record(verdict)
                sequence.emit([*drafts[i, : verdict.n_accepted].tolist(), verdict.next_token])

    def retire(self, batch: Batch) -> None:
        """Drop finished images: the last ones of the batch move into their rows, caches and features included."""
        for i in reversed(range(len(batch))):
            if batch.sequences[i].remaining:
                continue
            last, branches = len(batch) - 1, batch.branches
            for branch in range(branches if i != last else 0):
                source, destination = last * branches + branch, i * branches + branch
                for engine in (self.target, self.draft):
                    if engine is not None:
                        engine.copy_row(source, destination)
                batch.features[destination] = batch.features[source]
            batch.sequences[i] = batch.sequences[last]
            del batch.sequences[last]
        batch.features = batch.features[: len(batch) * batch.branches]
