"""What lossless rounds on a real pair look like, kept in a form from which any schedule can be evaluated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...runtime.acceptance import Relaxation
from ...runtime.config import SamplingConfig
from ...runtime.drafting import StaticDrafter
from ...runtime.proposal import Proposal
from ...runtime.protocols import CachedTransformer, Engines, StepOutput
from ...runtime.round import SpeculativeDecoder
from ...runtime.sampling import image_generator
from ...runtime.sequence import Batch, ImageSequence
from ...runtime.stepping import guided
from ...runtime.tree import Tree
from ...runtime.warping import warp

# Between two of them beta is interpolated. It is concave in omega, so acceptance comes out a little low, and so does
# drift, beta(omega) - beta(1), which is no careful error: hence they lie close where drift begins.
OMEGAS = np.concatenate([np.linspace(1.0, 1.2, 21), np.geomspace(1.2, 32.0, 37)[1:]])


@dataclass(frozen=True)
class Trace:
    """Rounds of L drafted tokens that start from prefixes the target itself would have made.

    ratio: [rounds, L], p_i(x_i) / q_i(x_i) of the drafted tokens. beta: [rounds, L, len(OMEGAS)], acceptance
    probability at each position if it is reached, by omega.
    """

    ratio: NDArray[np.float64]
    beta: NDArray[np.float64]

    @property
    def draft_length(self) -> int:
        return self.ratio.shape[1]


@dataclass
class _Recorder:
    """A target and a drafter that keep what passes through them, one round at a time."""

    target: CachedTransformer
    drafter: StaticDrafter
    logits: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))
    proposals: list[Proposal] = field(default_factory=list)

    @property
    def cache_length(self) -> int:
        return self.target.cache_length

    @property
    def draft(self) -> CachedTransformer:
        return self.drafter.draft

    @property
    def depth(self) -> int:
        return self.drafter.depth

    @property
    def size(self) -> int:
        return self.drafter.size

    def allocate(self, rows: int, cache_length: int) -> None:
        self.target.allocate(rows, cache_length)

    def copy_row(self, source: int, destination: int) -> None:
        self.target.copy_row(source, destination)

    def compact(self, row: int, sources: NDArray[np.int64], destination: int) -> None:
        self.target.compact(row, sources, destination)

    def step(self, *arguments: Any, **options: Any) -> StepOutput:
        out = self.target.step(*arguments, **options)
        self.logits = out.logits
        return out

    def propose(self, batch: Batch, limits: Sequence[int]) -> list[Proposal]:
        self.proposals = self.drafter.propose(batch, limits)
        return self.proposals


@dataclass(frozen=True)
class Round:
    """One lossless round. image: index of its sequence. p: [L + 1, V], the target's law at every drafted position."""

    image: int
    proposal: Proposal
    p: NDArray[np.float64]


def record_rounds(
    engines: Engines,
    sequences: Sequence[ImageSequence],
    sampling: SamplingConfig,
    draft_length: int,
    batch_size: int,
    progress: Callable[[int], None] = lambda done: None,
) -> Iterator[Round]:
    """Generate the images losslessly; every round that drafted `draft_length` tokens.

    Args: progress: called with the number of images done.
    """
    assert engines.draft is not None
    recorder = _Recorder(engines.target, StaticDrafter(engines.draft, Tree.chain(draft_length), sampling))
    decoder = SpeculativeDecoder(recorder, recorder, sampling, [Relaxation(1.0)] * draft_length)
    branches = 2 if sampling.guided else 1
    number = {id(sequence): i for i, sequence in enumerate(sequences)}
    for first in range(0, len(sequences), batch_size):
        batch = Batch(list(sequences[first : first + batch_size]), branches)
        length = batch.sequences[0].prefix_length + len(batch.sequences[0].tokens) + draft_length + 1
        for engine in (engines.target, engines.draft):
            engine.allocate(len(batch) * branches, length)
        decoder.prefill(batch)
        decoder.retire(batch)
        while len(batch):
            emitted = batch.emitted
            whole = [sequence.remaining > draft_length for sequence in batch.sequences]
            decoder.round(batch)
            for i in np.flatnonzero(whole):
                index = emitted[i] + np.arange(draft_length + 1)
                rows = recorder.logits[i * branches : (i + 1) * branches]
                p = warp(guided(rows, sampling, index[None])[0], sampling)
                yield Round(number[id(batch.sequences[i])], recorder.proposals[i], p)
            decoder.retire(batch)
        progress(min(first + batch_size, len(sequences)))


def record_trace(
    engines: Engines,
    sequences: Sequence[ImageSequence],
    sampling: SamplingConfig,
    draft_length: int,
    batch_size: int,
    progress: Callable[[int], None] = lambda done: None,
) -> Trace:
    """What `record_rounds` yields, kept for `predict`."""
    return trace_of(record_rounds(engines, sequences, sampling, draft_length, batch_size, progress))


def trace_of(rounds: Iterable[Round]) -> Trace:
    """Rounds in the form that `predict` reads."""
    ratios, betas = zip(*(_measure(recorded.proposal, recorded.p) for recorded in rounds), strict=True)
    return Trace(np.array(ratios), np.array(betas))


def image_sequences(prompts: Sequence[Any], n_tokens: int, seed: int, draft_length: int) -> list[ImageSequence]:
    """One sequence per prompt, each with its own generator."""
    return [ImageSequence(prompt, n_tokens, image_generator(seed, i), draft_length) for i, prompt in enumerate(prompts)]


def _measure(proposal: Proposal, p: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """ratio [L] and beta [L, len(OMEGAS)] of a chain; p: [L + 1, V]."""
    tokens = proposal.tokens[1:]
    q = np.stack([proposal.q[node].dense() for node in range(len(tokens))])
    nodes = np.arange(len(tokens))
    ratio = p[nodes, tokens] / q[nodes, tokens]
    beta = np.stack([np.minimum(q, omega * p[:-1]).sum(axis=1) for omega in OMEGAS], axis=1)
    return ratio, np.minimum(beta, 1.0)
