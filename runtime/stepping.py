"""Engine steps as rounds need them: tokens in a row or on a tree, masks and positions filled in, CFG combined."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .condition import Prompt
from .config import SamplingConfig
from .protocols import CachedTransformer, StepOutput
from .warping import combine_cfg


def chain_step(
    engine: CachedTransformer,
    input_ids: NDArray[np.int64],
    lengths: NDArray[np.int64],
    features: NDArray[np.float32] | None = None,
    visible: NDArray[np.bool_] | None = None,
) -> StepOutput:
    """Run S tokens per row that continue a cache of `lengths` positions.

    Args: input_ids [R, S]; lengths [R]; features [R, S, H] for drafts; visible [R, P], which of the P condition
    positions may be attended to (None: all).
    Rows may be padded at the end: the pad's cache entries lie beyond the row's length and are overwritten later.
    """
    position_ids = lengths[:, None] + np.arange(input_ids.shape[1])
    mask = np.arange(engine.cache_length) <= position_ids[:, None, :, None]
    if visible is not None:
        mask[..., : visible.shape[1]] &= visible[:, None, None]
    return engine.step(input_ids, position_ids, mask, lengths, features)


def tree_step(
    engine: CachedTransformer,
    input_ids: NDArray[np.int64],
    lengths: NDArray[np.int64],
    depths: NDArray[np.int64],
    lineage: NDArray[np.bool_],
    features: NDArray[np.float32] | None = None,
    visible: NDArray[np.bool_] | None = None,
) -> StepOutput:
    """Run S nodes of a tree per row; the tree's M nodes so far lie in the cache behind `lengths` committed positions.

    Args: input_ids [R, S], the last S of the M nodes; lengths [R]; depths [R or 1, S], a node's position is its row's
    length plus its depth; lineage [R or 1, S, M], which nodes a node may attend to besides what is committed; features
    and visible as for `chain_step`.
    """
    n_new, n_nodes = lineage.shape[1:]
    mask = np.empty((len(lengths), n_new, engine.cache_length), dtype=np.bool_)
    mask[:] = (np.arange(engine.cache_length) < lengths[:, None])[:, None]
    if visible is not None:
        mask[..., : visible.shape[1]] &= visible[:, None]
    mask[np.arange(len(lengths))[:, None], :, lengths[:, None] + np.arange(n_nodes)] = lineage.swapaxes(1, 2)
    position_ids = lengths[:, None] + depths
    return engine.step(input_ids, position_ids, mask[:, None], lengths + n_nodes - n_new, features)


def prefill_step(engine: CachedTransformer, prompts: Sequence[Prompt], branches: int) -> StepOutput:
    """Run the target over the conditions, all of one length P, into empty caches; `branches` rows for each prompt."""
    input_ids = np.concatenate([prompt.input_ids[:branches] for prompt in prompts])
    rows, length = input_ids.shape
    mask = np.zeros((rows, 1, length, engine.cache_length), dtype=np.bool_)
    mask[:, 0, :, :length] = np.repeat(np.stack([prompt.mask for prompt in prompts]), branches, axis=0)
    embeddings = [prompt.features[:branches] for prompt in prompts if prompt.features is not None]
    return engine.step(
        input_ids,
        np.broadcast_to(np.arange(length), input_ids.shape),
        mask,
        np.zeros(rows, dtype=np.int64),
        np.concatenate(embeddings) if embeddings else None,
    )


def guided(
    logits: NDArray[np.float32], sampling: SamplingConfig, token_index: NDArray[np.int64] | int
) -> NDArray[np.float32]:
    """Combine the CFG branches of interleaved rows; unguided logits pass through.

    Args: logits [2N, ..., V]; token_index: which image token (0 = the first) each of the [N, ...] entries predicts.
    Returns: [N, ..., V].
    """
    if not sampling.guided:
        return logits
    cond, combined = logits[0::2], combine_cfg(logits[0::2], logits[1::2], sampling.cfg_scale)
    if sampling.cfg_interval < 0:
        return combined
    return np.where(guides(sampling, np.asarray(token_index))[..., None], combined, cond)


def guides(sampling: SamplingConfig, token_index: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether guidance applies to each image token (0 = the first)."""
    return sampling.guided & (token_index <= sampling.last_guided)
