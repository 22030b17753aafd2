"""What a build takes and gives, for any released size: seconds, memory, disk, and how fast the result runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from ...engines.bundle import read_manifest
from ...export.graph.precision import PRECISIONS
from ...export.random_weights import SIZES
from ...runtime.errors import InputError
from ..cli.console import human_size, stderr
from .machine import machine
from .synthetic import write_checkpoints

# What a build may hold in memory, in bytes, with checkpoints on disk: a share of the largest file, and the rest.
SHARE, REST = 1.3, 1e9


@dataclass(frozen=True)
class Build:
    """One row. largest_file: bytes, None when weights were made up on the way. step_seconds: by tokens of a pass."""

    size: str
    precision: str
    parameters: int
    seconds: float
    peak_rss: int
    largest_file: int | None
    bundle_bytes: int
    kl: float | None
    tv: float | None
    step_seconds: dict[str, float]
    step_peak_rss: int | None

    @property
    def limit(self) -> float | None:
        return None if self.largest_file is None else SHARE * self.largest_file + REST

    @property
    def exceeded(self) -> bool:
        return self.limit is not None and self.peak_rss > self.limit


def build_cost(
    size: Annotated[list[str] | None, typer.Option(help=f"Repeatable: {', '.join(SIZES)}; default: c2i-B.")] = None,
    precision: Annotated[list[str] | None, typer.Option(help="Repeatable, as of `build`; default: fp32, int8.")] = None,
    from_file: Annotated[
        bool, typer.Option("--from-file", help="Write the checkpoints to disk first and build from the files.")
    ] = False,
    backend: Annotated[str, typer.Option(help="As of `build`; TensorRT's plans are for --capability.")] = "ort-cpu",
    capability: Annotated[str, typer.Option(help="GPU generation of the plans.")] = "8.9",
    repeats: Annotated[int, typer.Option(min=0, help="Timed passes of each length; 0: do not run the result.")] = 20,
    threads: Annotated[int | None, typer.Option(min=1)] = None,
    low_memory: Annotated[bool, typer.Option("--low-memory", help="Run the result without copies of weights.")] = False,
    work: Annotated[Path | None, typer.Option(help="Folder for checkpoints and bundles, which are removed.")] = None,
    out: Annotated[Path | None, typer.Option("--json", help="Write every figure to this file.")] = None,
) -> None:
    """Build released sizes with random weights. Every build and every run is a process of its own. Exit code 1 when a
    build held more in memory than 1.3 times its largest file and 1 GB."""
    sizes, precisions = size or ["c2i-B"], precision or ["fp32", "int8"]
    for option, given, known in (("size", sizes, tuple(SIZES)), ("precision", precisions, PRECISIONS)):
        unknown = [name for name in given if name not in known]
        if unknown:
            raise InputError(f"--{option} {unknown[0]}: no such {option}. Expected one of: {', '.join(known)}.")
    options = ["--backend", backend, *(["--compute-capability", capability] if backend.startswith("trt") else [])]
    steps = ["--repeats", str(repeats), *(["--threads", str(threads)] if threads else [])]
    steps += ["--low-memory"] if low_memory else []
    rows = []
    for name in sizes:
        with TemporaryDirectory(dir=work) as scratch:
            sources = write_checkpoints(name, Path(scratch) / "checkpoints") if from_file else None
            for kind in precisions:
                stderr.print(f"{name} {kind}", style="dim")
                rows.append(_measure(name, kind, Path(scratch) / kind, sources, options, steps if repeats else None))
    _print_markdown(rows)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        report = {"machine": machine(), "rows": [asdict(row) for row in rows]}
        out.write_text(json.dumps(report, indent=1), encoding="utf-8")
    if any(row.exceeded for row in rows):
        raise typer.Exit(1)


def _measure(
    size: str,
    precision: str,
    bundle: Path,
    sources: dict[str, Path] | None,
    options: list[str],
    steps: list[str] | None,
) -> Build:
    given = [f"--{role.replace('_', '-')}={path}" for role, path in (sources or {}).items()]
    origin = given or ["--random-weights", size]
    begin = time.perf_counter()
    _, peak = _run("cli", "build", *origin, "--precision", precision, *options, "--out", str(bundle))
    seconds = time.perf_counter() - begin
    timed, step_peak = _run("bench", "passes", str(bundle), *steps) if steps is not None else ("{}", None)
    target = read_manifest(bundle).target
    files = [file for path in (sources or {}).values() for file in path.iterdir()]
    row = Build(
        size=size,
        precision=precision,
        parameters=target.parameters,
        seconds=seconds,
        peak_rss=peak,
        largest_file=max((file.stat().st_size for file in files), default=None),
        bundle_bytes=sum(file.stat().st_size for file in bundle.rglob("*") if file.is_file()),
        kl=target.precision_cost.kl if target.precision_cost else None,
        tv=target.precision_cost.tv if target.precision_cost else None,
        step_seconds=json.loads(timed),
        step_peak_rss=step_peak,
    )
    shutil.rmtree(bundle)
    return row


def _run(program: str, *arguments: str) -> tuple[str, int]:
    """Standard output and peak RSS in bytes of one of our programs; it shows its own errors."""
    command = [sys.executable, "-m", f"coolsd_trt.tools.{program}", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        text = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise typer.Exit(process.returncode)
    return text, usage.ru_maxrss * 1024


def _print_markdown(rows: list[Build]) -> None:
    typer.echo(f"{machine()}, load {os.getloadavg()[0]:.1f}; random weights; a pass is one picture's two rows.\n")
    typer.echo(
        "| size | precision | parameters | build | peak RSS | allowed | bundle | KL, TV | T = 1 | T = 6 | its RSS |"
    )
    typer.echo("|---|---|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        passes = [f"{1e3 * row.step_seconds[count]:.1f} ms" if row.step_seconds else "-" for count in ("1", "6")]
        cells = [
            row.size,
            row.precision,
            f"{row.parameters / 1e6:.0f} M",
            f"{row.seconds:.1f} s",
            human_size(row.peak_rss) + (" EXCEEDED" if row.exceeded else ""),
            human_size(int(row.limit)) if row.limit is not None else "-",
            human_size(row.bundle_bytes),
            f"{row.kl:.2g}, {row.tv:.2g}" if row.kl is not None and row.tv is not None else "-",
            *passes,
            human_size(row.step_peak_rss) if row.step_peak_rss is not None else "-",
        ]
        typer.echo(f"| {' | '.join(cells)} |")
