"""Chain drafting with an EAGLE-1 draft: one catch-up pass over what was just emitted, then one pass per token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .config import SamplingConfig
from .protocols import CachedTransformer
from .sampling import sample_token
from .sequence import Batch
from .stepping import chain_step, guided
from .warping import warp

Drafts = tuple[NDArray[np.int64], NDArray[np.float64]]


def draft_chain(draft: CachedTransformer, batch: Batch, lengths: Sequence[int], sampling: SamplingConfig) -> Drafts:
    """Propose `lengths[i]` tokens for image i.

    EAGLE (arXiv 2401.15077): position j takes the target's feature f_j and the token at j + 1, and predicts f_{j+1},
    whose logits give the token at j + 2. True features are used as far as the target has them, the draft's own after.

    Returns: tokens [N, L] int64 and q [N, L, V] float64, L = max(lengths). Entries past an image's own length are
    padding.
    """
    ids, ends = _catch_up_ids(batch)
    cached = batch.cached
    rows = np.arange(len(ids))
    out = chain_step(draft, ids, cached - ends, batch.features[:, : ids.shape[1]])
    logits, feature = out.logits[rows, ends - 1], out.hidden[rows, ends - 1]

    tokens = np.zeros((len(batch), max(lengths)), dtype=np.int64)
    q = np.zeros((*tokens.shape, logits.shape[-1]))
    for k in range(tokens.shape[1]):
        q[:, k] = warp(guided(logits, sampling, batch.emitted + k), sampling)
        for i, sequence in enumerate(batch.sequences):
            if k < lengths[i]:
                tokens[i, k] = sample_token(q[i, k], sequence.rng.random())
        if k + 1 < tokens.shape[1]:
            out = chain_step(draft, batch.per_row(tokens[:, k : k + 1].tolist()), cached + k, feature[:, None])
            logits, feature = out.logits[:, 0], out.hidden[:, 0]
    return tokens, q


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
