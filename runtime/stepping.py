"""Engine steps as rounds need them: tokens in a row or on a tree, masks and positions filled in, CFG combined."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .config import SamplingConfig
from .protocols import CachedTransformer, StepOutput
from .warping import combine_cfg


def chain_step(
    engine: CachedTransformer,
    input_ids: NDArray[np.int64],
    lengths: NDArray[np.int64],
    features: NDArray[np.float32] | None = None,
) -> StepOutput:
    """Run S tokens per row that continue a cache of `lengths` positions.

    Args: input_ids [R, S]; lengths [R]; features [R, S, H] for drafts.
    Rows may be padded at the end: the pad's cache entries lie beyond the row's length and are overwritten later.
    """
    position_ids = lengths[:, None] + np.arange(input_ids.shape[1])
    mask = np.arange(engine.cache_length) <= position_ids[:, None, :, None]
    return engine.step(input_ids, position_ids, mask, lengths, features)


def tree_step(
    engine: CachedTransformer,
    input_ids: NDArray[np.int64],
    lengths: NDArray[np.int64],
    depths: NDArray[np.int64],
    visible: NDArray[np.bool_],
    features: NDArray[np.float32] | None = None,
) -> StepOutput:
    """Run S nodes of a tree per row; the tree's M nodes so far lie in the cache behind `lengths` committed positions.

    Args: input_ids [R, S], the last S of the M nodes; lengths [R]; depths [R or 1, S], a node's position is its row's
    length plus its depth; visible [R or 1, S, M], which nodes a node sees besides what is committed; features [R, S, H]
    for drafts.
    """
    n_new, n_nodes = visible.shape[1:]
    slot = np.arange(engine.cache_length) - lengths[:, None]  # which node lies at each cache position; below 0: none
    node = np.broadcast_to(slot.clip(0, n_nodes - 1)[:, None], (len(lengths), n_new, slot.shape[1]))
    seen = np.take_along_axis(np.broadcast_to(visible, (len(lengths), n_new, n_nodes)), node, axis=2)
    mask = np.where(slot[:, None] < 0, True, seen & (slot[:, None] < n_nodes))
    position_ids = lengths[:, None] + depths
    return engine.step(input_ids, position_ids, mask[:, None], lengths + n_nodes - n_new, features)


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
    guides = np.asarray(token_index) <= sampling.cfg_interval + 1
    return np.where(guides[..., None], combined, cond)
