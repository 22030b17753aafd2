"""`coolsd-trt inspect`: what a bundle holds, or how a picture was made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ...engines.bundle import Bundle
from ...engines.manifest import Manifest
from ...engines.trt.plans import check_plans
from ...runtime.condition import ClassCondition
from ...runtime.images import read_parameters
from .build import cost_line, parts_table, plans_table
from .console import plain_table, stdout


def inspect(
    path: Annotated[Path, typer.Argument(help="A bundle, or a PNG written by `generate`.")],
    classes: Annotated[bool, typer.Option("--classes", help="List the class names.")] = False,
    tensors: Annotated[bool, typer.Option("--tensors", help="List every engine's inputs and outputs.")] = False,
    plans: Annotated[
        bool, typer.Option("--plans", help="List the TensorRT plans' profiles, and the layers they were built from.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the manifest (or the parameters) as JSON.")] = False,
) -> None:
    """Show a bundle after checking its files, or the parameters a picture carries."""
    if path.suffix.lower() == ".png":
        stdout.print_json(json.dumps(read_parameters(path)))
        return
    bundle = Bundle.open(path)
    manifest = bundle.manifest
    for engines in manifest.engine_sets:
        check_plans(bundle, engines)
    if as_json:
        typer.echo(manifest.model_dump_json(indent=1))
        return
    class_names = manifest.condition.names if isinstance(manifest.condition, ClassCondition) else ()
    _print_summary(path, manifest)
    if classes:
        table = plain_table("id", "class")
        for i, name in enumerate(class_names):
            table.add_row(str(i), name)
        stdout.print(table)
    if tensors:
        _print_tensors(manifest)
    if plans:
        _print_plans(manifest)


def _print_summary(path: Path, m: Manifest) -> None:
    height, width = m.image_decoder.image_size
    if isinstance(m.condition, ClassCondition):
        takes = f"{len(m.condition.names)} classes"
    else:
        takes = f"captions up to {m.condition.slots} tokens"
    stdout.print(f"{path}  {m.name} ({m.family}), schema {m.schema_version}, files intact", soft_wrap=True)
    stdout.print(
        f"{width}x{height} pixels, {m.grid[0]}x{m.grid[1]} = {m.grid[0] * m.grid[1]} tokens of {m.target.vocab_size}, "
        f"{takes}, drafts up to {m.max_draft_length} tokens"
    )
    stdout.print(parts_table(m))
    if line := cost_line(m):
        stdout.print(line, soft_wrap=True)
    if m.engine_sets:
        stdout.print(plans_table(m.engine_sets))
    stdout.print(f"sampling defaults     {_settings(m.sampling.model_dump())}")
    stdout.print(f"speculative defaults  {_settings(m.speculative.model_dump())}")
    for source in m.sources:
        stdout.print(f"from {source.role:<16} {source.path}  {source.sha256[:12]}")
    stdout.print("written by " + ", ".join(f"{name} {version}" for name, version in m.tools.items()))


def _print_tensors(m: Manifest) -> None:
    table = plain_table("engine", "", "tensor", "dtype", "shape")
    for name, part in m.parts().items():
        for direction, specs in (("in", part.inputs), ("out", part.outputs)):
            for spec in specs:
                table.add_row(name, direction, spec.name, spec.dtype, ", ".join(map(str, spec.shape)))
    stdout.print(table)


def _print_plans(m: Manifest) -> None:
    if not m.engine_sets:
        stdout.print("no TensorRT plans; `coolsd-trt build --backend trt-rtx` adds them")
    profiles = plain_table("plan", "profile", "rows (typical)", "tokens (typical)", "cache length")
    layers = plain_table("plan", "layers of its network")
    layers.columns[1].justify = "left"
    for engines in m.engine_sets:
        for part, plan in engines.plans.items():
            name = f"{engines.key} {part}"
            for profile in plan.profiles:
                ranges = (_range(profile.batch), _range(profile.tokens))
                profiles.add_row(name, profile.name, *ranges, str(profile.cache_length or "-"))
            kinds = sorted(plan.layers.items(), key=lambda item: -item[1])
            layers.add_row(name, ", ".join(f"{count} {kind}" for kind, count in kinds))
    if m.engine_sets:
        stdout.print(profiles)
        stdout.print(layers)


def _range(sizes: tuple[int, int, int]) -> str:
    """Least to greatest, and the one in between that is optimised for."""
    least, typical, greatest = sizes
    return str(least) if least == greatest else f"{least}-{greatest} ({typical})"


def _settings(values: dict[str, object]) -> str:
    return "  ".join(f"{name}={value}" for name, value in values.items())
