"""What can be computed from recorded lossless rounds alone: which deltas to compare, and drifts to the last digit."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...engines.loader import LoadedEngines, load_engines
from ...runtime import InputError, SamplingConfig
from ...runtime.condition import ClassCondition, class_prompts
from ...runtime.files import replacing_file
from ...runtime.lantern import NeighborAcceptance, NeighborTable
from ...runtime.law import Law
from ..bench.statistics import RESAMPLES, Estimate, Resampled, ratio_of_sums, resampled_images
from ..calibration.prediction import expected_rounds, predict
from ..calibration.trace import Round, image_sequences, record_rounds, trace_of
from .ablations import DRAFT_LENGTH, DRAWN_KS, GAINS, LANTERN_KS, LANTERN_LAMBDA
from .emitted import emitted_law, total_variation
from .equal_length import OMEGA, SCHEDULES, delta_for
from .folder import require_same

# Positions of each image whose emitted law is written out; each takes some 10 ms.
POSITIONS = 8


@dataclass(frozen=True)
class Recorded:
    """deltas: by schedule, those that are predicted to accept `GAINS` times what `lossless` does; at each, expected
    tokens and drift of an image's rounds, summed: [GAINS][images]. rounds: how many there are, [images].

    optimal, native: by k, the sum over an image's positions of the total variation of what LANTERN++ emits from the
    target's law, [images] each. positions: how many there are, [images].
    """

    deltas: dict[str, list[float]]
    tokens: dict[str, list[list[float]]]
    drifts: dict[str, list[list[float]]]
    rounds: list[float]
    optimal: dict[int, list[float]]
    native: dict[int, list[float]]
    positions: list[int]

    @property
    def drawn_ks(self) -> list[int]:
        """Of `DRAWN_KS` those that the bundle has neighbours for."""
        return [k for k in DRAWN_KS if k in self.optimal]

    def length(self, gain: int) -> float:
        """Expected tokens a round, the mean of the schedules at one of the `GAINS`."""
        return float(np.mean([sum(own[gain]) / sum(self.rounds) for own in self.tokens.values()]))

    def schedule_drift(self, name: str, gain: int) -> Resampled:
        """Expected drift per token of a schedule at one of the `GAINS`, and on resampled images."""
        drift, tokens = np.array(self.drifts[name][gain]), np.array(self.tokens[name][gain])
        picks = resampled_images(len(drift), RESAMPLES)
        return drift.sum() / tokens.sum(), drift[picks].sum(axis=1) / tokens[picks].sum(axis=1)

    def widening(self) -> Estimate:
        """How much more the optimal residual saves at the largest k than at the smallest."""
        gaps = {k: np.subtract(self.native[k], self.optimal[k]) for k in (min(self.native), max(self.native))}
        return ratio_of_sums(gaps[max(gaps)] - gaps[min(gaps)], self.positions)

    def drift(self, k: int, resampling: str) -> Estimate:
        """Total variation at a position."""
        return ratio_of_sums(getattr(self, resampling)[k], self.positions)

    def gain(self, k: int) -> Estimate:
        """What the optimal residual saves of it."""
        return ratio_of_sums(np.subtract(self.native[k], self.optimal[k]), self.positions)


def record(
    bundle: Path, file: Path, images: int, batch_size: int, seed: int, sampling: dict[str, Any], threads: int | None
) -> Recorded:
    """Record and compute, or read what an earlier call left in the file: deltas must not move when a run goes on.

    Raises: InputError for a bundle without classes, draft or neighbour table, or a file made with other settings.
    """
    with closing(load_engines(bundle, "auto", threads=threads)) as engines:
        info = engines.info
        if engines.draft is None or engines.neighbors is None or not isinstance(info.condition, ClassCondition):
            raise InputError(
                f"{bundle}: the report needs a class-conditional bundle with a draft and a neighbour table."
            )
        used = SamplingConfig(**{**info.sampling.model_dump(), **sampling})
        settings = {"images": images, "seed": seed, "batch_size": batch_size, "sampling": used.model_dump()}
        if file.is_file():
            content = json.loads(file.read_text(encoding="utf-8"))
            require_same(file, content.pop("settings"), settings)
            for name in ("optimal", "native"):
                content[name] = {int(k): values for k, values in content[name].items()}
            return Recorded(**content)
        found = _compute(list(_rounds(engines, images, batch_size, seed, used)), np.asarray(engines.neighbors), images)
    with replacing_file(file) as temporary:
        temporary.write_text(json.dumps({"settings": settings, **asdict(found)}), encoding="utf-8")
    return found


def _rounds(engines: LoadedEngines, images: int, batch_size: int, seed: int, sampling: SamplingConfig) -> list[Round]:
    info = engines.info
    assert isinstance(info.condition, ClassCondition)
    classes = len(info.class_names)
    prompts = class_prompts(info.condition, [i * classes // images % classes for i in range(images)])
    sequences = image_sequences(prompts, info.n_tokens, seed, DRAFT_LENGTH)
    return list(record_rounds(engines, sequences, sampling, DRAFT_LENGTH, batch_size))


def _compute(rounds: list[Round], table: NeighborTable, images: int) -> Recorded:
    trace, image = trace_of(rounds), np.array([recorded.image for recorded in rounds])
    lossless = predict(trace, np.ones(DRAFT_LENGTH)).tokens
    deltas = {name: [delta_for(trace, name, gain * lossless) for gain in GAINS] for name in SCHEDULES}
    expected = {
        name: [expected_rounds(trace, OMEGA[name](DRAFT_LENGTH, delta)) for delta in own]
        for name, own in deltas.items()
    }

    def by_image(values: NDArray[np.float64]) -> list[float]:
        sums: list[float] = np.bincount(image, values, minlength=images).tolist()
        return sums

    pairs = [_first_positions([rounds[i] for i in np.flatnonzero(image == n)]) for n in range(images)]
    return Recorded(
        deltas=deltas,
        tokens={name: [by_image(tokens) for tokens, _ in own] for name, own in expected.items()},
        drifts={name: [by_image(drift) for _, drift in own] for name, own in expected.items()},
        rounds=by_image(np.ones(len(rounds))),
        optimal=_lantern_drifts(pairs, table, native=False),
        native=_lantern_drifts(pairs, table, native=True),
        positions=[len(own) for own in pairs],
    )


def _lantern_drifts(pairs: list[list[tuple[Law, Law]]], table: NeighborTable, native: bool) -> dict[int, list[float]]:
    """By k, the sum over each image's positions."""
    rules = {
        k: NeighborAcceptance(table, k, excess=LANTERN_LAMBDA - 1, native=native)
        for k in LANTERN_KS
        if k <= table.shape[1]
    }
    return {k: [sum(_drift(rule, p, q) for p, q in own) for own in pairs] for k, rule in rules.items()}


def _first_positions(rounds: list[Round]) -> list[tuple[Law, Law]]:
    """p and q where rounds begin, evenly over the image."""
    if not rounds:
        return []
    chosen = np.unique(np.linspace(0, len(rounds) - 1, POSITIONS).astype(int))
    return [(Law.of_dense(rounds[i].p[0]), rounds[i].proposal.q[0]) for i in chosen]


def _drift(rule: NeighborAcceptance, p: Law, q: Law) -> float:
    drift = rule.measure(p, q)[1]
    return total_variation(emitted_law(rule, p, q), p) if np.isnan(drift) else drift
