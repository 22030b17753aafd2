"""Run a bundle under observation."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from threading import Event
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...engines.bundle import Bundle
from ...engines.loader import LoadedEngines
from ...engines.manifest import Manifest
from ...engines.ort import OrtTransformer
from ...runtime import GenerationResult, Pipeline, Progress, SamplingConfig, SpeculativeConfig
from ...runtime.condition import ClassCondition
from ...runtime.errors import Cancelled
from ...runtime.rules import get_rule
from ...runtime.spans import Span, recording
from ...runtime.stats import number_or_none
from ..bench.machine import last_level_cache, machine
from ..calibration.costs import PassCosts, measure_costs
from .bandwidth import stream_bandwidth
from .gemm_floor import GemmFloor
from .memory import bytes_read, cache_bytes, resident, weight_bytes
from .nvtx_ranges import nvtx_ranges
from .report import Acceptance, Bandwidth, Costs, Memory, Part, Report, Setup, Speed
from .rounds import Round, part_matrix, rounds
from .verdict import verdict

WARM_UP_ROUNDS = 3
# Of plain autoregression: a whole picture, since later passes see more and cost more, or what the seconds hold, but so
# many rounds at least.
PLAIN_ROUNDS, PLAIN_SECONDS = 48, 15.0
# Passes are timed up to this many tokens beyond the pending and the drafted ones.
MORE_TOKENS = 2


@dataclass(frozen=True)
class Subject:
    """What is profiled: an open bundle with its engines, and the settings of the run. prompts: the arguments of
    `Pipeline.generate` that say what to draw. base_memory: bytes resident before the bundle was opened."""

    bundle: Bundle
    engines: LoadedEngines
    prompts: dict[str, Any]
    sampling: SamplingConfig
    speculative: SpeculativeConfig
    images_per_prompt: int
    batch_size: int
    seed: int
    threads: int | None
    base_memory: int

    def generate(self, speculative: SpeculativeConfig, **options: Any) -> GenerationResult:
        return Pipeline(self.engines).generate(
            **self.prompts,
            images_per_prompt=self.images_per_prompt,
            seed=self.seed,
            batch_size=self.batch_size,
            speculative=speculative,
            **self.sampling.model_dump(),
            **options,
        )

    @property
    def drafts(self) -> bool:
        return get_rule(self.speculative.rule).drafts

    @property
    def on_cpu(self) -> bool:
        return self.engines.backend == "ort-cpu"

    @property
    def tokens_per_pass(self) -> int:
        """Of a whole round: the pending token and what is drafted."""
        if not self.drafts:
            return 1
        tree = self.speculative.static_tree
        return tree.size if tree is not None else self.speculative.depth + 1


def profile(subject: Subject, stage: Callable[[str], None] = lambda name: None) -> tuple[Report, list[Span]]:
    """The report and the spans of the run it is about. Args: stage: told what is being measured.

    Order matters: the run comes first, so that peak memory is the run's and not the measurements'.
    """
    stage("warm-up")
    start = time.perf_counter()
    _first_rounds(subject, subject.speculative, WARM_UP_ROUNDS, seconds=0)
    warm_up = time.perf_counter() - start
    stage("run")
    with recording(nvtx_ranges(subject.engines.backend)) as recorder:
        result = subject.generate(subject.speculative)
    peak = resident()[1]
    found = rounds(recorder.spans)
    stage("plain autoregression")
    plain = found
    if subject.drafts:
        plain = _first_rounds(subject, SpeculativeConfig(rule="ar"), PLAIN_ROUNDS, PLAIN_SECONDS)
    stage("pass costs")
    costs = _costs(subject)
    stage("memory bandwidth")
    bandwidth = _bandwidth(subject, costs, found)
    parts, part_ms = _parts(found)
    report = Report(
        setup=_setup(subject, len(result.images)),
        speed=_speed(result, warm_up, found, plain),
        parts=parts,
        part_ms=part_ms,
        acceptance=_acceptance(result),
        costs=_as_milliseconds(costs),
        bandwidth=bandwidth,
        memory=_memory(subject, peak, min(subject.batch_size, len(result.images))),
    )
    return report.model_copy(update={"verdict": verdict(report)}), recorder.spans


def _first_rounds(subject: Subject, speculative: SpeculativeConfig, least: int, seconds: float) -> list[Round]:
    """Rounds until a picture is done or the time is up, `least` of them at least; without the first, which binds
    buffers."""
    enough, seen = Event(), 0

    def watch(snapshot: Progress) -> None:
        nonlocal seen
        seen += 1
        if seen > least and (snapshot.images_done or snapshot.seconds > seconds):
            enough.set()

    with recording() as recorder, suppress(Cancelled):
        subject.generate(speculative, progress=watch, cancel=enough)
    return rounds(recorder.spans)[1:]


def _costs(subject: Subject) -> PassCosts:
    """Passes of target and draft, and where that can be, the target's products alone beside them."""
    rows = subject.batch_size * _branches(subject)
    longest = min(subject.tokens_per_pass - 1 + MORE_TOKENS, subject.engines.info.max_draft_length)
    with ExitStack() as stack:
        floor = None
        if subject.on_cpu:
            with suppress(ImportError):  # onnx is not installed where bundles are only run
                floor = partial(stack.enter_context(GemmFloor(subject.bundle, subject.threads)).run, rows)
        return measure_costs(subject.engines, subject.sampling, subject.batch_size, longest, floor=floor)


def _bandwidth(subject: Subject, costs: PassCosts, found: Sequence[Round]) -> Bandwidth | None:
    """Of the host's memory: None where weights lie elsewhere."""
    if not subject.on_cpu:
        return None
    target, condition = subject.bundle.manifest.target, subject.engines.info.condition
    classes = condition.null_class + 1 if isinstance(condition, ClassCondition) else 0
    size = bytes_read(target, target.vocab_size + classes)
    in_engine = [round_.parts.get("target/engine", 0) or round_.nanoseconds for round_ in found]
    cache = last_level_cache()
    return Bandwidth(
        weight_bytes=size,
        stream=stream_bandwidth(_threads(subject)),
        plain=size / float(costs.target[0]),
        run=size / float(np.median(in_engine) / 1e9),
        cached=cache is not None and size < cache,
    )


def _parts(found: Sequence[Round]) -> tuple[list[Part], dict[str, list[float]]]:
    matrix = part_matrix(found)
    total = sum(column.sum() for column in matrix.values())
    parts = []
    for name, column in matrix.items():
        p50, p90, p99 = 1000 * np.percentile(column, [50, 90, 99])
        parts.append(Part(name=name, share=float(column.sum() / total), p50=p50, p90=p90, p99=p99))
    return parts, {name: _milliseconds(column) for name, column in matrix.items()}


def _speed(result: GenerationResult, warm_up: float, found: Sequence[Round], plain: Sequence[Round]) -> Speed:
    return Speed(
        seconds=result.seconds,
        warm_up_seconds=warm_up,
        tokens_per_second=result.tokens_per_second,
        images_per_minute=result.images_per_minute,
        image_seconds=[sum(stats.seconds.values()) for stats in result.stats],
        round_ms=_milliseconds([round_.nanoseconds / 1e9 for round_ in found]),
        plain_ms=_milliseconds([round_.nanoseconds / 1e9 for round_ in plain]),
        images_per_pass=result.images_per_pass,
    )


def _acceptance(result: GenerationResult) -> Acceptance:
    reached = np.sum([stats.reached for stats in result.stats], axis=0)
    accepted = np.sum([stats.acceptance for stats in result.stats], axis=0)
    return Acceptance(
        accepted_length=result.accepted_length,
        drift_per_token=number_or_none(result.drift_per_token),
        histogram=np.sum([stats.histogram for stats in result.stats], axis=0).tolist(),
        by_position=[float(a / r) if r else None for a, r in zip(accepted, reached, strict=True)],
        reached=reached.tolist(),
    )


def _as_milliseconds(costs: PassCosts) -> Costs:
    return Costs(
        target=_milliseconds(costs.target),
        draft=None if np.isnan(costs.draft_step) else _milliseconds(costs.draft_first),
        plain_host=1000 * costs.plain_host,
        chain=None if costs.chains is None else _milliseconds(costs.chains),
        floor=None if costs.floor is None else _milliseconds(costs.floor),
    )


def _memory(subject: Subject, peak: int, images: int) -> Memory:
    manifest, rows = subject.bundle.manifest, images * _branches(subject)
    engines = {"target": manifest.target, "draft": manifest.draft if subject.drafts else None}
    length = _cache_length(subject.engines, subject.tokens_per_pass - 1)
    return Memory(
        weights=_loaded(manifest),
        caches={name: cache_bytes(spec, rows, length) for name, spec in engines.items() if spec is not None},
        base=subject.base_memory,
        peak=peak,
    )


def _loaded(manifest: Manifest) -> dict[str, int]:
    """Weights by part, without what is loaded only when it is asked for."""
    return {name: size for name, size in weight_bytes(manifest).items() if name != "image encoder"}


def _setup(subject: Subject, images: int) -> Setup:
    manifest = subject.bundle.manifest
    return Setup(
        bundle=manifest.name,
        build_key=manifest.build_key,
        machine=machine(),
        backend=subject.engines.backend,
        threads=_threads(subject),
        precision=manifest.target.precision,
        lowering=_lowering(subject),
        sampling=subject.sampling.model_dump(),
        speculative=subject.speculative.model_dump(),
        tokens_per_pass=subject.tokens_per_pass,
        images=images,
        batch_size=subject.batch_size,
        seed=subject.seed,
    )


def _lowering(subject: Subject) -> str:
    target, gqa = subject.engines.target, subject.bundle.manifest.target.gqa
    runs_gqa = isinstance(target, OrtTransformer) and gqa is not None and target.graph == gqa.name
    return "gqa" if runs_gqa else subject.bundle.manifest.target.lowering


def _cache_length(engines: LoadedEngines, spare: int) -> int:
    return engines.info.prefix_length + engines.info.n_tokens + spare


def _branches(subject: Subject) -> int:
    return 2 if subject.sampling.guided else 1


def _threads(subject: Subject) -> int:
    return subject.threads or os.cpu_count() or 1


def _milliseconds(seconds: Sequence[float] | NDArray[np.float64]) -> list[float]:
    return [round(1000 * float(value), 4) for value in seconds]
