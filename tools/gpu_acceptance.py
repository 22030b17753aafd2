"""The first thing to run on a machine with a GPU: parity with the CPU, then the speed of plain and drafted decoding.

    python -m coolsd_trt.tools.gpu_acceptance --out report/              # builds what it needs
    python -m coolsd_trt.tools.gpu_acceptance BUNDLE... --out report/    # takes what is there

With `--backend ort-cpu` it is a dry run.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from ..engines.backends import BACKENDS
from ..engines.bundle import read_manifest
from ..engines.cuda import probe_gpu
from ..engines.loader import load_engines
from ..engines.parity import TOLERANCES, compare_engines
from ..runtime import Pipeline, SpeculativeConfig
from ..runtime.errors import BackendError, CoolsdError, InputError
from .acceptance_bundles import NAMES, make_bundle, parameters, sources_of, usable_flavour
from .cli.console import stderr
from .cli.errors import run_app

RULES = ("ar", "lossless", "cool")
# Parameters above which a build takes time in proportion to them.
LARGE = 100_000_000
FAILED = 1

app = typer.Typer(add_completion=False)


class Budget:
    """Seconds for everything, and what a bundle took for each of its parameters."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self._rate = 0.0

    def refuses(self, seconds: float) -> str | None:
        """Why something of this length is not begun; None when it is."""
        left = self._end - time.monotonic()
        if left <= 0:
            return "no time is left"
        return f"takes about {seconds:.0f} s, {left:.0f} s are left" if seconds >= left else None

    def estimate(self, size: int) -> float:
        """Seconds to build and compare a bundle of `size` parameters, from the last large one; 0 for the first."""
        return self._rate * size

    @contextmanager
    def learning(self, size: int) -> Iterator[None]:
        start = time.monotonic()
        yield
        if size >= LARGE:
            self._rate = (time.monotonic() - start) / size


@app.command()
def accept(
    out: Annotated[Path, typer.Option(help="Folder of the report, and of what is built.")],
    bundles: Annotated[
        list[Path] | None, typer.Argument(help="Class-conditional bundles; default: build some.")
    ] = None,
    only: Annotated[list[str] | None, typer.Option(help=f"Build only this; repeatable. Of {', '.join(NAMES)}.")] = None,
    backend: Annotated[str, typer.Option(help="What to examine; auto: the best that works here.")] = "auto",
    pictures: Annotated[int, typer.Option(min=1, help="Pictures per measurement.")] = 4,
    minutes: Annotated[float, typer.Option(min=0, help="Time for everything.")] = 10,
) -> None:
    """Write report.json and report.md: is it right, and how fast is it?

    Without bundles it builds the demo pair, and LlamaGen B, L and XL with random weights (their accepted lengths mean
    nothing, their times do): in fp16 with plans for this GPU where TensorRT is installed. It installs nothing, and
    begins nothing that would not end in time. Exit code 1: a bundle failed, or differs from the CPU.
    """
    if backend not in ("auto", *BACKENDS):
        raise InputError(f"--backend {backend!r}: no such backend. Expected auto or one of: {', '.join(BACKENDS)}.")
    for name in only or ():
        sources_of(name)
    budget = Budget(60 * minutes)
    report: dict[str, Any] = {"machine": describe_machine(), "bundles": []}
    say(report["machine"]["gpu"] or f"no GPU, so the CPU is examined: {report['machine']['reason']}")
    flavour = None if bundles else usable_flavour(backend)
    out.mkdir(parents=True, exist_ok=True)
    jobs: list[tuple[str, Path | None]] = [(path.name, path) for path in bundles or ()]
    for name, path in jobs or [(name, None) for name in only or NAMES]:
        entry: dict[str, Any] = {"bundle": name}
        report["bundles"].append(entry)
        say(f"{name} ...")
        try:
            size = 0 if path else parameters(sources_of(name))
            reason = budget.refuses(budget.estimate(size))
            if reason is None:
                with budget.learning(size):
                    if path is None:
                        path, entry["build"] = make_bundle(out / "bundles", name, flavour, pictures)
                    entry.update(compare(path, backend))
                entry["speed"], reason = measure(path, backend, pictures, budget)
            if reason:
                entry["skipped"] = reason
        except CoolsdError as error:
            # The other bundles may fit into memory, or have the plans this one lacks.
            entry["error"] = str(error)
        (out / "report.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
        (out / "report.md").write_text(markdown(report), encoding="utf-8")
    print(markdown(report))
    if any("error" in entry or not all(p["passed"] for p in entry.get("parity", ())) for entry in report["bundles"]):
        raise typer.Exit(FAILED)


def say(message: str) -> None:
    """Where it is, on stderr."""
    stderr.print(message, soft_wrap=True)


def describe_machine() -> dict[str, Any]:
    """The GPU, or why there is none."""
    try:
        gpu = probe_gpu()
    except BackendError as error:
        return {"gpu": None, "reason": str(error), "python": platform.python_version()}
    facts = {"compute_capability": gpu.compute_capability, "memory": gpu.memory}
    return {"gpu": gpu.name, **facts, "python": platform.python_version()}


def compare(bundle: Path, backend: str) -> dict[str, Any]:
    """What runs, and how far it is from the same bundle on the CPU."""
    precision = read_manifest(bundle).target.precision
    with closing(load_engines(bundle, backend)) as subject, closing(load_engines(bundle, "ort-cpu")) as reference:
        parity = compare_engines(subject, reference, TOLERANCES[precision])
        return {
            "backend": subject.backend,
            "reason": subject.backend_reason,
            "precision": precision,
            "parity": [vars(result) for result in parity],
        }


def measure(bundle: Path, backend: str, pictures: int, budget: Budget) -> tuple[list[dict[str, Any]], str | None]:
    """Each rule alone and in a batch, after a batch to warm up. Returns: the measurements, and why some are missing."""
    rows: list[dict[str, Any]] = []
    seconds = 0.0
    with Pipeline.load(bundle, backend, verify=False) as pipeline:
        for batch_size in sorted({1, pictures}):
            for rule in RULES:
                if reason := budget.refuses(seconds):
                    return rows, f"{rule} at batch {batch_size}: {reason}"
                start = time.monotonic()
                options: dict[str, Any] = {"speculative": SpeculativeConfig(rule=rule), "batch_size": batch_size}
                # The warm-up needs the batch that is measured: kernels and graphs belong to a shape.
                pipeline.generate([0] * batch_size, **options)
                made = pipeline.generate([0] * pictures, seed=1, **options)
                tokens = sum(stats.n_tokens for stats in made.stats)
                rows.append(
                    {
                        "rule": rule,
                        "batch_size": batch_size,
                        "tokens_per_second": tokens / made.seconds,
                        "seconds_per_picture": made.seconds / pictures,
                        "accepted_length": made.accepted_length,
                    }
                )
                seconds = time.monotonic() - start
    return rows, None


def markdown(report: dict[str, Any]) -> str:
    machine = report["machine"]
    lines = [f"# {machine['gpu'] or 'No GPU: ' + machine['reason']}", ""]
    for entry in report["bundles"]:
        on = f" ({entry['precision']}) on {entry['backend']}" if "backend" in entry else ""
        lines += [f"## {entry['bundle']}{on}", ""]
        for trouble in ("error", "skipped"):
            if trouble in entry:
                lines += [f"{trouble}: {entry[trouble]}", ""]
        plans = entry.get("build", {}).get("plans", [])
        built = [
            (plan["part"], f"{plan['seconds']:.1f}", *(f"{plan[key] / 1e6:.1f}" for key in ("bytes", "workspace")))
            for plan in plans
        ]
        compared = [
            (part, output, f"{difference:.2g}", f"{scale:.2g}", "same" if passed else "DIFFERS")
            for part, output, difference, scale, passed in (result.values() for result in entry.get("parity", ()))
        ]
        figures = ("tokens_per_second", "seconds_per_picture", "accepted_length")
        speed = entry.get("speed", ())
        timed = [(row["rule"], row["batch_size"], *(f"{row[key]:.2f}" for key in figures)) for row in speed]
        lines += _table(("plan", "built in s", "MB", "workspace MB"), built)
        lines += _table(("part", "output", "largest difference", "deviation", ""), compared)
        lines += _table(("rule", "batch", "tokens/s", "s a picture", "tokens per pass"), timed)
    return "\n".join(lines)


def _table(header: tuple[str, ...], rows: list[tuple[Any, ...]]) -> list[str]:
    if not rows:
        return []
    divider = ("---",) * len(header)
    return [*(f"| {' | '.join(map(str, row))} |" for row in (header, divider, *rows)), ""]


if __name__ == "__main__":
    run_app(app)
