"""`coolsd-trt generate`: classes or captions to PNG files."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from ...engines.backends import BACKENDS_HELP
from ...engines.loader import load_engines
from ...runtime import GenerationResult, InputError, Pipeline
from ...runtime import Progress as Snapshot
from . import options
from .captions import read_caption_features
from .classes import resolve_class
from .console import stderr
from .draft_length import DraftLength, note_if_slow, speculative_config, this_machine
from .output import STDOUT, writable_files, writable_folder
from .pictures import file_of, is_file, print_summary, save_pictures, write_report

Classes = Annotated[list[str] | None, typer.Option("--class", "-c", help="Class name or id; may be repeated.")]
Captions = Annotated[list[str] | None, typer.Option("--caption", help="What to paint, in words; may be repeated.")]
CaptionFeatures = Annotated[
    Path | None, typer.Option(help="Encoded captions, features (captions x tokens x width) and mask, an .npz.")
]
Images = Annotated[int, typer.Option("-n", "--images", help="Pictures of each class or caption.")]
Out = Annotated[Path, typer.Option(help="Folder for the pictures; or FILE.png for a single picture or the grid.")]
Grid = Annotated[bool, typer.Option("--grid", help="Write one picture with all of them.")]
Seed = Annotated[int, typer.Option(help="Picture i draws from the generator (seed, first index + i).")]
FirstIndex = Annotated[int, typer.Option(help="Start there, to make one picture of an earlier run again.")]
Report = Annotated[Path | None, typer.Option("--json", help="Write tokens and statistics to this file; `-` = stdout.")]


def generate(
    ctx: typer.Context,
    bundle: Annotated[Path, typer.Argument(help="A bundle of `coolsd-trt build`.")],
    classes: Classes = None,
    captions: Captions = None,
    caption_features: CaptionFeatures = None,
    images: Images = 1,
    out: Out = Path("pictures"),
    grid: Grid = False,
    seed: Seed = 0,
    first_index: FirstIndex = 0,
    cfg_scale: options.CfgScale = None,
    cfg_interval: options.CfgInterval = None,
    temperature: options.Temperature = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    top_p_first: options.TopPFirst = None,
    rule: options.RuleName = None,
    delta: options.Delta = None,
    nu: options.Nu = None,
    floor: options.Floor = None,
    lantern_k: options.LanternK = None,
    lantern_delta: options.LanternDelta = None,
    lantern_lambda: options.LanternLambda = None,
    resampling: options.Resampling = None,
    draft_length: DraftLength = None,
    tree: options.TreeChoice = None,
    tree_nodes: options.TreeNodes = None,
    tree_branches: options.TreeBranches = None,
    batch_size: Annotated[int, typer.Option(help="Pictures that share passes.")] = 8,
    backend: Annotated[str, typer.Option(help=f"auto or one of: {BACKENDS_HELP}")] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; default: all cores.")] = None,
    report: Report = None,
) -> None:
    """Generate pictures of classes, or of captions."""
    file = file_of(out, grid)
    engines = load_engines(bundle, backend, threads=threads)
    with (
        Pipeline(engines) as pipeline,
        writable_files({"--out": file, "--json": report}),
        nullcontext() if file else writable_folder(out, "--out"),
    ):
        prompts, count = _prompts(pipeline, classes or [], captions or [], caption_features)
        _require_room(out, grid, count * images)
        machine = this_machine(bundle, engines, ctx.params, min(batch_size, count * images), threads)
        config = speculative_config(pipeline.info.speculative, ctx.params, machine)
        result = _run(
            pipeline,
            **prompts,
            images_per_prompt=images,
            seed=seed,
            first_index=first_index,
            batch_size=batch_size,
            speculative=config,
            **options.sampling_options(ctx.params),
        )
        written = _save(result, out, grid, _columns(images, count), report)
        note_if_slow(result, config, machine)
    if report != STDOUT:
        print_summary(result, written, f"{engines.backend}: {engines.backend_reason}")


def _save(result: GenerationResult, out: Path, grid: bool, columns: int | None, report: Path | None) -> list[Path]:
    """The pictures' paths."""
    written = save_pictures(result, out, grid, columns)
    if report is not None:
        write_report(result, report)
    return written


def _require_room(out: Path, grid: bool, pictures: int) -> None:
    if is_file(out) and not grid and pictures > 1:
        raise InputError(f"--out {out}: one file for {pictures} pictures. Add --grid, or give a folder.")


def _prompts(
    pipeline: Pipeline, classes: list[str], captions: list[str], caption_features: Path | None
) -> tuple[dict[str, Any], int]:
    """What `Pipeline.generate` takes of the three options, and how many prompts that is."""
    names = pipeline.info.class_names
    if names and caption_features is None and not captions:
        if not classes:
            raise InputError("--class is missing. `coolsd-trt inspect BUNDLE --classes` lists this model's classes.")
        return {"class_ids": [resolve_class(text, names) for text in classes]}, len(classes)
    if names:
        raise InputError("this model takes classes, not captions. Use --class.")
    if classes or bool(captions) == (caption_features is not None):
        raise InputError("this model takes captions, not classes. Use either --caption or --caption-features FILE.npz.")
    if caption_features is None:
        return {"captions": captions}, len(captions)
    features, mask = read_caption_features(caption_features)
    return {"caption_features": features, "caption_mask": mask}, len(features)


def _columns(images: int, prompts: int) -> int | None:
    """A row per class or caption, where that makes a grid."""
    return images if images > 1 and prompts > 1 else None


def _run(pipeline: Pipeline, **settings: Any) -> GenerationResult:
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

        return pipeline.generate(progress=show, **settings)
