"""Timing several things so that a machine's moods hit all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

# Calls of one thing before it is the next one's turn; the first finds other data in the caches, other threads awake.
BURST = 4


def interleave(runs: Mapping[str, Callable[[], object]], turns: int) -> dict[str, NDArray[np.float64]]:
    """Seconds of the calls after the first of each turn, by name; the order rotates from turn to turn."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    names = list(runs)
    for name in names:
        runs[name]()
    for turn in range(turns):
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            for call in range(BURST):
                start = time.perf_counter()
                runs[name]()
                if call:
                    seconds[name].append(time.perf_counter() - start)
    return {name: np.array(values) for name, values in seconds.items()}
