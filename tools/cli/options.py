"""The options of sampling and speculation, named as in `SamplingConfig` and `SpeculativeConfig`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ...runtime.config import DYNAMIC, SamplingConfig, SpeculativeConfig
from ...runtime.errors import InputError
from ...runtime.rules import RULES
from ...runtime.trees import TREES

_SAMPLING = "Sampling"
_SPECULATION = "Speculation"
_RULES = "; ".join(
    f"{rule.name}: {rule.summary}" + (f" (lossy; exact with {rule.lossless_setting})" if rule.lossy else "")
    for rule in RULES.values()
)


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
        f"Acceptance rule. {_RULES}. Lossy rules leave the target's distribution, by the drift that is printed. "
        "Options that the rule does not read are refused.",
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
    given = {name: parameters.get(name) for name in SpeculativeConfig.model_fields}
    chosen = {name: value for name, value in given.items() if value is not None}
    for name in ("floor", "tree"):
        if name in chosen:
            chosen[name] = read_value(name, chosen[name])
    config = SpeculativeConfig(**{**defaults.model_dump(), **chosen})
    _require_read(chosen, config)
    return config


def _require_read(chosen: Mapping[str, Any], config: SpeculativeConfig) -> None:
    """Raises: InputError for an option that would change nothing."""
    for name in chosen:
        option = f"--{name.replace('_', '-')}"
        readers = [rule.name for rule in RULES.values() if name in rule.parameters]
        if name != "rule" and config.rule not in readers:
            raise InputError(
                f"{option}: rule {config.rule!r} does not read it. Leave it out, or give --rule {', '.join(readers)}."
            )
        if name in ("tree_nodes", "tree_branches") and config.tree != DYNAMIC:
            raise InputError(f"{option}: only --tree dynamic reads it. Leave it out, or give --tree dynamic.")
    length = chosen.get("draft_length", config.depth)
    if length != config.depth:
        raise InputError(
            f"--draft-length {length}: the tree drafts {config.depth} levels. Leave it out, or give --tree none."
        )


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
        paths = json.loads(Path(text).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"--tree {text}: not a readable JSON file ({error}). Expected [[0], [1], [0, 0]].") from None
    if not isinstance(paths, list):
        raise InputError(f"--tree {text}: it holds {paths!r}. Expected a list of paths, like [[0], [1], [0, 0]].")
    return paths
