"""`coolsd-trt generate`: classes or captions to PNG files."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from ...engines.backends import BACKENDS
from ...runtime import GenerationResult, InputError, Pipeline, SpeculativeConfig
from ...runtime import Progress as Snapshot
from ...runtime.images import make_grid, save_png
from ...runtime.rules import RULES
from .captions import read_caption_features
from .classes import resolve_class
from .console import plain_table, stderr, stdout
from .output import writable_folder

SAMPLING = "Sampling"
SPECULATION = "Speculation"
RULES_HELP = "; ".join(f"{rule.name}: {rule.summary}" for rule in RULES.values())


def generate(
    bundle: Annotated[Path, typer.Argument(help="A bundle of `coolsd-trt build`.")],
    classes: Annotated[
        list[str] | None, typer.Option("--class", "-c", help="Class name or id; may be repeated.")
    ] = None,
    caption_features: Annotated[
        Path | None, typer.Option(help="Encoded captions, an .npz with [captions, tokens, width] and their mask.")
    ] = None,
    images: Annotated[int, typer.Option("-n", "--images", help="Pictures of each class or caption.")] = 1,
    out: Annotated[
        Path, typer.Option(help="Folder for the pictures; or FILE.png for a single picture or the grid.")
    ] = Path("pictures"),
    grid: Annotated[bool, typer.Option("--grid", help="Write one picture with all of them.")] = False,
    seed: Annotated[int, typer.Option(help="Picture i draws from the generator (seed, first index + i).")] = 0,
    first_index: Annotated[int, typer.Option(help="Start there, to make one picture of an earlier run again.")] = 0,
    cfg: Annotated[
        float | None, typer.Option(help="Guidance scale, 1 = off.", rich_help_panel=SAMPLING, show_default="bundle's")
    ] = None,
    cfg_interval: Annotated[
        int | None, typer.Option(help="Guide only image tokens 0 to N + 1; -1 = all.", rich_help_panel=SAMPLING)
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="0 = greedy.", rich_help_panel=SAMPLING)] = None,
    top_k: Annotated[int | None, typer.Option(help="0 = off.", rich_help_panel=SAMPLING)] = None,
    top_p: Annotated[float | None, typer.Option(help="1 = off.", rich_help_panel=SAMPLING)] = None,
    rule: Annotated[
        str | None,
        typer.Option(
            help=f"Acceptance rule. {RULES_HELP}. Rules with delta above 1 are lossy: pictures leave the target's "
            "distribution by the drift that is printed. `--rule lossless` is exact.",
            rich_help_panel=SPECULATION,
        ),
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="Mean relaxation; above 1 is lossy.", rich_help_panel=SPECULATION)
    ] = None,
    nu: Annotated[float | None, typer.Option(help="Annealing rate of `cool`.", rich_help_panel=SPECULATION)] = None,
    floor: Annotated[
        str | None,
        typer.Option(
            help="Least omega of `cool` and `linear`; `none` = the paper's schedule.", rich_help_panel=SPECULATION
        ),
    ] = None,
    draft_length: Annotated[
        int | None, typer.Option(help="L, tokens drafted per target pass.", rich_help_panel=SPECULATION)
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Pictures that share passes.")] = 8,
    backend: Annotated[str, typer.Option(help=f"auto or one of: {', '.join(BACKENDS)}.")] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; default: all cores.")] = None,
    stats: Annotated[
        Path | None, typer.Option("--json", help="Write tokens and statistics to this file; `-` = stdout.")
    ] = None,
) -> None:
    """Generate pictures of classes, or of captions."""
    folder = out.parent if out.suffix.lower() == ".png" else out
    with Pipeline.load(bundle, backend, threads=threads) as pipeline, writable_folder(folder, "--out"):
        prompts, count = _prompts(pipeline, classes or [], caption_features)
        if folder != out and not grid and count * images > 1:
            raise InputError(f"--out {out}: one file for {count * images} pictures. Add --grid, or give a folder.")
        speculation = {"rule": rule, "delta": delta, "nu": nu, "draft_length": draft_length, **_floor(floor)}
        result = _run(
            pipeline,
            **prompts,
            images_per_prompt=images,
            seed=seed,
            first_index=first_index,
            cfg_scale=cfg,
            cfg_interval=cfg_interval,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            batch_size=batch_size,
            speculative=_speculative(pipeline, speculation),
        )
        written = _save(result, out, grid)
        used = f"backend {pipeline.backend}: {pipeline.backend_reason}"
        if stats is not None:
            _write_json(result, stats)
    if stats != Path("-"):
        _print_summary(result, written, used)


def _prompts(pipeline: Pipeline, classes: list[str], caption_features: Path | None) -> tuple[dict[str, Any], int]:
    """What `Pipeline.generate` takes of the two options, and how many prompts that is."""
    names = pipeline.info.class_names
    if names and caption_features is None:
        if not classes:
            raise InputError("--class is missing. `coolsd-trt inspect BUNDLE --classes` lists this model's classes.")
        return {"class_ids": [resolve_class(text, names) for text in classes]}, len(classes)
    if names:
        raise InputError("--caption-features is given, and this model takes classes. Use --class instead.")
    if classes or caption_features is None:
        raise InputError("this model takes captions, not classes. Use --caption-features FILE.npz.")
    features, mask = read_caption_features(caption_features)
    return {"caption_features": features, "caption_mask": mask}, len(features)


def _run(pipeline: Pipeline, **options: Any) -> GenerationResult:
    """Generate under a progress bar with tokens per second and accepted length."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f} tokens"),
        TextColumn("{task.fields[speed]}"),
        TimeRemainingColumn(),
        console=stderr,
    )
    with bar:
        task = bar.add_task("generate", total=None, speed="", visible=False)

        def show(snapshot: Snapshot) -> None:
            bar.update(
                task,
                completed=snapshot.tokens_done,
                total=snapshot.tokens_total,
                speed=f"{snapshot.tokens_per_second:.0f} tokens/s  {snapshot.accepted_length:.2f} tokens/pass",
                visible=True,
            )

        return pipeline.generate(progress=show, **options)


def _speculative(pipeline: Pipeline, chosen: dict[str, Any]) -> SpeculativeConfig:
    """The bundle's defaults with what was chosen on the command line. `no_floor` stands for floor = None."""
    settings = pipeline.info.speculative.model_dump()
    settings |= {name: value for name, value in chosen.items() if value is not None}
    if settings.pop("no_floor", False):
        settings["floor"] = None
    return SpeculativeConfig(**settings)


def _floor(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    if text.casefold() == "none":
        return {"no_floor": True}
    try:
        return {"floor": float(text)}
    except ValueError:
        raise InputError(f"--floor {text!r}: expected a number above 0, or none.") from None


def _save(result: GenerationResult, out: Path, grid: bool) -> list[Path]:
    """Write the grid, the single file, or one file per picture into the folder."""
    if grid:
        path = out if out.suffix.lower() == ".png" else out / "grid.png"
        save_png(path, make_grid(result.images), result.parameters)
        return [path]
    if out.suffix.lower() == ".png":
        save_png(out, result.images[0], result.parameters[0])
        return [out]
    paths = []
    for image, parameters in zip(result.images, result.parameters, strict=True):
        subject = parameters.get("class") or f"caption {parameters['caption']}"
        slug = re.sub(r"[^a-z0-9]+", "-", subject.casefold()).strip("-")
        paths.append(out / f"{slug}-seed{parameters['seed']}-{parameters['index']}.png")
        save_png(paths[-1], image, parameters)
    return paths


def _write_json(result: GenerationResult, path: Path) -> None:
    text = json.dumps(result.as_dict(), indent=1)
    if path == Path("-"):
        sys.stdout.write(text + "\n")
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _print_summary(result: GenerationResult, written: list[Path], backend: str) -> None:
    settings = result.parameters[0]
    tokens = sum(s.n_tokens for s in result.stats)
    phases = {name: sum(s.seconds[name] for s in result.stats) for name in result.stats[0].seconds}
    table = plain_table("", "")
    rows = {
        "pictures": str(len(result.images)),
        "rule": settings["rule"] + (" (lossy; --rule lossless is exact)" if result.lossy else " (lossless)"),
        "accepted length": f"{result.accepted_length:.2f} tokens per target pass",
        "drift per token": f"{result.drift_per_token:.4f} total variation",
        "speed": f"{tokens / result.seconds:.0f} tokens/s, {result.seconds / len(result.images):.2f} s a picture",
        "time": "  ".join(f"{name} {seconds / result.seconds:.0%}" for name, seconds in phases.items()),
        "written": str(written[0]) if len(written) == 1 else f"{len(written)} files in {written[0].parent}",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    stdout.print(table)
    stdout.print(backend, markup=False)
