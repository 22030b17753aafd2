"""What the host side of a round takes: everything but the engines, on recorded logits."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from ...runtime import Pipeline, SamplingConfig, SpeculativeConfig
from ...runtime.acceptance import Relaxation
from ...runtime.condition import ClassCondition, class_prompts
from ...runtime.drafting import StaticDrafter
from ...runtime.protocols import StepOutput
from ...runtime.round import SpeculativeDecoder
from ...runtime.sampling import image_generator
from ...runtime.schedules import cool_schedule
from ...runtime.sequence import Batch, ImageSequence
from ...runtime.spans import recording, span
from ...runtime.tree import Tree
from ..profiling.rounds import part_matrix, rounds
from .random_bundles import random_bundle
from .result import DEFAULT_BUNDLES, Bundles, Out, Table, publish
from .statistics import Estimate, ratio_of_medians

POSITIONS, HIDDEN, N_TOKENS = 16, 768, 256
# Spread of a trained LlamaGen's guided logits, and what a good draft is off by: about three of four tokens stand.
SPREAD, DRAFT_ERROR = 2.5, 0.7


@dataclass
class RecordedEngine:
    """An engine that returns logits made beforehand, by position; it counts the time that takes, which is not the
    host's."""

    logits: NDArray[np.float32]  # [branches, POSITIONS, V]
    ahead: int  # a draft's position j is about the token that the target's j + 1 is about
    cache_length: int = 0
    seconds: float = 0.0
    _outputs: dict[tuple[int, ...], StepOutput] = field(default_factory=dict)

    def allocate(self, rows: int, cache_length: int) -> None:
        self.cache_length = cache_length

    def step(
        self,
        input_ids: NDArray[np.int64],
        position_ids: NDArray[np.int64],
        mask: NDArray[np.bool_],
        write_indices: NDArray[np.int64],
        features: NDArray[np.float32] | None = None,
    ) -> StepOutput:
        start = time.perf_counter()
        with span("engine"):
            out = self._logits_at(position_ids)
        self.seconds += time.perf_counter() - start
        return out

    def _logits_at(self, position_ids: NDArray[np.int64]) -> StepOutput:
        if position_ids.shape not in self._outputs:
            widths = (self.logits.shape[2], HIDDEN)
            arrays = (np.zeros((*position_ids.shape, width), np.float32) for width in widths)
            self._outputs[position_ids.shape] = StepOutput(*arrays)
        out = self._outputs[position_ids.shape]
        for row, positions in enumerate((position_ids + self.ahead) % POSITIONS):
            np.take(self.logits[row % 2], positions, axis=0, out=out.logits[row])
        return out

    def copy_row(self, source: int, destination: int) -> None: ...

    def compact(self, row: int, sources: NDArray[np.int64], destination: int) -> None: ...


def recorded_pair(vocab: int, seed: int = 0) -> tuple[RecordedEngine, RecordedEngine]:
    """A target and a draft whose laws are peaked and near each other, as a trained pair's are."""
    rng = np.random.default_rng(seed)
    shape = (2, POSITIONS, vocab)
    target = (SPREAD * rng.standard_normal((1, *shape[1:])) + 0.3 * rng.standard_normal(shape)).astype(np.float32)
    draft = target + DRAFT_ERROR * rng.standard_normal((1, *shape[1:])).astype(np.float32)
    return RecordedEngine(target, 0), RecordedEngine(draft, 1)


@dataclass
class HostRun:
    """A decoder on recorded logits. seconds: of each round, without the engines."""

    decoder: SpeculativeDecoder
    engines: tuple[RecordedEngine, RecordedEngine]
    seconds: list[float] = field(default_factory=list)
    emitted: int = 0

    @classmethod
    def make(cls, vocab: int, draft_length: int, sampling: SamplingConfig) -> HostRun:
        target, draft = recorded_pair(vocab)
        drafter = StaticDrafter(draft, Tree.chain(draft_length), sampling)
        rules = [Relaxation(omega) for omega in cool_schedule(draft_length, 1.1, 0.7).tolist()]
        return cls(SpeculativeDecoder(target, drafter, sampling, rules), (target, draft))

    def picture(self, index: int) -> None:
        """All rounds of one picture."""
        depth, vocab = self.decoder.drafter.depth, self.engines[0].logits.shape[2]
        condition = ClassCondition(names=("any",), id_offset=vocab, null_class=1)
        sequence = ImageSequence(class_prompts(condition, [0])[0], N_TOKENS, image_generator(0, index), depth)
        batch = Batch([sequence], 2)
        for engine in self.engines:
            engine.allocate(2, 1 + N_TOKENS + depth)
        self.decoder.prefill(batch)
        while sequence.remaining > depth:
            before = sum(engine.seconds for engine in self.engines)
            start = time.perf_counter()
            with span("round", 1):
                self.decoder.round(batch)
            in_engines = sum(engine.seconds for engine in self.engines) - before
            self.seconds.append(time.perf_counter() - start - in_engines)
        self.emitted += sequence.emitted


def host(
    vocab: Annotated[list[int] | None, typer.Option(help="V; may be repeated.")] = None,
    draft_length: Annotated[int, typer.Option(min=1)] = 5,
    top_k: Annotated[int, typer.Option(min=0)] = 1000,
    pictures: Annotated[int, typer.Option(min=1, help="Per vocabulary, taken in turns.")] = 12,
    against: Annotated[
        str | None, typer.Option(help="Released size whose round it is compared with; `none` skips that.")
    ] = "c2i-B",
    bundles: Bundles = DEFAULT_BUNDLES,
    out: Out = None,
) -> None:
    """Time the host's part of speculative rounds on one picture with guidance; one thread, float32 logits."""
    sampling = SamplingConfig(cfg_scale=4.0, top_k=top_k)
    runs = {size: HostRun.make(size, draft_length, sampling) for size in vocab or [16384, 65536]}
    for run in runs.values():
        run.picture(0)
        run.seconds.clear()
        run.emitted = 0
    for index in range(pictures):
        for run in runs.values():
            run.picture(index)
    whole = None if against in (None, "none") else _real_rounds(against, draft_length, sampling, bundles)
    first = next(iter(runs))
    rows, figures = [], {}
    for size, run in runs.items():
        ratios = [ratio_of_medians(run.seconds, runs[first].seconds)]
        if whole is not None:
            ratios.append(ratio_of_medians(run.seconds, whole))
        accepted = run.emitted / (len(run.seconds) + pictures)
        rows.append(_row(size, run, accepted, ratios))
        figures[str(size)] = _figures(run, accepted, ratios)
    columns = ["V", "µs per round", "p90", "accepted length", f"over V = {first}"]
    columns += [f"of a round of {against}"] if whole is not None else []
    setting = f"L = {draft_length}, top-k {top_k}, CFG, medians of {pictures} pictures' rounds"
    publish("Host side of a round", setting, Table(columns, rows), figures, out)


def _row(size: int, run: HostRun, accepted: float, ratios: Sequence[Estimate]) -> list[str]:
    p50, p90 = np.percentile(run.seconds, [50, 90]) * 1e6
    shares = [f"{100 * ratio.value:.2f} [{100 * ratio.low:.2f}, {100 * ratio.high:.2f}] %" for ratio in ratios[1:]]
    return [str(size), f"{p50:.0f}", f"{p90:.0f}", f"{accepted:.2f}", f"{ratios[0]}x", *shares]


def _figures(run: HostRun, accepted: float, ratios: Sequence[Estimate]) -> dict[str, Any]:
    """With the median microseconds of each part, from one more picture that is recorded."""
    microseconds = 1e6 * float(np.median(run.seconds))
    with recording() as recorder:
        run.picture(0)
    parts = {name: column for name, column in part_matrix(rounds(recorder.spans)).items() if "engine" not in name}
    return {
        "microseconds": microseconds,
        "accepted_length": accepted,
        "ratios": [asdict(ratio) for ratio in ratios],
        "parts_microseconds": {name: round(1e6 * float(np.median(column)), 1) for name, column in parts.items()},
    }


def _real_rounds(size: str, draft_length: int, sampling: SamplingConfig, bundles: Path) -> list[float]:
    """Seconds of the rounds of one picture of random weights."""
    bundle = random_bundle(size, bundles)
    config = SpeculativeConfig(rule="cool", draft_length=draft_length)
    with Pipeline.load(bundle.path, "ort-cpu", verify=False) as pipeline, recording() as recorder:
        pipeline.generate([0], speculative=config, **sampling.model_dump())
    return [round_.nanoseconds / 1e9 for round_ in rounds(recorder.spans)]
