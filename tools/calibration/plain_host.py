"""What the host adds to a pass of plain autoregression: it judges one position, a round that drafts several."""

from __future__ import annotations

import math
import time

import numpy as np

from ...runtime.condition import Prompt
from ...runtime.config import SamplingConfig
from ...runtime.drafting import NoDraft
from ...runtime.protocols import Engines
from ...runtime.round import SpeculativeDecoder
from ...runtime.sampling import image_generator
from ...runtime.sequence import Batch, ImageSequence

ROUNDS = 24
LEAST_ROUNDS = 3


def plain_host(engines: Engines, sampling: SamplingConfig, batch_size: int, end: float = math.inf) -> float:
    """Median seconds of the host in a round of `ar` over `batch_size` pictures, of the first rounds of a run.

    Args: end: by `time.perf_counter`; no round begins after it, once there are a few.
    """
    info, branches = engines.info, 2 if sampling.guided else 1
    n_tokens = min(ROUNDS + 2, info.n_tokens)
    # What it is made from makes no difference to the host.
    prefix = info.prefix_length
    prompt = Prompt({}, np.zeros((2, prefix), np.int64), np.tri(prefix, dtype=np.bool_))
    sequences = [ImageSequence(prompt, n_tokens, image_generator(0, i), 0) for i in range(batch_size)]
    batch = Batch(sequences, branches)
    engines.target.allocate(batch_size * branches, prefix + info.n_tokens)
    decoder = SpeculativeDecoder(engines.target, NoDraft(), sampling, [])
    decoder.prefill(batch)
    spent = [_host(batch)]
    while batch.sequences[0].remaining:
        if len(spent) > LEAST_ROUNDS and time.perf_counter() > end:
            break
        decoder.round(batch)
        spent.append(_host(batch))
    # Without the first round, which makes buffers.
    return float(np.median(np.diff(spent)[1:]))


def _host(batch: Batch) -> float:
    """Seconds so far; each image has its share."""
    return sum(stats.seconds["host"] for stats in batch.stats)
