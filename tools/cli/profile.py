"""`coolsd-trt profile`: where the time of a run goes, what bounds it, and two runs side by side."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Annotated, Any

import typer

from ...engines.backends import BACKENDS_HELP
from ...engines.bundle import Bundle
from ...engines.loader import LoadedEngines, load_engines
from ...runtime import InputError
from ...runtime.condition import ClassCondition
from ...runtime.spans import Span
from ..profiling.comparison import compare_reports
from ..profiling.html import html_page
from ..profiling.measure import Subject
from ..profiling.measure import profile as measure
from ..profiling.memory import resident
from ..profiling.report import Report, read_report
from ..profiling.trace_file import trace_events
from . import options
from .captions import read_caption_features
from .classes import resolve_class
from .console import stderr
from .draft_length import DraftLength, speculative_config, this_machine
from .output import writable_files, write_text
from .profile_tables import print_comparison, print_report

Classes = Annotated[
    list[str] | None, typer.Option("--class", "-c", help="Class name or id; may be repeated; default: classes in turn.")
]
Captions = Annotated[list[str] | None, typer.Option("--caption", help="In words; may be repeated.")]
CaptionFeatures = Annotated[Path | None, typer.Option(help="Encoded captions, an .npz; see `generate`.")]
Images = Annotated[int, typer.Option("-n", "--images", min=1, help="Pictures of each class or caption.")]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Write every figure to this file.")]
TraceFile = Annotated[
    Path | None, typer.Option(help="Write a timeline for Perfetto (ui.perfetto.dev) or chrome://tracing.")
]
HtmlFile = Annotated[Path | None, typer.Option(help="Write a page with plots, one file that needs nothing else.")]
Compare = Annotated[
    tuple[Path, Path] | None,
    typer.Option(metavar="A.json B.json", help="Instead of running: the ratios of two profiles, B over A."),
]


def profile(
    ctx: typer.Context,
    bundle: Annotated[Path | None, typer.Argument(help="A bundle of `coolsd-trt build`.")] = None,
    classes: Classes = None,
    captions: Captions = None,
    caption_features: CaptionFeatures = None,
    images: Images = 1,
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
    tree_nodes: options.TreeNodes = None,
    tree_branches: options.TreeBranches = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Pictures that share passes.")] = 1,
    backend: Annotated[str, typer.Option(help=f"auto or one of: {BACKENDS_HELP}")] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; default: all cores.")] = None,
    report: JsonFile = None,
    trace: TraceFile = None,
    html: HtmlFile = None,
    compare: Compare = None,
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
        subject = _subject(bundle, engines, ctx.params, base_memory)
        with stderr.status("profile") as status:
            found, spans = measure(subject, lambda stage: status.update(f"profile: {stage}"))
        _write(found, spans, report, trace, html)
    print_report(found)


def _write(found: Report, spans: list[Span], report: Path | None, trace: Path | None, html: Path | None) -> None:
    if report is not None:
        write_text(report, found.model_dump_json(indent=1))
    if trace is not None:
        write_text(trace, json.dumps(trace_events(spans, f"coolsd-trt {found.setup.bundle}")))
    if html is not None:
        write_text(html, html_page(found))


def _subject(bundle: Path, engines: LoadedEngines, given: Mapping[str, Any], base_memory: int) -> Subject:
    """What the command's parameters ask for."""
    machine = this_machine(bundle, engines, given, given["batch_size"], given["threads"])
    classes, captions, features = (given[name] for name in ("classes", "captions", "caption_features"))
    return Subject(
        bundle=Bundle.open(bundle, verify=False),
        engines=engines,
        prompts=_prompts(engines, classes or [], captions or [], features, given["images"]),
        sampling=machine.sampling,
        speculative=speculative_config(engines.info.speculative, given, machine),
        images_per_prompt=given["images"] if classes or captions or features else 1,
        batch_size=given["batch_size"],
        seed=given["seed"],
        threads=given["threads"],
        base_memory=base_memory,
    )


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
