"""What passes cost on this machine: c(T), the time of T tokens over the time of one."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...runtime.config import SamplingConfig
from ...runtime.protocols import CachedTransformer, ChainDraft, ChainInput, Engines
from ...runtime.stepping import chain_step

REPEATS = 25
LEAST_REPEATS = 7
# A chain's catch-up: about what rounds emit. It costs little more or less for a token more or less.
CAUGHT_UP = 3


@dataclass(frozen=True)
class PassCosts:
    """Median seconds. target[T - 1]: a target pass of T tokens. draft_first[T - 1]: the draft's catch-up over T tokens.
    draft_step: one more drafted token. host: everything else of a round. NaN for the draft where there is none.
    chains[L - 1]: the draft's whole chain of L in one call; None where it drafts step by step."""

    target: NDArray[np.float64]
    draft_first: NDArray[np.float64]
    draft_step: float
    host: float
    chains: NDArray[np.float64] | None = None

    def round(self, draft_length: int, tokens: float) -> float:
        """Seconds of a round that drafts L tokens and emits `tokens` on average; L = 0 is plain autoregression."""
        if draft_length == 0:
            return float(self.target[0]) + self.host
        return float(self.target[draft_length]) + self.drafting(draft_length, tokens) + self.host

    def drafting(self, draft_length: int, tokens: float) -> float:
        """Seconds in which the draft makes L tokens after a round that emitted `tokens` on average."""
        if self.chains is not None and draft_length <= len(self.chains):
            return float(self.chains[draft_length - 1])
        catch_up = float(np.interp(tokens, np.arange(1, len(self.draft_first) + 1), self.draft_first))
        return catch_up + (draft_length - 1) * self.draft_step

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
    sampling: SamplingConfig | None = None,
) -> PassCosts:
    """Time passes of 1 to L + 1 tokens on `rows` rows whose caches hold `cached` positions, interleaved, medians.

    Args: cache_length: of the caches, which some attention kernels walk whole; None: just what the passes need.
    budget: seconds after which no further repeat begins, once there are a few. sampling: of the chains that the draft
    can make in one call; None: it is timed step by step alone.
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
    target = np.array([medians["target", size] for size in lengths])
    chains = None
    # Top-p is drafted step by step, see `runtime.drafting.static_drafter`.
    if sampling is not None and sampling.top_p == 1 and isinstance(engines.draft, ChainDraft):
        chains = _time_chains(engines.draft, hidden_size, rows, cached, draft_length, sampling)
    return PassCosts(target, draft, float(draft[0]), host, chains)


def _time_chains(
    draft: ChainDraft, hidden_size: int, rows: int, cached: int, longest: int, sampling: SamplingConfig
) -> NDArray[np.float64]:
    """Median seconds of chains of 1, 2, ... tokens. Three of them are timed, since each has a graph of its own to open,
    and each further token costs the same."""
    images = rows // (2 if sampling.guided else 1)
    ids, features = np.zeros((rows, CAUGHT_UP), np.int64), np.zeros((rows, CAUGHT_UP, hidden_size), np.float32)
    lengths, counts = np.full(rows, cached - CAUGHT_UP), np.full(rows, CAUGHT_UP)
    every = np.arange(1, min(longest, draft.longest_chain) + 1)
    timed, medians = sorted({1, (1 + len(every)) // 2, len(every)}), []
    for length in timed:
        uniforms, guided = np.full((length, images), 0.5), np.full((length, images), sampling.guided)
        chain = ChainInput(ids, features, lengths, counts, uniforms, guided, sampling)
        seconds = []
        for _ in range(LEAST_REPEATS + 2):
            start = time.perf_counter()
            draft.chain(chain)
            seconds.append(time.perf_counter() - start)
        medians.append(float(np.median(seconds[2:])))
    return np.asarray(np.interp(every, timed, medians))


def _timer(
    engine: CachedTransformer, rows: int, cached: int, size: int, feature_size: int | None
) -> Callable[[], None]:
    ids, lengths = np.zeros((rows, size), dtype=np.int64), np.full(rows, cached, dtype=np.int64)
    features = None if feature_size is None else np.zeros((rows, size, feature_size), dtype=np.float32)
    return lambda: (chain_step(engine, ids, lengths, features), None)[1]
