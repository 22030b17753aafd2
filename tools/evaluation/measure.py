"""Runs the settings of an evaluation side by side, and keeps every finished batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from ...engines.bundle import read_manifest
from ...runtime import Cancelled, Pipeline
from ...runtime.images import save_png
from ..bench.contenders import Contender, Sample, Workload
from .folder import RunFolder


def measure(
    bundle: Path,
    run: Path,
    rows: Sequence[Contender],
    workload: Workload,
    backend: str = "auto",
    threads: int | None = None,
    track: Callable[[Sequence[int]], Iterable[int]] = iter,
) -> tuple[RunFolder, list[int | str]]:
    """Fill the rows' samples, from the run folder as far as it has them; pictures are left there.

    Args: track: passes on the batches that are to be made, and may show how far it is.
    Returns: the folder, and the class or caption of every picture.
    Raises: InputError when the folder has other settings; Cancelled on Ctrl-C, with everything finished kept.
    """
    with Pipeline.load(bundle, backend, threads=threads) as pipeline:
        folder = RunFolder(run, _settings(bundle, pipeline, rows, workload, threads))
        finished = folder.finished(workload)
        todo = [first for first in workload.turns if first not in finished]
        try:
            if todo:
                workload.warm_up(pipeline, rows)  # finds settings that the bundle can't do
                folder.begin()
            for first in track(todo):
                finished[first] = _turn(pipeline, folder, rows, workload, first)
        except KeyboardInterrupt:
            raise Cancelled(f"stopped by Ctrl-C. The same command goes on from {run}.") from None
        for first in workload.turns:
            for row in rows:
                row.sample.extend(finished[first][row.name])
        return folder, [workload.prompt(pipeline, i) for i in range(workload.images)]


def _turn(
    pipeline: Pipeline, folder: RunFolder, rows: Sequence[Contender], workload: Workload, first: int
) -> dict[str, Sample]:
    samples = {}
    for row, result in workload.turn(pipeline, rows, first):
        samples[row.name] = Sample.of(result)
        for i, (image, parameters) in enumerate(zip(result.images, result.parameters, strict=True)):
            path = folder.picture(row, first + i)
            path.parent.mkdir(parents=True, exist_ok=True)
            save_png(path, image, parameters)
    folder.append(first, samples)
    return samples


def _settings(
    bundle: Path, pipeline: Pipeline, rows: Sequence[Contender], workload: Workload, threads: int | None
) -> dict[str, Any]:
    """Everything that would make figures incomparable; not the number of pictures, which may grow."""
    return {
        "bundle": read_manifest(bundle).build_key,
        "backend": pipeline.backend,
        "threads": threads,
        "seed": workload.seed,
        "batch_size": workload.batch_size,
        "sampling": {**pipeline.info.sampling.model_dump(), **workload.sampling},
        "captions": list(workload.captions),
        "grid": {row.name: row.config.model_dump(mode="json") for row in rows},
    }
