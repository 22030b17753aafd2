"""`coolsd-trt build`: checkpoints to a bundle."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from ...engines.manifest import LoweringName, Manifest, PrecisionName
from ...export.build import DEFAULT_MAX_DRAFT, BuildRequest, build_bundle
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
    heads: Annotated[int | None, typer.Option(min=1, help="Attention heads, if the target does not say.")] = None,
    grid: Annotated[int | None, typer.Option(min=1, help="Image tokens per side, if the target does not say.")] = None,
) -> None:
    """Turn checkpoints into a bundle. Does nothing when the bundle is already there and intact."""
    start = time.perf_counter()
    request = BuildRequest(
        target, image_decoder, draft, max_draft, class_names, lowering, precision=precision, heads=heads, grid=grid
    )
    with stderr.status("build") as status:
        result = build_bundle(request, out, report=lambda stage: status.update(f"build: {stage}"))
    seconds = time.perf_counter() - start
    if result.cached:
        stdout.print(f"{out} is up to date ({seconds:.1f} s): same checkpoints, options, exporter. Nothing was done.")
        return
    stdout.print(parts_table(result.manifest))
    stdout.print(f"built {out} in {seconds:.1f} s")


def parts_table(manifest: Manifest) -> object:
    """One row per engine: parameters, precision, size on disk."""
    table = plain_table("part", "parameters", "layers", "precision", "size", "file")
    for name, part in manifest.parts().items():
        size = human_size(sum(record.size for record in part.files))
        layers = str(getattr(part, "layers", "-"))
        table.add_row(name, f"{part.parameters / 1e6:.2f} M", layers, part.precision, size, part.files[0].name)
    return table
