"""`coolsd-trt check`: does a backend, or another build, compute what onnxruntime does on the CPU? Or: does TensorRT
read a graph?"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from ...engines.backends import BACKENDS_HELP
from ...engines.bundle import read_manifest
from ...engines.loader import LoadedEngines, load_engines
from ...engines.parity import TOLERANCES, Parity, compare_engines
from ...engines.trt.capability import choose_flavour, refusals
from ...runtime.errors import InputError
from .console import plain_table, stdout

FAILED = 1
NODES_SHOWN = 3


def check(
    bundle: Annotated[Path | None, typer.Argument(help="A bundle of `coolsd-trt build`.")] = None,
    graph: Annotated[
        Path | None, typer.Option(help="Instead of a bundle, an ONNX file: list the nodes TensorRT refuses, and why.")
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(help="Another bundle of the same checkpoints (lowering, precision); default: this one."),
    ] = None,
    backend: Annotated[str, typer.Option(help=f"What to check: auto or one of: {BACKENDS_HELP}")] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; default: all cores.")] = None,
) -> None:
    """Compare every engine with onnxruntime on the CPU; exit code 1 when one differs more than its precision allows.
    With --graph: exit code 1 when TensorRT refuses a node."""
    if (bundle is None) == (graph is None):
        raise InputError("give a bundle, or --graph FILE.onnx, and not both.")
    if graph is not None:
        _check_graph(graph, backend)
        return
    assert bundle is not None
    other = against or bundle
    with closing(load_engines(bundle, backend, threads=threads)) as subject:
        _require_difference(subject, against)
        tolerance = max(TOLERANCES[read_manifest(path).target.precision] for path in (bundle, other))
        with closing(load_engines(other, "ort-cpu", threads=threads)) as reference:
            results = compare_engines(subject, reference, tolerance)
        stdout.print(f"{bundle} on {subject.backend} against {other} on ort-cpu")
    _print(results, tolerance)
    if not all(result.passed for result in results):
        raise typer.Exit(FAILED)


def _check_graph(graph: Path, backend: str) -> None:
    flavour = choose_flavour(backend)
    found = refusals(graph, flavour)
    if not found:
        stdout.print(f"{graph}: {flavour.name} reads every node")
        return
    stdout.print(f"{graph}: {flavour.name} refuses")
    for refusal in found:
        count = f"{refusal.operator} x {len(refusal.nodes)}" if refusal.operator else "the graph"
        nodes = [node for node in refusal.nodes if node]
        shown = ", ".join(nodes[:NODES_SHOWN]) + (", ..." if len(nodes) > NODES_SHOWN else "")
        stdout.print(f"  {count}{f' ({shown})' if shown else ''}: {refusal.reason}", soft_wrap=True)
    raise typer.Exit(FAILED)


def _require_difference(subject: LoadedEngines, against: Path | None) -> None:
    if subject.backend == "ort-cpu" and against is None:
        raise InputError(
            "backend ort-cpu is the reference: there is nothing to compare. Use --against with a bundle of another "
            f"lowering or precision, or a GPU --backend. (ort-cpu: {subject.backend_reason}.)"
        )


def _print(results: list[Parity], tolerance: float) -> None:
    table = plain_table("part", "output", "largest difference", "of its deviation", "allowed", "")
    for result in results:
        share = result.difference / result.scale if result.scale else 0.0
        verdict = "same" if result.passed else "DIFFERS"
        table.add_row(
            result.part, result.output, f"{result.difference:.2g}", f"{share:.2g}", f"{tolerance:.2g}", verdict
        )
    stdout.print(table)
