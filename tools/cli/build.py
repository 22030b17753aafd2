"""`coolsd-trt build`: checkpoints to a bundle."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ...engines.backends import BACKENDS
from ...engines.manifest import EngineSet, LoweringName, Manifest, PrecisionName
from ...engines.trt.flavour import FLAVOURS
from ...engines.trt.plans import PlanRequest, build_plans, check_request
from ...export.build import DEFAULT_MAX_DRAFT, BuildRequest, build_bundle
from ...runtime.errors import InputError
from .console import human_size, plain_table, stderr, stdout


def build(
    target: Annotated[Path, typer.Option(help="Target checkpoint: a LlamaGen file, or a folder with it.")],
    image_decoder: Annotated[Path, typer.Option(help="VQ tokenizer checkpoint: a file, or a folder with it.")],
    out: Annotated[Path, typer.Option(help="The bundle to write (a folder).")],
    draft: Annotated[Path | None, typer.Option(help="EAGLE draft: its folder. Without it only rule `ar` runs.")] = None,
    max_draft: Annotated[
        int, typer.Option(min=0, help="Longest draft the bundle has cache room for.")
    ] = DEFAULT_MAX_DRAFT,
    class_names: Annotated[
        Path | None, typer.Option(help="JSON list of class names; default: class_names.json beside the target.")
    ] = None,
    lowering: Annotated[
        LoweringName | None,
        typer.Option(help="How graphs write the cache and attend; default: what suits the installed onnxruntime."),
    ] = None,
    precision: Annotated[
        PrecisionName, typer.Option(help="Float type of target and draft; the image decoder stays fp32.")
    ] = "fp32",
    backend: Annotated[
        str, typer.Option(help="ort-cpu or ort-cuda: the graphs alone; trt-rtx or trt: TensorRT plans beside them.")
    ] = "ort-cpu",
    compute_capability: Annotated[
        list[str] | None,
        typer.Option(help="GPU generation of the plans, like 8.9; may be repeated; default: this machine's GPU."),
    ] = None,
    max_batch: Annotated[int, typer.Option(min=1, help="Pictures that may share a pass of the plans.")] = 8,
    heads: Annotated[int | None, typer.Option(min=1, help="Attention heads, if the target does not say.")] = None,
    grid: Annotated[int | None, typer.Option(min=1, help="Image tokens per side, if the target does not say.")] = None,
) -> None:
    """Turn checkpoints into a bundle. Does nothing when the bundle is already there and intact."""
    plans = _plan_request(backend, tuple(compute_capability or ()), max_batch)
    if plans is not None and lowering is None:
        lowering = "tensor_scatter"
    start = time.perf_counter()
    request = BuildRequest(
        target, image_decoder, draft, max_draft, class_names, lowering, precision=precision, heads=heads, grid=grid
    )
    with stderr.status("build") as status:
        result = build_bundle(request, out, report=lambda stage: status.update(f"build: {stage}"))
    seconds = time.perf_counter() - start
    if result.cached:
        stdout.print(f"{out} is up to date ({seconds:.1f} s): same checkpoints, options, exporter. Nothing was done.")
    else:
        stdout.print(parts_table(result.manifest))
        stdout.print(f"built {out} in {seconds:.1f} s")
    if plans is not None:
        _build_plans(out, plans)


def _plan_request(backend: str, capabilities: tuple[str, ...], max_batch: int) -> PlanRequest | None:
    """None for backends that run the graphs as they are. What can't work fails before the checkpoints are read."""
    if backend not in BACKENDS:
        raise InputError(f"--backend {backend!r}: no such backend. Expected one of: {', '.join(BACKENDS)}.")
    flavour = next((name for name in FLAVOURS if name == backend), None)
    if flavour is None:
        if capabilities:
            raise InputError(f"--compute-capability is for TensorRT plans, and {backend} has none. Leave it out.")
        return None
    request = PlanRequest(flavour, capabilities, max_batch)
    check_request(request)
    return request


def _build_plans(out: Path, request: PlanRequest) -> None:
    start = time.perf_counter()
    with stderr.status("plans") as status:
        results = build_plans(out, request, report=lambda stage: status.update(f"plans: {stage}"))
    seconds = time.perf_counter() - start
    stdout.print(plans_table([result.engines for result in results]))
    for result in results:
        state = "up to date, nothing was done" if result.cached else "built"
        stdout.print(f"{result.engines.key}: {state}")
    stdout.print(f"plans took {seconds:.1f} s")


def plans_table(sets: Sequence[EngineSet]) -> object:
    """One row per TensorRT plan: where it runs, size, activation memory, build time."""
    table = plain_table("plan", "for", "precision", "batch", "size", "workspace", "built in", "by")
    for engines in sets:
        for part, plan in engines.plans.items():
            size, workspace = human_size(plan.file.size), human_size(plan.workspace)
            place = (f"sm {engines.compute_capability}", engines.precision, str(engines.max_batch))
            made = (f"{plan.seconds:.1f} s", f"{engines.flavour} {engines.version}")
            table.add_row(part, *place, size, workspace, *made)
    return table


def parts_table(manifest: Manifest) -> object:
    """One row per engine: parameters, precision, size on disk."""
    table = plain_table("part", "parameters", "layers", "precision", "size", "file")
    for name, part in manifest.parts().items():
        size = human_size(sum(record.size for record in part.files))
        layers = str(getattr(part, "layers", "-"))
        table.add_row(name, f"{part.parameters / 1e6:.2f} M", layers, part.precision, size, part.files[0].name)
    return table
