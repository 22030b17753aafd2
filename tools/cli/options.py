"""The options of sampling and speculation, named as in `SamplingConfig` and `SpeculativeConfig`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ...runtime.config import SamplingConfig, SpeculativeConfig
from ...runtime.errors import InputError
from ...runtime.rules import RULES
from ...runtime.trees import TREES

_SAMPLING = "Sampling"
_SPECULATION = "Speculation"
_RULES = "; ".join(f"{rule.name}: {rule.summary}" for rule in RULES.values())


def _option(panel: str, help: str, *names: str) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=panel, show_default="the bundle's")


CfgScale = Annotated[float | None, _option(_SAMPLING, "Guidance scale, 1 = off.", "--cfg")]
CfgInterval = Annotated[int | None, _option(_SAMPLING, "Guide only image tokens 0 to N + 1; -1 = all.")]
Temperature = Annotated[float | None, _option(_SAMPLING, "0 = greedy.")]
TopK = Annotated[int | None, _option(_SAMPLING, "0 = off.")]
TopP = Annotated[float | None, _option(_SAMPLING, "1 = off.")]
TopPFirst = Annotated[
    bool | None, _option(_SAMPLING, "Apply top-p before top-k, as LANTERN's released code does.", "--top-p-first")
]

RuleName = Annotated[
    str | None,
    _option(
        _SPECULATION,
        f"Acceptance rule. {_RULES}. Lossy rules leave the target's distribution, by the drift that is printed: those "
        "with delta above 1, and LANTERN's. `--rule lossless` is exact.",
    ),
]
Delta = Annotated[float | None, _option(_SPECULATION, "Mean relaxation; above 1 is lossy.")]
Nu = Annotated[float | None, _option(_SPECULATION, "Annealing rate of `cool`.")]
Floor = Annotated[
    str | None, _option(_SPECULATION, "Least omega of `cool` and `linear`; `none` = the paper's schedule.")
]
LanternK = Annotated[int | None, _option(_SPECULATION, "Codebook neighbours a token borrows from.")]
LanternDelta = Annotated[float | None, _option(_SPECULATION, "Most that `lantern` borrows, below 1.")]
LanternLambda = Annotated[float | None, _option(_SPECULATION, "`lantern++` borrows up to (lambda - 1) p(x).")]
Resampling = Annotated[
    str | None, _option(_SPECULATION, "What replaces a rejected token: optimal, or native (the LANTERN authors').")
]
DraftLength = Annotated[int | None, _option(_SPECULATION, "L, tokens drafted per target pass.")]
TreeChoice = Annotated[
    str | None,
    _option(
        _SPECULATION,
        f"Draft a tree instead of a chain: {', '.join(TREES)}, dynamic (EAGLE-2), or FILE.json with a list of paths; "
        "`none` = a chain of --draft-length.",
    ),
]
TreeNodes = Annotated[int | None, _option(_SPECULATION, "Drafted tokens of `--tree dynamic`.")]
TreeBranches = Annotated[
    int | None, _option(_SPECULATION, "Nodes that `--tree dynamic` grows at each level, and tokens it gives each.")
]


def sampling_options(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `SamplingConfig` among a command's parameters; None = not given."""
    return {name: parameters[name] for name in SamplingConfig.model_fields}


def speculative_config(defaults: SpeculativeConfig, parameters: Mapping[str, Any]) -> SpeculativeConfig:
    """`defaults` with what a command's parameters say instead. Raises: InputError naming a bad value."""
    chosen = {name: parameters[name] for name in SpeculativeConfig.model_fields if parameters[name] is not None}
    for name in ("floor", "tree"):
        if name in chosen:
            chosen[name] = read_value(name, chosen[name])
    return SpeculativeConfig(**{**defaults.model_dump(), **chosen})


def read_value(name: str, text: str) -> Any:
    """What `--floor` or `--tree` says: None for `none`. Raises: InputError."""
    if text.casefold() == "none":
        return None
    return _read_floor(text) if name == "floor" else _read_tree(text)


def _read_floor(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"--floor {text!r}: expected a number above 0, or none.") from None


def _read_tree(text: str) -> Any:
    """A name, or the paths in a file."""
    if not text.endswith(".json"):
        return text
    try:
        return json.loads(Path(text).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"--tree {text}: not a readable JSON file ({error}). Expected [[0], [1], [0, 0]].") from None
