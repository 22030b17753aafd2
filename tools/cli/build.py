"""`coolsd-trt build`: checkpoints to a bundle."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from ...engines.manifest import LoweringName, Manifest
from ...export.build import DEFAULT_MAX_DRAFT, BuildRequest, build_bundle
from ...export.neighbors import DEFAULT_COLUMNS
from ...export.random_weights import SIZES, random_checkpoints
from ...runtime.errors import InputError
from .console import human_size, plain_table, stderr, stdout


def build(
    out: Annotated[Path, typer.Option(help="The bundle to write (a folder).")],
    target: Annotated[Path | None, typer.Option(help="Target: a LlamaGen file, or a folder with it.")] = None,
    image_decoder: Annotated[
        Path | None, typer.Option(help="VQ tokenizer checkpoint: a file, or a folder with it.")
    ] = None,
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
    heads: Annotated[int | None, typer.Option(min=1, help="Attention heads, if the target does not say.")] = None,
    grid: Annotated[int | None, typer.Option(min=1, help="Image tokens per side, if the target does not say.")] = None,
    image_encoder: Annotated[
        bool, typer.Option("--image-encoder", help="Put the tokenizer's encoder into the bundle, too.")
    ] = False,
    neighbors: Annotated[
        int, typer.Option(min=0, help="Nearest codes kept of each code, for the LANTERN rules; 0 = none.")
    ] = DEFAULT_COLUMNS,
    random_weights: Annotated[
        str | None,
        typer.Option(help=f"Instead of checkpoints, random weights of a released size: {', '.join(SIZES)}."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random weights.")] = 0,
) -> None:
    """Turn checkpoints into a bundle. Does nothing when the bundle is already there and intact."""
    start = time.perf_counter()
    sources = _sources({"target": target, "image_decoder": image_decoder, "draft": draft}, random_weights, seed)
    request = BuildRequest(
        **sources,
        max_draft_length=max_draft,
        class_names=class_names,
        lowering=lowering,
        heads=heads,
        grid=grid,
        image_encoder=image_encoder,
        neighbors=neighbors,
    )
    with stderr.status("build") as status:
        result = build_bundle(request, out, report=lambda stage: status.update(f"build: {stage}"))
    seconds = time.perf_counter() - start
    if result.cached:
        stdout.print(f"{out} is up to date ({seconds:.1f} s): same checkpoints, options, exporter. Nothing was done.")
        return
    for note in result.notes:
        stderr.print(f"note: {note}", soft_wrap=True, markup=False)
    stdout.print(parts_table(result.manifest))
    stdout.print(f"built {out} in {seconds:.1f} s")


def _sources(given: dict[str, Path | None], random_weights: str | None, seed: int) -> dict[str, Any]:
    """What the bundle is made from, by field of `BuildRequest`."""
    if random_weights is not None:
        for name, path in given.items():
            if path is not None:
                raise InputError(f"--{name.replace('_', '-')} and --random-weights exclude each other. Give one.")
        return dict(random_checkpoints(random_weights, seed))
    for name in ("target", "image_decoder"):
        if given[name] is None:
            raise InputError(f"--{name.replace('_', '-')} is missing. Give the checkpoint, or --random-weights SIZE.")
    return dict(given)


def parts_table(manifest: Manifest) -> object:
    """One row per engine: parameters, precision, size on disk."""
    table = plain_table("part", "parameters", "layers", "precision", "size", "file")
    for name, part in manifest.parts().items():
        size = human_size(sum(record.size for record in part.files))
        layers = str(getattr(part, "layers", "-"))
        table.add_row(name, f"{part.parameters / 1e6:.2f} M", layers, part.precision, size, part.files[0].name)
    return table
