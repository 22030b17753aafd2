"""What the report's runs have yielded, by setting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...runtime import SpeculativeConfig
from ..bench.contenders import Sample, Workload
from ..bench.statistics import RESAMPLES, Estimate, ratio_of_sums, resampled_images
from .grid import label
from .recorded import Recorded


@dataclass(frozen=True)
class Drawn:
    """A setting that was run. figures: as in `table.TITLES`. distances: Fréchet distance to real pictures, followed by
    those of resampled images; empty in runs that are judged by the clock alone."""

    config: SpeculativeConfig
    sample: Sample
    figures: dict[str, Estimate]
    distances: NDArray[np.float64]

    @property
    def name(self) -> str:
        return label(self.config)

    @property
    def length(self) -> Estimate:
        return self.figures["accepted_length"]

    @property
    def drift(self) -> Estimate:
        return self.figures["drift_per_token"]

    @property
    def speed(self) -> Estimate:
        return self.figures["speed_up"]

    @property
    def accuracy(self) -> Estimate:
        return self.figures["class_accuracy"]

    @property
    def frechet(self) -> Estimate:
        return Estimate.of(self.distances[0], self.distances[1:], centred=True)

    def farther_than(self, other: Drawn) -> Estimate:
        """Difference of Fréchet distances on the same images."""
        difference = self.distances - other.distances
        return Estimate.of(difference[0], difference[1:], centred=True)


def longer(a: Drawn, b: Drawn) -> Estimate:
    """Difference of accepted lengths on the same images."""
    lengths = [np.array([sum(s.tokens) / sum(s.passes), *_resampled_length(s)]) for s in (a.sample, b.sample)]
    difference = lengths[0] - lengths[1]
    return Estimate.of(difference[0], difference[1:])


def faster(a: Drawn, b: Drawn) -> Estimate:
    """How many times as fast a is as b, on the same images."""
    return ratio_of_sums(b.sample.seconds, a.sample.seconds)


def _resampled_length(sample: Sample) -> NDArray[np.float64]:
    picks = resampled_images(len(sample.tokens), RESAMPLES)
    tokens, passes = np.array(sample.tokens), np.array(sample.passes)
    return np.asarray(tokens[picks].sum(axis=1) / passes[picks].sum(axis=1))


class Run:
    """What was run, by setting; `ar` is among it."""

    def __init__(self, drawn: Sequence[Drawn], workload: Workload) -> None:
        self.workload = workload
        self._by_name = {item.name: item for item in drawn}

    def __getitem__(self, config: SpeculativeConfig) -> Drawn:
        return self._by_name[label(config)]


@dataclass(frozen=True)
class Findings:
    """Everything the page is written from."""

    recorded: Recorded
    quality: Run
    speed: Run
    setting: dict[str, str]
