"""`python -m coolsd_trt.tools.evaluation.report BUNDLE`: the paper's ablations on a pair, run and written up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.progress import track

from ...engines.bundle import Bundle
from ...runtime import SpeculativeConfig
from ..bench.contenders import Contender, Workload
from ..bench.machine import machine
from ..cli.console import stderr
from ..cli.errors import run_app
from ..cli.output import writable_folder, write_text
from .ablations import quality_settings, speed_settings
from .classifier import PictureClassifier
from .findings import Drawn, Findings, Run
from .grid import contenders
from .judges import ClassifierJudge
from .measure import measure
from .page import page
from .plots import require_matplotlib
from .recorded import record


def report(
    bundle: Annotated[Path, typer.Argument(help="A class-conditional bundle with a draft.")],
    out: Annotated[Path, typer.Option(help="Page to write; its plots go into a folder of the same name.")] = Path(
        "docs/results.md"
    ),
    images: Annotated[int, typer.Option(min=4, help="Pictures of each setting that is judged by its pictures.")] = 99,
    speed_images: Annotated[int, typer.Option(min=2, help="Pictures of each setting that is timed, one by one.")] = 12,
    recorded_images: Annotated[int, typer.Option(min=2, help="Pictures whose distributions are recorded.")] = 33,
    batch_size: Annotated[int, typer.Option(min=1, help="Pictures that share passes where nothing is timed.")] = 11,
    cfg: Annotated[float, typer.Option(help="Guidance scale.")] = 3.0,
    seed: int = 0,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; default: all cores.")] = None,
    classifier: Annotated[Path, typer.Option(help="Judges the pictures.")] = Path("tools/demo/classifier"),
    run: Annotated[Path, typer.Option(help="Folder of what is measured; a report that was stopped goes on.")] = Path(
        "runs/report"
    ),
) -> None:
    """Run the ablations of the paper on a pair and write a page with what held and what did not.

    For small vocabularies: the exact law of LANTERN's own residual takes a residual per token of the vocabulary.
    """
    require_matplotlib("the report's plots")
    judge = ClassifierJudge(PictureClassifier.load(classifier), Bundle.open(bundle, verify=False).info.class_names)
    sampling = {"cfg_scale": cfg}
    with writable_folder(out.with_suffix(""), "--out"), writable_folder(run, "--run"):
        stderr.print("distributions of lossless rounds")
        recorded = record(bundle, run / "recorded.json", recorded_images, batch_size, seed + 1, sampling, threads)

        def drawn(name: str, configs: Sequence[SpeculativeConfig], workload: Workload, with_pictures: bool) -> Run:
            rows = contenders(configs)
            folder, _ = measure(
                bundle, run / name, rows, workload, "auto", threads, lambda todo: track(todo, name, console=stderr)
            )
            found = []
            for row in rows:
                pictures = [folder.picture(row, i) for i in range(workload.images)] if with_pictures else []
                found.append(_drawn(row, rows[0], judge, pictures))
            return Run(found, workload)

        judged = quality_settings(recorded.deltas, recorded.drawn_ks)
        quality = drawn("quality", judged, Workload(images, batch_size, seed, sampling), True)
        speed = drawn("speed", speed_settings(), Workload(speed_images, 1, seed, sampling), False)
        setting = {"bundle": bundle.name, "machine": machine(), "cfg": f"{cfg:g}"}
        write_text(out, page(Findings(recorded, quality, speed, setting), out.with_suffix("")))
    typer.echo(f"written: {out}")


def _drawn(row: Contender, baseline: Contender, judge: ClassifierJudge, pictures: Sequence[Path]) -> Drawn:
    figures = row.sample.figures(baseline.sample)
    if not pictures:
        return Drawn(row.config, row.sample, figures, np.empty(0))
    features = judge.features(pictures)
    classes = len(judge.classifier.class_names)
    figures["class_accuracy"] = judge.accuracy(features, [i % classes for i in range(len(pictures))])
    return Drawn(row.config, row.sample, figures, judge.distances(features))


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(report)
    run_app(app)
