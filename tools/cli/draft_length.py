"""`--draft-length auto`, and the note when speculation does not pay."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ...engines.bundle import read_manifest
from ...engines.loader import LoadedEngines
from ...runtime import GenerationResult, SamplingConfig, SpeculativeConfig
from ...runtime.rules import get_rule
from ..profiling.draft_length import Machine
from ..profiling.measurement_cache import MeasurementCache
from . import options
from .console import stderr

AUTO = "auto"
RENEW = "auto-again"


def _read(text: str) -> int | str:
    """A number, `auto` or `auto-again`; what is wrong with a number `SpeculativeConfig` says."""
    if text.casefold() in (AUTO, RENEW):
        return text.casefold()
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is neither a whole number nor {AUTO!r} or {RENEW!r}.") from None


DraftLength = Annotated[
    Any,
    typer.Option(
        parser=_read,
        metavar="L",
        help="L, tokens drafted per target pass; `auto` = what should be fastest on this machine, from acceptance and "
        "pass costs, which are measured once; `auto-again` measures them anew. The pictures of a seed then depend on "
        "the machine: the L it used is printed and stored with them.",
        rich_help_panel="Speculation",
        show_default="the bundle's",
    ),
]


def this_machine(
    bundle: Path, engines: LoadedEngines, parameters: Mapping[str, Any], batch_size: int, threads: int | None
) -> Machine:
    """What is known of a bundle on this machine, in the setting that a command's parameters describe."""
    chosen = {name: value for name, value in options.sampling_options(parameters).items() if value is not None}
    sampling = SamplingConfig(**{**engines.info.sampling.model_dump(), **chosen})
    cache = MeasurementCache(renew=parameters["draft_length"] == RENEW)
    return Machine(read_manifest(bundle), engines, sampling, max(1, batch_size), threads, cache)


def speculative_config(
    defaults: SpeculativeConfig, parameters: Mapping[str, Any], machine: Machine
) -> SpeculativeConfig:
    """`options.speculative_config`, with a draft length of `auto` chosen, and said why."""
    if parameters["draft_length"] not in (AUTO, RENEW):
        return options.speculative_config(defaults, parameters)
    config = options.speculative_config(defaults, {**parameters, "draft_length": None})
    with stderr.status("measuring acceptance and pass costs"):
        found = machine.choose(config)
    best = next(forecast for forecast in found if forecast.draft_length > 0)
    others = ", ".join(
        f"{forecast.draft_length}: {forecast.speed_up:.2f}x"
        for forecast in sorted(found, key=lambda forecast: forecast.draft_length)
        if forecast.draft_length
    )
    stderr.print(
        f"draft length {best.draft_length}: {best.tokens:.2f} tokens per pass, {best.speed_up:.2f}x over plain "
        f"autoregression expected ({others})",
        soft_wrap=True,
    )
    return config.model_copy(update={"draft_length": best.draft_length})


def note_if_slow(result: GenerationResult, config: SpeculativeConfig, machine: Machine) -> None:
    """One line when the run's accepted length did not make up for what its rounds cost on this machine; nothing where
    that is not known."""
    if config.tree is not None or not get_rule(config.rule).drafts:
        return
    with stderr.status("measuring pass costs, once on this machine"):
        outcome = machine.outcome(result, config.draft_length)
    if outcome is not None and not outcome.pays:
        stderr.print(
            f"note: speculation does not pay here: {outcome.accepted:.2f} tokens per pass, and a round costs "
            f"{outcome.cost:.2f} plain steps (its target pass alone {outcome.c:.2f}). --rule ar should be "
            f"{outcome.cost / outcome.accepted:.2f}x as fast; or try --draft-length auto.",
            soft_wrap=True,
        )
