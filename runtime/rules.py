"""The registry of acceptance rules: one entry to add a rule."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .acceptance import Acceptance, Relaxation
from .config import SpeculativeConfig
from .errors import InputError
from .lantern import NeighborAcceptance, NeighborTable
from .schedules import cool_schedule, linear_schedule, uniform_schedule

# (settings, the codebook's neighbour table if the bundle has one) -> one test per draft position
MakeAcceptances = Callable[[SpeculativeConfig, "NeighborTable | None"], list[Acceptance]]


@dataclass(frozen=True)
class Rule:
    """One acceptance rule. None ever emits a token with p = 0.

    parameters: the `SpeculativeConfig` fields it reads. lossy: whether it can leave the target's law at all.
    lossless_setting: how to make it exact. acceptances: its tests, the first drafted token's first. drafts: False for
    "ar".
    """

    name: str
    summary: str
    parameters: tuple[str, ...]
    lossy: bool
    lossless_setting: str
    acceptances: MakeAcceptances
    drafts: bool = True


def relaxed(schedule: Callable[[SpeculativeConfig, int], NDArray[np.float64]]) -> MakeAcceptances:
    """The tests of a schedule omega [L]."""
    return lambda config, table: [Relaxation(omega) for omega in schedule(config, config.depth).tolist()]


def _lantern(config: SpeculativeConfig, table: NeighborTable | None) -> list[Acceptance]:
    return _neighbors(config, table, usual_k=1000, delta=config.lantern_delta)


def _lantern_plus(config: SpeculativeConfig, table: NeighborTable | None) -> list[Acceptance]:
    return _neighbors(config, table, usual_k=10, excess=config.lantern_lambda - 1)


def _neighbors(
    config: SpeculativeConfig, table: NeighborTable | None, usual_k: int, delta: float = 0.0, excess: float = 0.0
) -> list[Acceptance]:
    if table is None:
        raise InputError(
            f"rule = {config.rule!r} needs the codebook's neighbour table, and this bundle has none. "
            "Build the bundle again."
        )
    columns = table.shape[1]
    k = min(usual_k, columns) if config.lantern_k is None else config.lantern_k
    if k > columns:
        raise InputError(
            f"lantern_k = {k}: the bundle's table has the {columns} nearest codes. Use at most {columns}, or build the "
            "bundle again with a larger --neighbors."
        )
    return [NeighborAcceptance(table, k, delta, excess, native=config.resampling == "native")] * config.depth


def _registry(rules: Iterable[Rule]) -> dict[str, Rule]:
    return {rule.name: rule for rule in rules}


LENGTH = ("draft_length", "tree", "tree_nodes", "tree_branches")
LANTERN = (*LENGTH, "lantern_k", "resampling")
RULES = _registry(
    (
        Rule(
            name="ar",
            summary="plain autoregression, one token per target pass",
            parameters=(),
            lossy=False,
            lossless_setting="always lossless",
            acceptances=lambda config, table: [],
            drafts=False,
        ),
        Rule(
            name="lossless",
            summary="speculative sampling, exactly the target's distribution",
            parameters=LENGTH,
            lossy=False,
            lossless_setting="always lossless",
            acceptances=relaxed(lambda config, length: np.ones(length)),
        ),
        Rule(
            name="cool",
            summary="COOL-SD: relaxation annealed exponentially along the draft",
            parameters=(*LENGTH, "delta", "nu", "floor"),
            lossy=True,
            lossless_setting="rule='lossless'",
            acceptances=relaxed(lambda config, length: cool_schedule(length, config.delta, config.nu, config.floor)),
        ),
        Rule(
            name="linear",
            summary="relaxation decaying linearly along the draft",
            parameters=(*LENGTH, "delta", "floor"),
            lossy=True,
            lossless_setting="rule='lossless'",
            acceptances=relaxed(lambda config, length: linear_schedule(length, config.delta, config.floor)),
        ),
        Rule(
            name="uniform",
            summary="the same relaxation at every draft position",
            parameters=(*LENGTH, "delta"),
            lossy=True,
            lossless_setting="delta=1",
            acceptances=relaxed(lambda config, length: uniform_schedule(length, config.delta)),
        ),
        Rule(
            name="lantern",
            summary="LANTERN: a token may borrow up to lantern_delta of its codebook neighbours' mass",
            parameters=(*LANTERN, "lantern_delta"),
            lossy=True,
            lossless_setting="lantern_k=0",
            acceptances=_lantern,
        ),
        Rule(
            name="lantern++",
            summary="LANTERN++: a token may borrow up to (lantern_lambda - 1) times its own mass",
            parameters=(*LANTERN, "lantern_lambda"),
            lossy=True,
            lossless_setting="lantern_k=0",
            acceptances=_lantern_plus,
        ),
    )
)


def get_rule(name: str) -> Rule:
    """The rule of that name. Raises: InputError that lists the names."""
    if name not in RULES:
        close = difflib.get_close_matches(name, RULES, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise InputError(f"rule = {name!r}: no such rule.{hint} Expected one of: {', '.join(RULES)}.")
    return RULES[name]
