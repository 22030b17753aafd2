"""`coolsd-trt profile`: where the time of a run goes, what bounds it, and two runs side by side."""

from __future__ import annotations

import json
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Annotated, Any

import typer

from ...engines.backends import BACKENDS
from ...engines.bundle import Bundle
from ...engines.loader import LoadedEngines, load_engines
from ...runtime import InputError
from ...runtime.condition import ClassCondition
from ..profiling.comparison import compare_reports
from ..profiling.html import html_page
from ..profiling.measure import Subject
from ..profiling.measure import profile as measure
from ..profiling.memory import resident
from ..profiling.report import read_report
from ..profiling.trace_file import trace_events
from . import options
from .captions import read_caption_features
from .classes import resolve_class
from .console import stderr
from .draft_length import DraftLength, speculative_config, this_machine
from .output import writable_files, write_text
from .profile_tables import print_comparison, print_report


def profile(
    ctx: typer.Context,
    bundle: Annotated[Path | None, typer.Argument(help="A bundle of `coolsd-trt build`.")] = None,
    classes: Annotated[
        list[str] | None, typer.Option("--class", "-c", help="Class name or id; default: classes in turn.")
    ] = None,
    caption_features: Annotated[
        Path | None, typer.Option(help="Encoded captions, for models that take captions; see `generate`.")
    ] = None,
    captions: Annotated[list[str] | None, typer.Option("--caption", help="In words; may be repeated.")] = None,
    images: Annotated[int, typer.Option("-n", "--images", min=1, help="Pictures of each class or caption.")] = 1,
    seed: int = 0,
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
    batch_size: Annotated[int, typer.Option(min=1, help="Pictures that share passes.")] = 1,
    backend: Annotated[str, typer.Option(help=f"auto or one of: {', '.join(BACKENDS)}.")] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; default: all cores.")] = None,
    report: Annotated[Path | None, typer.Option("--json", help="Write every figure to this file.")] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Write a timeline for Perfetto (ui.perfetto.dev) or chrome://tracing.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write a page with plots, one file that needs nothing else.")
    ] = None,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="A.json B.json", help="Instead of running: the ratios of two profiles, B over A."),
    ] = None,
) -> None:
    """Profile a run: time by part of a round, pass costs, memory bandwidth, acceptance, and a verdict in words."""
    if compare is not None:
        print_comparison(compare_reports(*map(read_report, compare)), compare)
        return
    if bundle is None:
        raise InputError("BUNDLE is missing. Give the bundle to profile, or --compare with two profiles.")
    base_memory = resident()[0]
    with ExitStack() as stack:
        engines = stack.enter_context(closing(load_engines(bundle, backend, threads=threads)))
        stack.enter_context(writable_files({"--json": report, "--trace": trace, "--html": html}))
        opened = Bundle.open(bundle, verify=False)
        machine = this_machine(opened, engines, ctx.params, batch_size, threads)
        subject = Subject(
            bundle=opened,
            engines=engines,
            prompts=_prompts(engines, classes or [], captions or [], caption_features, images),
            sampling=machine.sampling,
            speculative=speculative_config(engines.info.speculative, ctx.params, machine),
            images_per_prompt=images if classes or captions or caption_features else 1,
            batch_size=batch_size,
            seed=seed,
            threads=threads,
            base_memory=base_memory,
        )
        with stderr.status("profile") as status:
            found, spans = measure(subject, lambda stage: status.update(f"profile: {stage}"))
        if report is not None:
            write_text(report, found.model_dump_json(indent=1))
        if trace is not None:
            write_text(trace, json.dumps(trace_events(spans, f"coolsd-trt {found.setup.bundle}")))
        if html is not None:
            write_text(html, html_page(found))
    print_report(found)


def _prompts(
    engines: LoadedEngines, classes: list[str], captions: list[str], caption_features: Path | None, images: int
) -> dict[str, Any]:
    """The arguments of `Pipeline.generate`; without a choice `images` classes in turn."""
    condition = engines.info.condition
    if isinstance(condition, ClassCondition):
        ids = [resolve_class(text, condition.names) for text in classes]
        return {"class_ids": ids or [i % len(condition.names) for i in range(images)]}
    if caption_features is not None:
        features, mask = read_caption_features(caption_features)
        return {"caption_features": features, "caption_mask": mask}
    if not captions:
        raise InputError("this model takes captions. Use --caption or --caption-features FILE.npz.")
    return {"captions": captions}
