"""`python -m coolsd_trt.tools.training`: data, tokenizer, encode, decoder, target, draft, sample, export and more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from ...runtime.errors import InputError
from ..cli.errors import run_app
from . import emoji
from .loop import LoopSettings, train

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Train the demo models on emoji pictures.")
console = Console()

DataOption = Annotated[Path, typer.Option("--data", help="Folder written by `data` and `encode`.")]
OutOption = Annotated[Path, typer.Option("--out", help="Folder for checkpoint, best weights and log.")]
StepsOption = Annotated[int, typer.Option("--steps", min=1, help="Optimizer steps.")]
MinutesOption = Annotated[
    float | None, typer.Option("--minutes", min=0.01, help="Let the schedule end after this much training time.")
]
RateOption = Annotated[float, typer.Option("--learning-rate", min=0.0, help="Peak learning rate.")]
BatchOption = Annotated[int, typer.Option("--batch", min=1, help="Pictures per step.")]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Seed of weights, batches, dropout and noise.")]
ThreadsOption = Annotated[int, typer.Option("--threads", min=0, help="CPU threads; 0 = all.")]
PrecisionOption = Annotated[str, typer.Option("--precision", help="fp32 or bf16 (autocast).")]
CompileOption = Annotated[bool, typer.Option("--compile", help="Use torch.compile (needs a C++ compiler).")]
ResumeOption = Annotated[bool, typer.Option("--resume", help="Continue from the checkpoint in --out.")]
EveryOption = Annotated[int, typer.Option("--validate-every", min=1, help="Steps between validations and checkpoints.")]
TokenizerRun = Annotated[Path, typer.Option("--tokenizer", help="Run folder of `tokenizer`.")]
TargetRun = Annotated[Path, typer.Option("--target", help="Run folder of `target`.")]
DraftRun = Annotated[Path, typer.Option("--draft", help="Run folder of `draft`.")]


@app.command()
def data(
    out: Annotated[Path, typer.Option("--out", help="Folder to write.")] = Path("data"),
    archive: Annotated[Path | None, typer.Option("--archive", help="Package .tgz, instead of running npm.")] = None,
) -> None:
    """Fetch the emoji package, check it, and write emoji.npz and classes.json."""
    prepared = emoji.prepare(emoji.fetch(archive, out), out)
    console.print(
        f"{len(prepared.images)} pictures, {len(prepared.classes)} classes, {len(set(prepared.bases.tolist()))} bases, "
        f"{int(prepared.held_out.sum())} pictures held out: {out / emoji.DATA_NAME}"
    )


@app.command()
def tokenizer(
    data: DataOption = Path("data"),
    out: OutOption = Path("runs/tokenizer"),
    steps: StepsOption = 2000,
    minutes: MinutesOption = None,
    learning_rate: RateOption = 1.5e-3,
    batch: BatchOption = 8,
    seed: SeedOption = 0,
    threads: ThreadsOption = 0,
    precision: PrecisionOption = "fp32",
    validate_every: EveryOption = 150,
    resume: ResumeOption = False,
) -> None:
    """Train the VQ tokenizer."""
    from .tokenizer import TokenizerTask
    from .vq import VqConfig

    _seed(seed, threads)
    task = TokenizerTask(emoji.EmojiData.load(data), VqConfig(), batch=batch)
    loop = LoopSettings(
        steps, learning_rate, seed, minutes, weight_decay=1e-4, beta2=0.99, ema_decay=0.995, precision=precision,
        validate_every=validate_every, checkpoint_every=validate_every,
    )  # fmt: skip
    train(task, loop, out, resume=resume)


@app.command()
def decoder(
    data: DataOption = Path("data"),
    tokenizer: TokenizerRun = Path("runs/tokenizer"),
    out: OutOption = Path("runs/decoder"),
    steps: StepsOption = 1000,
    minutes: MinutesOption = None,
    learning_rate: RateOption = 5e-4,
    batch: BatchOption = 8,
    seed: SeedOption = 0,
    threads: ThreadsOption = 0,
    precision: PrecisionOption = "fp32",
    validate_every: EveryOption = 100,
    resume: ResumeOption = False,
) -> None:
    """Fit the tokenizer's decoder to the thrifty codes `encode` writes; the codes stay as they are."""
    from .decoder import DecoderTask
    from .export import load_tokenizer, run_id

    _seed(seed, threads)
    task = DecoderTask(
        emoji.EmojiData.load(data), load_tokenizer(tokenizer), batch=batch, tokenizer_id=run_id(tokenizer)
    )
    loop = LoopSettings(
        steps, learning_rate, seed, minutes, weight_decay=1e-4, beta2=0.99, ema_decay=0.99, precision=precision,
        validate_every=validate_every, checkpoint_every=validate_every,
    )  # fmt: skip
    train(task, loop, out, resume=resume)


@app.command()
def encode(
    data: DataOption = Path("data"),
    tokenizer: TokenizerRun = Path("runs/tokenizer"),
    variants: Annotated[int, typer.Option("--variants", min=1, help="Augmented copies of each picture.")] = 8,
    seed: SeedOption = 0,
    threads: ThreadsOption = 0,
) -> None:
    """Turn the pictures into codes, several shifted and mirrored variants of each."""
    from .codes import CODES_NAME
    from .codes import encode as encode_pictures
    from .export import load_tokenizer

    _seed(seed, threads)
    codes = encode_pictures(emoji.EmojiData.load(data), load_tokenizer(tokenizer), data, variants, seed)
    console.print(f"{codes.codes.shape[0]} pictures x {codes.codes.shape[1]} variants: {data / CODES_NAME}")


@app.command()
def target(
    data: DataOption = Path("data"),
    out: OutOption = Path("runs/target"),
    steps: StepsOption = 3000,
    minutes: MinutesOption = None,
    learning_rate: RateOption = 1.5e-3,
    batch: BatchOption = 16,
    layers: Annotated[int, typer.Option("--layers", min=1, help="Transformer blocks.")] = 12,
    dropout: Annotated[float, typer.Option("--dropout", min=0.0, max=0.9, help="Of embeddings and blocks.")] = 0.1,
    seed: SeedOption = 0,
    threads: ThreadsOption = 0,
    precision: PrecisionOption = "bf16",
    compile: CompileOption = False,
    validate_every: EveryOption = 100,
    resume: ResumeOption = False,
) -> None:
    """Train the class-conditional target on the codes."""
    from .codes import Codes
    from .llamagen import TargetConfig
    from .target import TargetTask

    _seed(seed, threads)
    classes = json.loads((data / emoji.CLASSES_NAME).read_text()) if (data / emoji.CLASSES_NAME).is_file() else []
    codes = Codes.load(data)
    task = TargetTask(codes, TargetConfig(n_layer=layers, num_classes=len(classes)), batch=batch, dropout=dropout)
    if compile:
        task.forward = torch.compile(task.module)
    loop = LoopSettings(
        steps, learning_rate, seed, minutes, warmup_steps=100, weight_decay=0.05, ema_decay=0.995, precision=precision,
        validate_every=validate_every, checkpoint_every=validate_every,
    )  # fmt: skip
    train(task, loop, out, resume=resume)


@app.command()
def draft(
    data: DataOption = Path("data"),
    target: TargetRun = Path("runs/target"),
    out: OutOption = Path("runs/draft"),
    steps: StepsOption = 3000,
    minutes: MinutesOption = None,
    learning_rate: RateOption = 1e-3,
    batch: BatchOption = 16,
    ce_weight: Annotated[float, typer.Option("--ce-weight", min=0.0, help="Weight of the cross entropy.")] = 0.1,
    noise: Annotated[float, typer.Option("--noise", min=0.0, help="Width of the uniform feature noise.")] = 0.2,
    second_pass: Annotated[
        float, typer.Option("--second-pass", min=0.0, help="Weight of a pass on the draft's own features.")
    ] = 0.0,
    seed: SeedOption = 0,
    threads: ThreadsOption = 0,
    precision: PrecisionOption = "fp32",
    validate_every: EveryOption = 100,
    resume: ResumeOption = False,
) -> None:
    """Train the EAGLE draft on the target's features."""
    from .codes import Codes
    from .draft import DraftTask
    from .export import load_target, run_id

    _seed(seed, threads)
    model = load_target(target)
    task = DraftTask(
        Codes.load(data),
        model,
        batch=batch,
        ce_weight=ce_weight,
        noise=noise,
        second_pass=second_pass,
        target_id=run_id(target),
    )
    loop = LoopSettings(
        steps, learning_rate, seed, minutes, warmup_steps=50, ema_decay=0.99, gradient_clip=0.5, precision=precision,
        validate_every=validate_every, checkpoint_every=validate_every,
    )  # fmt: skip
    train(task, loop, out, resume=resume)


@app.command()
def classifier(
    data: DataOption = Path("data"),
    out: OutOption = Path("runs/classifier"),
    export: Annotated[Path, typer.Option("--export", help="Folder for the finished classifier.")] = Path(
        "demo/classifier"
    ),
    steps: StepsOption = 2500,
    minutes: MinutesOption = None,
    learning_rate: RateOption = 3e-3,
    batch: BatchOption = 64,
    seed: SeedOption = 0,
    threads: ThreadsOption = 0,
    validate_every: EveryOption = 250,
    resume: ResumeOption = False,
) -> None:
    """Train the classifier that `evaluate --classifier` judges pictures with, and write it."""
    from .classifier import ClassifierTask, write_classifier

    _seed(seed, threads)
    pictures = emoji.EmojiData.load(data)
    loop = LoopSettings(
        steps, learning_rate, seed, minutes, weight_decay=0.05, ema_decay=0.99,
        validate_every=validate_every, checkpoint_every=validate_every,
    )  # fmt: skip
    train(ClassifierTask(pictures, batch=batch), loop, out, resume=resume)
    write_classifier(out, pictures, export)
    console.print(f"Written: {export}")


@app.command()
def sample(
    data: DataOption = Path("data"),
    tokenizer: TokenizerRun = Path("runs/tokenizer"),
    target: TargetRun = Path("runs/target"),
    out: Annotated[Path, typer.Option("--out", help="PNG to write.")] = Path("sample.png"),
    names: Annotated[
        list[str] | None, typer.Option("--class", help="Class name; repeat. Default: ten of them.")
    ] = None,
    per_class: Annotated[int, typer.Option("-n", min=1, help="Pictures per class (one row each).")] = 8,
    cfg: Annotated[float, typer.Option("--cfg", help="Guidance scale.")] = 2.0,
    temperature: Annotated[float, typer.Option("--temperature", min=1e-3)] = 1.0,
    seed: SeedOption = 0,
    threads: ThreadsOption = 0,
) -> None:
    """Draw pictures with the torch target, one row per class."""
    from .export import decoded, load_target, load_tokenizer, picture_grid
    from .llamagen import sample as draw

    _seed(seed, threads)
    classes = emoji.EmojiData.load(data).classes
    chosen = names or [name for name in _SHOWN_CLASSES if name in classes]
    unknown = [name for name in chosen if name not in classes]
    if unknown:
        raise InputError(
            f"--class {unknown[0]!r}: no such class. {data / emoji.CLASSES_NAME} lists all {len(classes)}."
        )
    ids = torch.tensor([classes.index(name) for name in chosen]).repeat_interleave(per_class)
    tokens = draw(load_target(target), ids, cfg, torch.Generator().manual_seed(seed), temperature)
    picture_grid(decoded(load_tokenizer(tokenizer), tokens), per_class).save(out)
    console.print(f"{len(ids)} pictures, rows {', '.join(chosen)}: {out}")


@app.command()
def reconstruct(
    data: DataOption = Path("data"),
    tokenizer: TokenizerRun = Path("runs/tokenizer"),
    out: Annotated[Path, typer.Option("--out", help="PNG to write.")] = Path("reconstructions.png"),
    threads: ThreadsOption = 0,
) -> None:
    """Draw held-out pictures above their reconstructions from the codes `encode` would write."""
    import numpy as np

    from .codes import ThriftyEncoder
    from .export import decoded, load_tokenizer, picture_grid
    from .pictures import thinned
    from .vq import from_uint8

    _seed(0, threads)
    pictures = emoji.EmojiData.load(data)
    rows = np.flatnonzero(pictures.held_out)
    originals = pictures.images[rows[np.linspace(0, len(rows) - 1, 48).astype(int)]]
    model = load_tokenizer(tokenizer)
    encoder = ThriftyEncoder.fit(model, thinned(pictures.images, 256))
    with torch.no_grad():
        again = decoded(model, encoder(from_uint8(torch.from_numpy(originals))))
    pairs = np.concatenate([originals.reshape(4, 12, 64, 64, 3), again.reshape(4, 12, 64, 64, 3)], 1)
    picture_grid(pairs.reshape(-1, 64, 64, 3), 12).save(out, optimize=True)
    console.print(f"48 held-out pictures: {out}")


@app.command()
def export(
    data: DataOption = Path("data"),
    tokenizer: TokenizerRun = Path("runs/tokenizer"),
    target: TargetRun = Path("runs/target"),
    draft: DraftRun = Path("runs/draft"),
    decoder: Annotated[
        Path | None, typer.Option("--decoder", help="Run folder of `decoder`; without it, the tokenizer's own decoder.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder to write.")] = Path("demo"),
) -> None:
    """Write image_tokenizer/, target/ and draft/ as `coolsd-trt build` reads them, and the loss curves."""
    from . import export as files

    model = files.load_target(target)
    files.write_tokenizer(files.load_tokenizer(decoder or tokenizer), out / "image_tokenizer")
    files.write_target(model, list(emoji.EmojiData.load(data).classes), out / "target")
    files.write_draft(files.load_draft(draft), model.config, out / "draft")
    runs = {"tokenizer": tokenizer, "decoder": decoder, "target": target, "draft": draft}
    files.draw_curves({name: run for name, run in runs.items() if run}, out / "curves.png")
    console.print(f"Written: {out}")


_SHOWN_CLASSES = (
    "face-smiling", "cat-face", "heart", "country-flag", "person-role", "animal-mammal", "food-fruit", "plant-flower",
    "transport-ground", "sky & weather",
)  # fmt: skip


def _seed(seed: int, threads: int) -> None:
    torch.manual_seed(seed)
    if threads:
        torch.set_num_threads(threads)


if __name__ == "__main__":
    run_app(app)
