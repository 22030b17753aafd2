"""The registry of acceptance rules. A rule is a schedule omega[L] with its description; add one entry to add a rule."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .config import SpeculativeConfig
from .errors import InputError
from .schedules import cool_schedule, linear_schedule, uniform_schedule

Schedule = Callable[[SpeculativeConfig], NDArray[np.float64]]


@dataclass(frozen=True)
class Rule:
    """One acceptance rule.

    parameters: the `SpeculativeConfig` fields it reads. lossless_setting: how to make it exact.
    schedule: config -> omega [L] float64; empty for "ar", which drafts nothing.
    """

    name: str
    summary: str
    parameters: tuple[str, ...]
    lossless_setting: str
    schedule: Schedule

    def is_lossy(self, config: SpeculativeConfig) -> bool:
        """True when the emitted law can differ from the target's: some omega exceeds 1 (ALGORITHM: drift)."""
        return bool((self.schedule(config) > 1).any())


RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        Rule(
            "ar", "plain autoregression, one token per target pass", (), "always lossless", lambda config: np.empty(0)
        ),
        Rule(
            "lossless",
            "speculative sampling, exactly the target's distribution",
            ("draft_length",),
            "always lossless",
            lambda config: np.ones(config.draft_length),
        ),
        Rule(
            "cool",
            "COOL-SD: relaxation annealed exponentially along the draft",
            ("draft_length", "delta", "nu", "floor"),
            "rule='lossless'",
            lambda config: cool_schedule(config.draft_length, config.delta, config.nu, config.floor),
        ),
        Rule(
            "linear",
            "relaxation decaying linearly along the draft",
            ("draft_length", "delta", "floor"),
            "rule='lossless'",
            lambda config: linear_schedule(config.draft_length, config.delta, config.floor),
        ),
        Rule(
            "uniform",
            "the same relaxation at every draft position",
            ("draft_length", "delta"),
            "delta=1",
            lambda config: uniform_schedule(config.draft_length, config.delta),
        ),
    )
}


def get_rule(name: str) -> Rule:
    """The rule of that name. Raises: InputError that lists the names."""
    if name not in RULES:
        close = difflib.get_close_matches(name, RULES, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise InputError(f"rule = {name!r}: no such rule.{hint} Expected one of: {', '.join(RULES)}.")
    return RULES[name]
