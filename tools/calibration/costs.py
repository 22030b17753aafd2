"""What passes cost on this machine: c(T), the time of T tokens over the time of one; and what the host adds."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ...runtime.config import SamplingConfig
from ...runtime.protocols import CachedTransformer, ChainDraft, ChainInput, Engines
from ...runtime.stepping import chain_step
from .plain_host import plain_host

REPEATS = 25
LEAST_REPEATS = 7
# Of a chain: its graph is slow only at the first call, which opens it.
LEAST_CHAINS = 2
# A chain's catch-up: about what rounds emit. It costs little more or less for a token more or less.
CAUGHT_UP = 3

Key = TypeVar("Key")


@dataclass(frozen=True)
class Forecast:
    """A draft length, 0 for plain autoregression, with its expected tokens per pass and speed over plain."""

    draft_length: int
    tokens: float
    speed_up: float


@dataclass(frozen=True)
class PassCosts:
    """Median seconds. target[T - 1]: a target pass of T tokens. draft_first[T - 1]: the draft's catch-up over T tokens.
    draft_step: one more drafted token. host: everything else of a round that drafts; plain_host: of one of plain
    autoregression. NaN for the draft where there is none. chains[L - 1]: the draft's whole chain of L in one call; None
    where it drafts step by step. floor[T - 1]: what was timed beside the target's pass, if anything."""

    target: NDArray[np.float64]
    draft_first: NDArray[np.float64]
    draft_step: float
    host: float
    plain_host: float
    chains: NDArray[np.float64] | None = None
    floor: NDArray[np.float64] | None = None

    def round(self, draft_length: int, tokens: float) -> float:
        """Seconds of a round that drafts L tokens and emits `tokens` on average; L = 0 is plain autoregression."""
        if draft_length == 0:
            return float(self.target[0]) + self.plain_host
        return float(self.target[draft_length]) + self.drafting(draft_length, tokens) + self.host

    def drafting(self, draft_length: int, tokens: float) -> float:
        """Seconds in which the draft makes L tokens after a round that emitted `tokens` on average."""
        if self.chains is not None and draft_length <= len(self.chains):
            return float(self.chains[draft_length - 1])
        catch_up = float(np.interp(tokens, np.arange(1, len(self.draft_first) + 1), self.draft_first))
        return catch_up + (draft_length - 1) * self.draft_step

    def forecast(self, draft_length: int, tokens: float) -> Forecast:
        """What L drafted tokens a round are worth that emits `tokens` on average."""
        return Forecast(draft_length, tokens, tokens * self.round(0, 1.0) / self.round(draft_length, tokens))

    @property
    def ratios(self) -> NDArray[np.float64]:
        """c(T) of the target, T = 1, 2, ..."""
        return self.target / self.target[0]


def measure_costs(
    engines: Engines,
    sampling: SamplingConfig,
    batch_size: int,
    draft_length: int,
    host: float = 0.0,
    budget: float = math.inf,
    floor: Callable[[int], None] | None = None,
) -> PassCosts:
    """Time passes of 1 to L + 1 tokens half-way through `batch_size` pictures, interleaved, medians.

    Caches are as long as in use, since some attention kernels walk them whole. Args: host: seconds of a round that
    drafts, as a run had it. budget: seconds after which no further repeat begins, once there are a few. floor: run for
    the same numbers of tokens, right after the target's passes.
    """
    info = engines.info
    rows = batch_size * (2 if sampling.guided else 1)
    cached, length = info.prefix_length + info.n_tokens // 2, info.prefix_length + info.n_tokens + draft_length
    sizes = range(1, draft_length + 2)
    begin = time.perf_counter()
    timers: dict[tuple[str, int], Callable[[], None]] = {}
    engines.target.allocate(rows, length)
    for size in sizes:
        timers["target", size] = _timer(engines.target, rows, cached, size, None)
        if floor is not None:
            timers["floor", size] = partial(floor, size)
    if engines.draft is not None:
        engines.draft.allocate(rows, length)
        timers |= {("draft", size): _timer(engines.draft, rows, cached, size, info.hidden_size) for size in sizes}
    medians = _medians(timers, REPEATS, LEAST_REPEATS, 2, begin + budget)
    target, draft, beside = (
        np.array([medians.get((name, size), np.nan) for size in sizes]) for name in ("target", "draft", "floor")
    )
    chains = None
    # Top-p is drafted step by step, see `runtime.drafting.static_drafter`.
    if isinstance(engines.draft, ChainDraft) and engines.draft.samples(sampling):
        verify = {size: timers["target", size] for size in sizes}
        chains = _time_chains(engines.draft, verify, info.hidden_size, rows, cached, sampling, begin + budget)
    plain = plain_host(engines, sampling, batch_size, begin + budget)
    return PassCosts(target, draft, float(draft[0]), host, plain, chains, None if floor is None else beside)


def _medians(
    timers: Mapping[Key, Callable[[], object]],
    repeats: int,
    least: int,
    first: int,
    end: float,
    before: Callable[[], object] = lambda: None,
) -> dict[Key, float]:
    """Median seconds of each, interleaved, without the `first` repeats; none begins after `end` but the `least`.

    before: run ahead of each, and not timed.
    """
    seconds: dict[Key, list[float]] = {key: [] for key in timers}
    for repeat in range(repeats):
        if repeat >= least and time.perf_counter() > end:
            break
        for key, run in timers.items():
            before()
            start = time.perf_counter()
            run()
            seconds[key].append(time.perf_counter() - start)
    return {key: float(np.median(values[first:])) for key, values in seconds.items()}


def _time_chains(
    draft: ChainDraft,
    verify: Mapping[int, Callable[[], None]],
    hidden_size: int,
    rows: int,
    cached: int,
    sampling: SamplingConfig,
    end: float,
) -> NDArray[np.float64]:
    """Median seconds of chains of 1, 2, ... tokens. Three of them are timed, since each has a graph of its own to open,
    and each further token costs the same; one after the other, since a draft keeps only one of the graphs open. As in a
    round each comes after the target's pass, which leaves none of the draft in the processor's caches: alone a small
    draft is twice as fast. verify: the passes by their tokens."""
    images = rows // (2 if sampling.guided else 1)
    ids, features = np.zeros((rows, CAUGHT_UP), np.int64), np.zeros((rows, CAUGHT_UP, hidden_size), np.float32)
    lengths, counts = np.full(rows, cached - CAUGHT_UP), np.full(rows, CAUGHT_UP)
    every = np.arange(1, min(len(verify) - 1, draft.longest_chain) + 1)
    medians: dict[int, float] = {}
    for length in sorted({1, (1 + len(every)) // 2, len(every)}):
        uniforms, guided = np.full((length, images), 0.5), np.full((length, images), sampling.guided)
        chain = ChainInput(ids, features, lengths, counts, uniforms, guided, sampling)
        run = {length: partial(draft.chain, chain)}
        medians |= _medians(run, LEAST_REPEATS + 2, LEAST_CHAINS, 1, end, before=verify[length + 1])
    return np.asarray(np.interp(every, list(medians), list(medians.values())))


def _timer(
    engine: CachedTransformer, rows: int, cached: int, size: int, feature_size: int | None
) -> Callable[[], None]:
    ids, lengths = np.zeros((rows, size), dtype=np.int64), np.full(rows, cached, dtype=np.int64)
    features = None if feature_size is None else np.zeros((rows, size, feature_size), dtype=np.float32)
    return lambda: (chain_step(engine, ids, lengths, features), None)[1]
