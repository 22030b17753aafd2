"""How fast this machine reads memory: the floor under every pass that has to see all weights."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

# Of all threads together: more than the last-level caches of most machines, and on any a small part of its memory.
MOST_BYTES = 1 << 30
# Per thread; a few of them read more slowly than many, and need not read as much.
THREAD_BYTES = 256 << 20
REPEATS = 7


def bytes_of_a_thread(threads: int) -> int:
    """What each of `threads` threads reads in a pass; a multiple of four."""
    return min(THREAD_BYTES, MOST_BYTES // threads // 4 * 4)


def stream_bandwidth(threads: int) -> float:
    """Bytes per second that `threads` threads read together, best of some passes over memory of their own."""
    size = bytes_of_a_thread(threads)
    arrays = [np.ones(size // 4, dtype=np.float32) for _ in range(threads)]
    seconds = []
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(REPEATS):
            start = time.perf_counter()
            list(pool.map(np.max, arrays))  # reductions release the GIL
            seconds.append(time.perf_counter() - start)
    return threads * size / min(seconds)
