"""Settings side by side: every picture is made by all of them in turn, in rotating order, from the same seed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ...runtime import Cancelled, GenerationResult, Pipeline, SpeculativeConfig
from .statistics import Estimate, ratio_of_sums

WARM_UP_ROUNDS = 4
# Looks at a cancel event until the first round is over: before prefill, before that round.
ONE_ROUND = 2


@dataclass
class Sample:
    """What was measured of some pictures, one number a picture.

    drift: summed total variation, NaN where the rule can't tell. seconds: without decoding pixels; a pass that pictures
    share is split evenly among them.
    """

    tokens: list[int] = field(default_factory=list)
    passes: list[int] = field(default_factory=list)
    drift: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, result: GenerationResult) -> Sample:
        """The pictures of one call."""
        return cls(
            [stats.n_tokens for stats in result.stats],
            [stats.target_passes for stats in result.stats],
            [stats.drift for stats in result.stats],
            [sum(stats.seconds.values()) - stats.seconds["decode"] for stats in result.stats],
        )

    def extend(self, other: Sample) -> None:
        """Add pictures."""
        for name, values in vars(self).items():
            values += getattr(other, name)

    def figures(self, baseline: Sample) -> dict[str, Estimate]:
        """accepted length, drift per token, speed-up over the baseline, target passes a picture, with intervals."""
        return {
            "accepted_length": ratio_of_sums(self.tokens, self.passes),
            "drift_per_token": ratio_of_sums(self.drift, self.tokens),
            "speed_up": ratio_of_sums(baseline.seconds, self.seconds),
            "target_passes": ratio_of_sums(self.passes, [1] * len(self.passes)),
        }


@dataclass
class Contender:
    """One row of a table; the first row is the baseline."""

    name: str
    config: SpeculativeConfig
    sample: Sample = field(default_factory=Sample)


@dataclass(frozen=True)
class Workload:
    """What every contender paints. images: how many pictures, classes (or the captions) in turn. batch_size: pictures
    that share passes. sampling: arguments of `Pipeline.generate`."""

    images: int
    batch_size: int = 1
    seed: int = 0
    sampling: Mapping[str, Any] = field(default_factory=dict)
    captions: tuple[str, ...] = ()

    @property
    def turns(self) -> range:
        """The first picture of every batch."""
        return range(0, self.images, self.batch_size)

    def size(self, first: int) -> int:
        """Pictures of the batch that starts at `first`; 0 or less when there is none."""
        return min(self.batch_size, self.images - first)

    def prompt(self, pipeline: Pipeline, index: int) -> int | str:
        """Class id or caption of a picture."""
        if self.captions:
            return self.captions[index % len(self.captions)]
        return index % len(pipeline.info.class_names)

    def warm_up(self, pipeline: Pipeline, rows: Sequence[Contender]) -> None:
        """A few rounds of every row: allocation and binding."""
        for row in rows:
            with suppress(Cancelled):
                self._generate(pipeline, row.config, 0, cancel=_Rounds(WARM_UP_ROUNDS))

    def turn(
        self, pipeline: Pipeline, rows: Sequence[Contender], first: int
    ) -> Iterator[tuple[Contender, GenerationResult]]:
        """The batch that starts at picture `first`, by every row; who begins rotates from batch to batch.

        A round comes before each that nobody counts: a draft keeps a session for chains of one length, and opening
        another one is no part of any picture.
        """
        begin = first // self.batch_size % len(rows)
        for row in [*rows[begin:], *rows[:begin]]:
            with suppress(Cancelled):
                self._generate(pipeline, row.config, first, cancel=_Rounds(ONE_ROUND))
            yield row, self._generate(pipeline, row.config, first)

    def _generate(self, pipeline: Pipeline, config: SpeculativeConfig, first: int, **options: Any) -> GenerationResult:
        prompts: dict[str, Any] = {
            "captions" if self.captions else "class_ids": [
                self.prompt(pipeline, i) for i in range(first, first + self.size(first))
            ]
        }
        return pipeline.generate(
            **prompts,
            seed=self.seed,
            first_index=first,
            speculative=config,
            batch_size=self.batch_size,
            **self.sampling,
            **options,
        )


@dataclass
class _Rounds:
    """A cancel event that sets itself after a number of looks at it."""

    left: int

    def is_set(self) -> bool:
        self.left -= 1
        return self.left < 0
