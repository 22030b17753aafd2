"""The settings an evaluation compares: every combination of the values given for what a rule reads."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from ...runtime.config import DYNAMIC, SpeculativeConfig
from ...runtime.errors import InputError
from ...runtime.rules import RULES, get_rule
from ..bench.contenders import Contender

# How labels call a parameter, where its own name is too long.
SHORT = {"draft_length": "L", "lantern_k": "k", "lantern_delta": "delta", "lantern_lambda": "lambda"}
EXAMPLE = '[{"rule": "lossless"}, {"rule": "cool", "delta": [1.1, 1.5], "floor": [1, null]}]'


def default_grid(draft_length: int) -> list[SpeculativeConfig]:
    """Every rule at its usual strength, the schedules at two."""
    length: dict[str, list[Any]] = {"draft_length": [draft_length]}
    schedules = {**length, "delta": [1.1, 1.5]}
    return [
        *combinations("lossless", length),
        *combinations("cool", {**schedules, "floor": [1.0, None]}),
        *combinations("linear", {**schedules, "floor": [None]}),
        *combinations("uniform", schedules),
        *combinations("lantern++", {**length, "lantern_k": [10], "resampling": ["optimal", "native"]}),
    ]


def combinations(rule: str, choices: Mapping[str, Sequence[Any]]) -> list[SpeculativeConfig]:
    """The product of the values of each parameter. Raises: InputError for one that the rule does not read."""
    known = get_rule(rule).parameters
    for name in choices:
        if name not in known:
            reads = ", ".join(known) or "nothing"
            raise InputError(f"rule {rule!r} does not read {name!r}. It reads: {reads}.")
    return [
        SpeculativeConfig(**{"rule": rule, **dict(zip(choices, values, strict=True))})
        for values in product(*choices.values())
    ]


def grid_of_options(rules: Sequence[str], choices: Mapping[str, Sequence[Any]]) -> list[SpeculativeConfig]:
    """Every rule with every combination of those parameters that it reads. Raises: InputError for one none reads."""
    for name in choices:
        if not any(name in get_rule(rule).parameters for rule in rules):
            raise InputError(f"--{name.replace('_', '-')}: no rule of the grid reads it. Rules: {', '.join(rules)}.")
    return [
        config
        for rule in rules
        for config in combinations(
            rule, {name: values for name, values in choices.items() if name in get_rule(rule).parameters}
        )
    ]


def read_grid(path: Path) -> list[SpeculativeConfig]:
    """A JSON list of objects with `rule` and its parameters; a list of values stands for each of them.

    Raises: InputError naming the file and the entry.
    """
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"--grid {path}: not a readable JSON file ({error}). Expected {EXAMPLE}.") from None
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise InputError(f"--grid {path}: not a list of settings. Expected {EXAMPLE}.")
    found: list[SpeculativeConfig] = []
    for number, entry in enumerate(entries, start=1):
        values = {name: value if isinstance(value, list) else [value] for name, value in entry.items()}
        rules = values.pop("rule", None)
        if rules is None:
            raise InputError(f"--grid {path}: entry {number} has no rule. Expected one of: {', '.join(RULES)}.")
        try:
            found += [config for rule in rules for config in combinations(rule, values)]
        except InputError as error:
            raise InputError(f"--grid {path}: entry {number}: {error}") from None
    return found


def contenders(configs: Iterable[SpeculativeConfig]) -> list[Contender]:
    """`ar`, the baseline, and every other setting once, under a name of its own."""
    named = {label(config): config for config in (SpeculativeConfig(rule="ar"), *configs)}
    return [Contender(name, config) for name, config in named.items()]


def label(config: SpeculativeConfig) -> str:
    """A setting in few words: its rule, and the parameters the rule reads unless they are the usual ones."""
    fields, words = SpeculativeConfig.model_fields, [config.rule]
    for name in RULES[config.rule].parameters:
        value = getattr(config, name)
        usual = value == fields[name].default and name not in ("delta", "lantern_delta", "lantern_lambda")
        if name == "draft_length":
            if config.tree in (None, DYNAMIC):
                words.append(f"L {value}")
        elif name == "resampling":
            words.append(value)
        elif not usual:
            words.append(f"{SHORT.get(name, name)} {_text(value)}")
    return " ".join(words)


def _text(value: Any) -> str:
    if isinstance(value, tuple):  # a tree of paths, as `runtime/trees.py` writes them
        return ".".join("-".join(map(str, path)) for path in value)
    return f"{value:g}" if isinstance(value, float) else str(value).lower()
