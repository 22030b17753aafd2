"""Whether speculation pays on this machine, and at which draft length: acceptance of the pair against c(T)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from ...engines.cuda import probe_gpu
from ...engines.loader import LoadedEngines
from ...engines.manifest import Manifest
from ...runtime import GenerationResult, InputError, SamplingConfig, SpeculativeConfig
from ...runtime.acceptance import Relaxation
from ...runtime.condition import ClassCondition, class_prompts
from ...runtime.errors import BackendError
from ...runtime.rules import get_rule
from ..bench.machine import machine
from ..calibration.costs import Forecast, PassCosts, measure_costs
from ..calibration.prediction import predict
from ..calibration.trace import image_sequences, record_trace
from .measurement_cache import MeasurementCache

LONGEST = 8
IMAGES = 4
# Of measuring pass costs, at first use; large models are then measured with fewer repeats.
BUDGET_SECONDS = 3.0


class _Kept(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class StoredCosts(_Kept):
    """Seconds of target passes, of the draft's catch-up and of its chains, of 1, 2, ... tokens; and of the host in a
    round of `ar`; see `PassCosts`."""

    target: list[float]
    draft: list[float]
    plain_host: float
    chains: list[float] | None = None

    def with_host(self, host: float) -> PassCosts:
        chains = None if self.chains is None else np.array(self.chains)
        return PassCosts(np.array(self.target), np.array(self.draft), self.draft[0], host, self.plain_host, chains)


class Accepted(_Kept):
    """tokens[L - 1]: expected tokens per target pass when L are drafted. host: seconds of the host a round."""

    tokens: list[float]
    host: float


@dataclass(frozen=True)
class Outcome:
    """accepted: tokens per target pass of a run. cost: of a round, in plain steps on this machine. c: of its target
    pass alone."""

    accepted: float
    cost: float
    c: float

    @property
    def pays(self) -> bool:
        return self.accepted > self.cost


@dataclass(frozen=True)
class Machine:
    """A bundle on this machine in one setting, with what was measured of it."""

    manifest: Manifest
    engines: LoadedEngines
    sampling: SamplingConfig
    batch_size: int
    threads: int | None
    cache: MeasurementCache

    def choose(self, speculative: SpeculativeConfig) -> list[Forecast]:
        """Every draft length up to `LONGEST`, the fastest first.

        Raises: InputError for what has no length to choose: trees, rules without a schedule, greedy sampling, captions.
        """
        _check(speculative, self.sampling, self.engines)
        accepted = self.cache.get(
            Accepted,
            {**self._key, "rule": {**speculative.model_dump(), "draft_length": self._longest}},
            lambda: self._measure_acceptance(speculative),
        )
        costs = self.costs.with_host(accepted.host)
        found = [costs.forecast(length, tokens) for length, tokens in enumerate([1.0, *accepted.tokens])]
        return sorted(found, key=lambda forecast: -forecast.speed_up)

    def outcome(self, result: GenerationResult, draft_length: int) -> Outcome | None:
        """What a run that drafted chains of that length gained, its host time as measured there; None for chains longer
        than those that are measured."""
        if draft_length > self._longest:
            return None
        rounds = sum(len(stats.accepted_lengths) for stats in result.stats)
        host = sum(stats.seconds["host"] for stats in result.stats) / max(1, rounds)
        costs = self.costs.with_host(host * self.batch_size)
        round_ = costs.round(draft_length, result.accepted_length)
        return Outcome(result.accepted_length, round_ / costs.round(0, 1.0), float(costs.ratios[draft_length]))

    @cached_property
    def costs(self) -> StoredCosts:
        """Pass costs in the middle of a picture, measured at first use."""
        return self.cache.get(StoredCosts, self._key, self._measure_costs)

    @property
    def _longest(self) -> int:
        return min(LONGEST, self.engines.info.max_draft_length)

    @property
    def _key(self) -> dict[str, Any]:
        """What a measurement depends on. The build key covers weights and precision, `machine` the versions."""
        return {
            "build": self.manifest.build_key,
            "backend": self.engines.backend,
            "machine": machine(),
            "gpu": None if self.engines.backend == "ort-cpu" else _gpu(),
            "threads": self.threads or os.cpu_count(),
            "batch_size": self.batch_size,
            "sampling": self.sampling.model_dump(),
            "longest": self._longest,
        }

    def _measure_costs(self) -> StoredCosts:
        costs = measure_costs(self.engines, self.sampling, self.batch_size, self._longest, budget=BUDGET_SECONDS)
        return StoredCosts(
            target=costs.target.tolist(),
            draft=costs.draft_first.tolist(),
            plain_host=costs.plain_host,
            chains=None if costs.chains is None else costs.chains.tolist(),
        )

    def _measure_acceptance(self, speculative: SpeculativeConfig) -> Accepted:
        """Draw a few pictures of classes far apart."""
        info = self.engines.info
        assert isinstance(info.condition, ClassCondition)
        classes = np.linspace(0, len(info.class_names) - 1, IMAGES).astype(int).tolist()
        sequences = image_sequences(class_prompts(info.condition, classes), info.n_tokens, 0, self._longest)
        trace = record_trace(self.engines, sequences, self.sampling, self._longest, self.batch_size)
        rounds = sum(len(sequence.stats.accepted_lengths) for sequence in sequences)
        host = sum(sequence.stats.seconds["host"] for sequence in sequences) / rounds
        lengths = range(1, self._longest + 1)
        return Accepted(
            tokens=[predict(trace, schedule(speculative, length)).tokens for length in lengths],
            # Of a whole batch, like every other cost, also where fewer pictures were drawn.
            host=host * self.batch_size,
        )


def schedule(speculative: SpeculativeConfig, length: int) -> NDArray[np.float64]:
    """omega [L] of a rule at that draft length."""
    config = speculative.model_copy(update={"draft_length": length})
    tests = get_rule(config.rule).acceptances(config, None)
    return np.array([test.omega for test in tests if isinstance(test, Relaxation)])


def _check(speculative: SpeculativeConfig, sampling: SamplingConfig, engines: LoadedEngines) -> None:
    obstacles: Sequence[tuple[bool, str]] = (
        (speculative.tree is not None, "a tree has its own depth. Add --tree none"),
        (
            speculative.rule.startswith("lantern"),
            f"rule {speculative.rule!r} has no schedule to foresee. Give a number",
        ),
        (not get_rule(speculative.rule).drafts, f"rule {speculative.rule!r} drafts nothing. Leave it out"),
        (engines.draft is None, "this bundle has no draft. Build it again with --draft"),
        (sampling.greedy, "greedy acceptance has no schedule to foresee. Give a number"),
        (
            not isinstance(engines.info.condition, ClassCondition),
            "acceptance is measured on pictures of classes, and this model takes captions. Give a number",
        ),
    )
    for holds, words in obstacles:
        if holds:
            raise InputError(f"--draft-length auto: {words}.")


def _gpu() -> str | None:
    try:
        return probe_gpu().name
    except BackendError:
        return None
