"""What passes cost on this machine: c(T), the time of T tokens over the time of one."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...runtime.protocols import CachedTransformer, Engines
from ...runtime.stepping import chain_step

REPEATS = 25
LEAST_REPEATS = 7


@dataclass(frozen=True)
class PassCosts:
    """Median seconds. target[T - 1]: a target pass of T tokens. draft_first[T - 1]: the draft's catch-up over T tokens.
    draft_step: one more drafted token. host: everything else of a round. NaN for the draft where there is none."""

    target: NDArray[np.float64]
    draft_first: NDArray[np.float64]
    draft_step: float
    host: float

    def round(self, draft_length: int, tokens: float) -> float:
        """Seconds of a round that drafts L tokens and emits `tokens` on average; L = 0 is plain autoregression."""
        if draft_length == 0:
            return float(self.target[0]) + self.host
        catch_up = float(np.interp(tokens, np.arange(1, len(self.draft_first) + 1), self.draft_first))
        return float(self.target[draft_length]) + catch_up + (draft_length - 1) * self.draft_step + self.host

    @property
    def ratios(self) -> NDArray[np.float64]:
        """c(T) of the target, T = 1, 2, ..."""
        return self.target / self.target[0]


def measure_costs(
    engines: Engines,
    hidden_size: int,
    rows: int,
    cached: int,
    draft_length: int,
    host: float,
    cache_length: int | None = None,
    budget: float = math.inf,
) -> PassCosts:
    """Time passes of 1 to L + 1 tokens on `rows` rows whose caches hold `cached` positions, interleaved, medians.

    Args: cache_length: of the caches, which some attention kernels walk whole; None: just what the passes need.
    budget: seconds after which no further repeat begins, once there are a few.
    """
    lengths = range(1, draft_length + 2)
    timers: dict[tuple[str, int], Callable[[], None]] = {}
    for name, engine, features in (("target", engines.target, None), ("draft", engines.draft, hidden_size)):
        if engine is not None:
            engine.allocate(rows, cache_length or cached + draft_length + 2)
            for size in lengths:
                timers[name, size] = _timer(engine, rows, cached, size, features)
    seconds: dict[tuple[str, int], list[float]] = {key: [] for key in timers}
    begin = time.perf_counter()
    for repeat in range(REPEATS):
        if repeat >= LEAST_REPEATS and time.perf_counter() - begin > budget:
            break
        for key, run in timers.items():
            start = time.perf_counter()
            run()
            seconds[key].append(time.perf_counter() - start)
    medians = {key: float(np.median(values[2:])) for key, values in seconds.items()}
    draft = np.array([medians.get(("draft", size), np.nan) for size in lengths])
    return PassCosts(np.array([medians["target", size] for size in lengths]), draft, float(draft[0]), host)


def _timer(
    engine: CachedTransformer, rows: int, cached: int, size: int, feature_size: int | None
) -> Callable[[], None]:
    ids, lengths = np.zeros((rows, size), dtype=np.int64), np.full(rows, cached, dtype=np.int64)
    features = None if feature_size is None else np.zeros((rows, size, feature_size), dtype=np.float32)
    return lambda: (chain_step(engine, ids, lengths, features), None)[1]
