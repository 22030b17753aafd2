"""The one training loop all three models share: seeded, resumable, atomic, with progress and a JSONL log."""

from __future__ import annotations

import abc
import contextlib
import json
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from safetensors.torch import save_file
from torch import Tensor, nn

from ...runtime.errors import InputError

CHECKPOINT_NAME = "checkpoint.pt"
LOG_NAME = "log.jsonl"
BEST_NAME = "best.safetensors"
_STREAM_BATCH, _STREAM_TORCH = 0, 1


@dataclass(frozen=True)
class LoopSettings:
    """How long and how fast to train.

    steps is the number of optimizer steps. With `minutes` set, the learning-rate schedule follows the training time
    used so far instead of the step count and the run ends when the time is used up (or after `steps`): it always ends
    on time on a busy machine, but is no longer reproducible step for step.
    """

    steps: int
    learning_rate: float
    seed: int = 0
    minutes: float | None = None
    warmup_steps: int = 50
    final_lr_fraction: float = 0.02
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.95
    gradient_clip: float = 1.0
    ema_decay: float = 0.0
    validate_every: int = 100
    checkpoint_every: int = 100
    precision: str = "fp32"


class Task(abc.ABC):
    """One model to train: supplies the loss of a step and the held-out metrics; the loop does the rest."""

    module: nn.Module
    settings: dict[str, Any]

    @abc.abstractmethod
    def loss(self, rng: np.random.Generator) -> tuple[Tensor, dict[str, float]]:
        """Scalar loss of one batch drawn with `rng`, and numbers to log."""

    @abc.abstractmethod
    def validate(self) -> dict[str, float]:
        """Held-out metrics; `loss` (lower is better) picks the best weights."""

    def after_step(self, optimizer: torch.optim.Optimizer, rng: np.random.Generator) -> None:  # noqa: B027
        """Hook after each optimizer step, for example to revive dead codes."""


@dataclass
class TrainingState:
    """What a checkpoint holds besides the weights. elapsed is training time in seconds, kept over resumes."""

    step: int = 0
    elapsed: float = 0.0
    best_loss: float = math.inf
    best_step: int = 0
    records: list[dict[str, float]] = field(default_factory=list)


def train(task: Task, loop: LoopSettings, out_dir: Path, *, resume: bool = False) -> TrainingState:
    """Train `task.module` and leave checkpoint.pt, best.safetensors and log.jsonl in `out_dir`.

    Every random number of step k comes from (seed, k), so a resumed run repeats an uninterrupted one exactly.
    Raises InputError if `out_dir` already holds a checkpoint and `resume` is off, or if it has other settings.
    """
    if loop.precision not in ("fp32", "bf16"):
        raise InputError(f"--precision: found {loop.precision!r}, expected fp32 or bf16.")
    out_dir.mkdir(parents=True, exist_ok=True)
    optimizer = _make_optimizer(task.module, loop)
    ema = Ema(task.module, loop.ema_decay)
    state = _restore(task, loop, optimizer, ema, out_dir, resume)
    with _progress_bar() as progress:
        bar = progress.add_task(out_dir.name, total=loop.steps, completed=state.step, note="")
        started = time.monotonic() - state.elapsed
        try:
            while state.step < loop.steps and not _out_of_time(loop, state):
                metrics = _one_step(task, loop, optimizer, ema, state)
                state.elapsed = time.monotonic() - started
                state.records.append({"step": state.step, "elapsed_s": round(state.elapsed, 2), **metrics})
                progress.update(bar, completed=state.step, note=f"loss {metrics['loss']:.4f}")
                last = state.step >= loop.steps or _out_of_time(loop, state)
                if state.step % loop.validate_every == 0 or last:
                    _validate(task, ema, state, out_dir, progress)
                if state.step % loop.checkpoint_every == 0 or last:
                    _save(task, loop, optimizer, ema, state, out_dir)
        except KeyboardInterrupt:
            _save(task, loop, optimizer, ema, state, out_dir)
            progress.console.print(f"Stopped at step {state.step}; continue with --resume.")
            raise
    return state


class Ema:
    """Exponential moving average of the trained parameters; decay 0 switches it off."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        self.shadow = {n: p.detach().clone() for n, p in module.named_parameters()} if decay else {}

    def update(self, module: nn.Module, step: int) -> None:
        """Mix the parameters in. The decay ramps up so that early weights are forgotten."""
        decay = min(self.decay, (1 + step) / (10 + step))
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                if name in self.shadow:
                    self.shadow[name].lerp_(parameter, 1 - decay)

    @contextlib.contextmanager
    def swapped_in(self, module: nn.Module) -> Iterator[None]:
        """Run the block with the averaged weights in place of the current ones."""
        parameters = {n: p for n, p in module.named_parameters() if n in self.shadow}
        kept = {n: p.detach().clone() for n, p in parameters.items()}
        try:
            with torch.no_grad():
                for name, parameter in parameters.items():
                    parameter.copy_(self.shadow[name])
            yield
        finally:
            with torch.no_grad():
                for name, parameter in parameters.items():
                    parameter.copy_(kept[name])


def step_rng(seed: int, step: int, stream: int = _STREAM_BATCH) -> np.random.Generator:
    """The generator of one training step: a function of (seed, step) alone."""
    return np.random.default_rng(np.random.SeedSequence([seed, step, stream]))


def learning_rate(loop: LoopSettings, state: TrainingState) -> float:
    """Linear warm-up, then cosine to `final_lr_fraction` of the peak."""
    done = state.step / loop.steps
    if loop.minutes is not None:
        done = max(done, state.elapsed / (60 * loop.minutes))
    cosine = 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
    warm = min(1.0, (state.step + 1) / max(1, loop.warmup_steps))
    return loop.learning_rate * warm * (loop.final_lr_fraction + (1 - loop.final_lr_fraction) * cosine)


def autocast(precision: str) -> contextlib.AbstractContextManager[Any]:
    """bf16 autocast on the CPU, or nothing for fp32."""
    return torch.autocast("cpu", torch.bfloat16) if precision == "bf16" else contextlib.nullcontext()


def write_atomically(path: Path, write: Any) -> None:
    """Call `write(temporary_path)` and rename the result to `path`, so that a reader never sees half a file."""
    temporary = path.with_name(f".{path.name}.partial{path.suffix}")
    try:
        write(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _one_step(task: Task, loop: LoopSettings, optimizer: Any, ema: Ema, state: TrainingState) -> dict[str, float]:
    rng = step_rng(loop.seed, state.step)
    torch.manual_seed(int(step_rng(loop.seed, state.step, _STREAM_TORCH).integers(2**62)))
    rate = learning_rate(loop, state)
    for group in optimizer.param_groups:
        group["lr"] = rate
    task.module.train()
    with autocast(loop.precision):
        loss, metrics = task.loss(rng)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    trained = [p for p in task.module.parameters() if p.grad is not None]
    norm = float(nn.utils.clip_grad_norm_(trained, loop.gradient_clip))
    if not math.isfinite(norm):
        raise InputError(f"Training diverged at step {state.step}: gradient norm {norm}. Lower --learning-rate.")
    optimizer.step()
    task.after_step(optimizer, rng)
    state.step += 1
    ema.update(task.module, state.step)
    return {"loss": float(loss.detach()), **metrics, "learning_rate": rate, "gradient_norm": norm}


def _validate(task: Task, ema: Ema, state: TrainingState, out_dir: Path, progress: Progress) -> None:
    task.module.eval()
    with ema.swapped_in(task.module), torch.no_grad():
        held_out = task.validate()
        if held_out["loss"] < state.best_loss:
            state.best_loss, state.best_step = held_out["loss"], state.step
            save_weights(task.module, out_dir / BEST_NAME)
    state.records[-1] |= {f"held_out_{name}": value for name, value in held_out.items()}
    shown = ", ".join(f"{name} {value:.4f}" for name, value in held_out.items())
    progress.console.print(
        f"step {state.step}  {state.elapsed:.0f} s  train {state.records[-1]['loss']:.4f}  held-out {shown}"
    )


def save_weights(module: nn.Module, path: Path) -> None:
    """Write the module's tensors as float32 safetensors, atomically."""
    tensors = {name: value.detach().float().contiguous().clone() for name, value in module.state_dict().items()}
    write_atomically(path, lambda p: save_file(tensors, p))


def _make_optimizer(module: nn.Module, loop: LoopSettings) -> torch.optim.Optimizer:
    parameters = [p for p in module.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": loop.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=loop.learning_rate, betas=(loop.beta1, loop.beta2))


def _out_of_time(loop: LoopSettings, state: TrainingState) -> bool:
    return loop.minutes is not None and state.elapsed >= 60 * loop.minutes


def _fingerprint(task: Task, loop: LoopSettings) -> dict[str, Any]:
    how_often = ("validate_every", "checkpoint_every")
    return {**task.settings, **{k: v for k, v in asdict(loop).items() if k not in how_often}}


def _save(task: Task, loop: LoopSettings, optimizer: Any, ema: Ema, state: TrainingState, out_dir: Path) -> None:
    checkpoint = {
        "module": task.module.state_dict(),
        "optimizer": optimizer.state_dict(),
        "ema": ema.shadow,
        "state": asdict(state),
        "settings": _fingerprint(task, loop),
    }
    write_atomically(out_dir / CHECKPOINT_NAME, lambda p: torch.save(checkpoint, p))
    lines = "".join(json.dumps(record) + "\n" for record in state.records)
    write_atomically(out_dir / LOG_NAME, lambda p: p.write_text(lines, encoding="utf-8"))


def _restore(task: Task, loop: LoopSettings, optimizer: Any, ema: Ema, out_dir: Path, resume: bool) -> TrainingState:
    path = out_dir / CHECKPOINT_NAME
    if not path.exists():
        return TrainingState()
    if not resume:
        raise InputError(f"{path} exists. Continue it with --resume, or choose another --out folder.")
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        found = checkpoint["settings"]
    except Exception as error:
        raise InputError(
            f"{path} cannot be read as a training checkpoint ({error}). Remove it to start again."
        ) from error
    expected = _fingerprint(task, loop)
    differing = [k for k in sorted({*found, *expected}) if found.get(k) != expected.get(k)]
    if differing:
        listed = "; ".join(f"{k}: found {found.get(k)!r}, expected {expected.get(k)!r}" for k in differing)
        raise InputError(
            f"{path} was made with other settings ({listed}). Use the same options, or another --out folder."
        )
    task.module.load_state_dict(checkpoint["module"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    ema.shadow = checkpoint["ema"]
    return TrainingState(**checkpoint["state"])


def _progress_bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        refresh_per_second=2,
    )
