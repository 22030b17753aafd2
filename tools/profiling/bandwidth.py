"""How fast this machine reads memory: the floor under every pass that has to see all weights."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

# Per thread; together more than the last-level cache of any machine this will meet.
BYTES = 256 << 20
REPEATS = 7


def stream_bandwidth(threads: int) -> float:
    """Bytes per second that `threads` threads read together, best of some passes over memory of their own."""
    arrays = [np.ones(BYTES // 4, dtype=np.float32) for _ in range(threads)]
    seconds = []
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(REPEATS):
            start = time.perf_counter()
            list(pool.map(np.max, arrays))  # reductions release the GIL
            seconds.append(time.perf_counter() - start)
    return threads * BYTES / min(seconds)
