"""`coolsd-trt evaluate`: settings side by side: accepted length, drift, speed, and the measures of their pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track

from ...engines.backends import BACKENDS_HELP
from ...engines.bundle import Bundle
from ...runtime import InputError, SpeculativeConfig
from ...runtime.protocols import ModelInfo
from ..bench.contenders import Contender, Workload
from ..evaluation.classifier import PictureClassifier
from ..evaluation.folder import RunFolder
from ..evaluation.grid import contenders, default_grid, grid_of_options, read_grid
from ..evaluation.judges import ClassifierJudge, ClipJudge, InceptionJudge, Judge
from ..evaluation.measure import measure
from ..evaluation.plots import check_plot, frontier, pareto_plot
from ..evaluation.table import TITLES, Row, as_csv, as_json, shown
from . import options
from .console import plain_table, stderr, stdout
from .output import STDOUT, writable_files, writable_folder, write_text

# Of a table in a file; in a terminal it is as wide as that.
PIPED_WIDTH = 200
_GRID, _PICTURES, _OUTPUT = "Grid", "Pictures", "Output"


def _values(help: str, *names: str) -> Any:
    return typer.Option(*names, help=f"{help} May be repeated.", rich_help_panel=_GRID)


def _option(panel: str, help: str, *names: str, **settings: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=panel, **settings)


Classifier = Annotated[
    Path | None,
    _option(_PICTURES, "Fréchet distance and class accuracy by this classifier, such as tools/demo/classifier."),
]
ReferenceImages = Annotated[
    Path | None, _option(_PICTURES, "FID against the pictures of this folder; needs the metrics extra.")
]
ClipModel = Annotated[str | None, _option(_PICTURES, "CLIP score by this Hugging Face model; needs the metrics extra.")]
RunPath = Annotated[
    Path | None, _option(_OUTPUT, "Folder of what is measured; a run that was stopped goes on from there.")
]


def evaluate(
    ctx: typer.Context,
    bundle: Annotated[Path, typer.Argument(help="A bundle with a draft.")],
    grid: Annotated[Path | None, _option(_GRID, "JSON list of settings; a list of values is all of them.")] = None,
    rule: Annotated[list[str] | None, _values("Rule; `ar` is always there.")] = None,
    delta: Annotated[list[float] | None, _values("Mean relaxation.")] = None,
    nu: Annotated[list[float] | None, _values("Annealing rate of `cool`.")] = None,
    floor: Annotated[list[str] | None, _values("Least omega of `cool` and `linear`; `none` = the paper's.")] = None,
    draft_length: Annotated[list[int] | None, _values("L.")] = None,
    tree: Annotated[list[str] | None, _values("Tree, `none` = chain.")] = None,
    tree_nodes: Annotated[list[int] | None, _values("Drafted tokens of `--tree dynamic`.")] = None,
    tree_branches: Annotated[list[int] | None, _values("Branches of `--tree dynamic`.")] = None,
    lantern_k: Annotated[list[int] | None, _values("Neighbours of `lantern` and `lantern++`.")] = None,
    lantern_delta: Annotated[list[float] | None, _values("Bound of `lantern`.")] = None,
    lantern_lambda: Annotated[list[float] | None, _values("Bound of `lantern++`.")] = None,
    resampling: Annotated[list[str] | None, _values("optimal or native, for LANTERN's rules.")] = None,
    images: Annotated[int, _option(_PICTURES, "Pictures of each setting, classes or captions in turn.", min=2)] = 64,
    batch_size: Annotated[int, _option(_PICTURES, "Pictures that share passes.", min=1)] = 1,
    seed: Annotated[int, _option(_PICTURES, "Picture i has the same generator in every setting.", min=0)] = 0,
    captions: Annotated[Path | None, _option(_PICTURES, "Text file, a caption a line.")] = None,
    classifier: Classifier = None,
    reference_images: ReferenceImages = None,
    clip_model: ClipModel = None,
    cfg_scale: options.CfgScale = None,
    cfg_interval: options.CfgInterval = None,
    temperature: options.Temperature = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    top_p_first: options.TopPFirst = None,
    backend: Annotated[str, typer.Option(help=f"auto or one of: {BACKENDS_HELP}")] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; default: all cores.")] = None,
    run: RunPath = None,
    report: Annotated[Path | None, _option(_OUTPUT, "Write every figure to this file.", "--json")] = None,
    table: Annotated[Path | None, _option(_OUTPUT, "Write every figure to this file.", "--csv")] = None,
    plot: Annotated[Path | None, _option(_OUTPUT, "Pareto plot, .png or .svg; needs the plot extra.")] = None,
) -> None:
    """Compare settings with `ar` on the same pictures, interleaved; intervals are 95 % bootstrap over pictures.

    Lossy settings leave the target's distribution by the drift that is printed: its total variation per token.
    """
    info = Bundle.open(bundle, verify=False).info
    check_plot(plot)
    rows = contenders(_grid(info, grid, rule, ctx.params))
    sampling = {name: v for name, v in options.sampling_options(ctx.params).items() if v is not None}
    workload = Workload(images, batch_size, seed, sampling, _captions(info, captions))
    judges = _judges(info, classifier, reference_images, clip_model)
    folder = run or Path("runs") / f"evaluate-{bundle.name}"
    with ExitStack() as stack:
        stack.enter_context(writable_files({"--json": report, "--csv": table, "--plot": plot}))
        stack.enter_context(writable_folder(folder, "--run"))
        measured, prompts = measure(
            bundle, folder, rows, workload, backend, threads, lambda todo: track(todo, "evaluate", console=stderr)
        )
        found = [_judged(row, rows[0], measured, prompts, judges) for row in rows]
        _write(found, {"bundle": info.name, **_public(workload)}, report, table, plot)
    if report != STDOUT:
        _print(found)
        stderr.print(f"pictures and measurements: {folder}", markup=False)


def _judged(
    row: Contender, baseline: Contender, folder: RunFolder, prompts: Sequence[int | str], judges: Sequence[Judge]
) -> Row:
    pictures = [folder.picture(row, i) for i in range(len(prompts))]
    figures = row.sample.figures(baseline.sample)
    for judge in judges:
        figures |= judge.judge(pictures, prompts)
    return Row(row, figures)


def _grid(
    info: ModelInfo, file: Path | None, rules: Sequence[str] | None, parameters: Mapping[str, Any]
) -> list[SpeculativeConfig]:
    given = {name: parameters[name] for name in SpeculativeConfig.model_fields if name != "rule" and parameters[name]}
    if file is not None and (given or rules):
        raise InputError(f"--grid {file}: give either a file or options such as --rule, not both.")
    if file is not None:
        return read_grid(file)
    for name in ("floor", "tree"):
        given |= {name: [options.read_value(name, text) for text in given[name]]} if name in given else {}
    if not rules and not given:
        return default_grid(info.speculative.draft_length)
    return grid_of_options(rules or ["lossless", "cool"], given)


def _captions(info: ModelInfo, file: Path | None) -> tuple[str, ...]:
    if info.class_names:
        if file is not None:
            raise InputError(f"--captions {file}: this model takes classes; leave the option out.")
        return ()
    if file is None:
        raise InputError("this model takes captions. Give --captions FILE, a caption a line.")
    lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    if not any(lines):
        raise InputError(f"--captions {file}: no caption in it. Expected a caption a line.")
    return tuple(line for line in lines if line)


def _judges(info: ModelInfo, classifier: Path | None, reference: Path | None, clip_model: str | None) -> list[Judge]:
    judges: list[Judge] = []
    if classifier is not None:
        judges.append(ClassifierJudge(PictureClassifier.load(classifier), info.class_names))
    if reference is not None:
        judges.append(InceptionJudge(reference))
    if clip_model is not None:
        if info.class_names:
            raise InputError("--clip-model: CLIP score compares pictures with captions, and this model takes classes.")
        judges.append(ClipJudge(clip_model))
    return judges


def _public(workload: Workload) -> dict[str, Any]:
    return {
        "images": workload.images,
        "batch_size": workload.batch_size,
        "seed": workload.seed,
        "sampling": dict(workload.sampling),
    }


def _write(
    rows: list[Row], setting: Mapping[str, Any], report: Path | None, table: Path | None, plot: Path | None
) -> None:
    if report is not None:
        write_text(report, as_json(rows, setting))
    if table is not None:
        write_text(table, as_csv(rows))
    if plot is not None:
        pareto_plot(rows, plot)


def _print(rows: Sequence[Row]) -> None:
    """The table; on the frontier of drift and speed is what no other setting beats in both."""
    names = [name for name in TITLES if name in rows[0].figures and name != "target_passes"]
    best = frontier([row for row in rows if row.figures["drift_per_token"].value >= 0], "speed_up", "drift_per_token")
    output = plain_table("setting", *(TITLES[name] for name in names), "frontier")
    for row in rows:
        output.add_row(row.contender.name, *(shown(row.figures[name]) for name in names), "*" if row in best else "")
    console = stdout if stdout.is_terminal else Console(width=PIPED_WIDTH, highlight=False)
    console.print(output)
