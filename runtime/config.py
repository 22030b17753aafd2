"""What a caller may set: how tokens are sampled and how drafts are accepted. Values are checked on construction."""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from .errors import InputError
from .tree import MAX_NODES, Tree
from .trees import named_tree

DYNAMIC = "dynamic"
# Far beyond what pays, and small enough that what is made from them fits into memory.
MAX_DRAFT = 256


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise InputError(describe(error)) from None


class SamplingConfig(_Settings):
    """How logits become a distribution; the same for target and draft.

    cfg_scale: guidance `u + s (c - u)`, 1 switches it off (and halves the work). cfg_interval: -1 guides every token,
    n guides image tokens 0 to n + 1 and no later one (LlamaGen counts from the second token). temperature: 0 is greedy.
    top_k: 0 is off. top_p: 1 is off. top_p_first: filter by top-p before top-k, as LANTERN's released code does
    (LlamaGen: after).
    """

    # Beyond, guided logits leave float32.
    cfg_scale: float = Field(default=4.0, ge=1, le=1e6)
    cfg_interval: int = Field(default=-1, ge=-1)
    temperature: float = Field(default=1.0, ge=0)
    top_k: int = Field(default=0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_p_first: bool = False

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def guided(self) -> bool:
        return self.cfg_scale > 1

    @property
    def last_guided(self) -> float:
        """The last image token (0 = the first) that guidance applies to."""
        return math.inf if self.cfg_interval < 0 else self.cfg_interval + 1


class SpeculativeConfig(_Settings):
    """How many tokens are drafted and how they are accepted.

    rule: a name in `rules.RULES`; "ar" drafts nothing, "lossless" is exact speculative sampling.
    delta: mean relaxation (lossy above 1). nu: annealing rate of "cool". floor: the least omega of the annealed
    schedules, None for the paper's unfloored one. lantern_k: how many codebook neighbours a token may borrow from, None
    for the papers' choice (1000 for "lantern", 10 for "lantern++"); lantern_delta, lantern_lambda: how much, see
    `lantern.NeighborAcceptance`. resampling: what replaces a rejected token, the "optimal" residual or the "native" one
    of the rule's authors. draft_length: L, drafted tokens per target pass; becomes the depth of a static tree. tree:
    None drafts a chain; a name in `trees.TREES` or a list of paths (see `Tree.from_paths`) drafts that static tree;
    "dynamic" drafts L levels of what the draft finds most likely (EAGLE-2): it grows the tree_branches likeliest nodes
    of each level by as many tokens each, and keeps the tree_nodes likeliest of all.
    """

    rule: str = "cool"
    delta: float = Field(default=1.1, gt=0, le=1e6)
    nu: float = Field(default=0.7, ge=0, le=100)
    floor: float | None = Field(default=1.0, gt=0)
    lantern_k: int | None = Field(default=None, ge=0)
    lantern_delta: float = Field(default=0.1, ge=0, lt=1)
    lantern_lambda: float = Field(default=5.0, ge=1)
    resampling: Literal["optimal", "native"] = "optimal"
    draft_length: int = Field(default=5, ge=1, le=MAX_DRAFT)
    tree: str | tuple[tuple[int, ...], ...] | None = None
    tree_nodes: int = Field(default=58, ge=1, le=MAX_NODES)
    tree_branches: int = Field(default=10, ge=1, le=MAX_NODES)

    @property
    def static_tree(self) -> Tree | None:
        """The tree drafted every round; None when it is dynamic."""
        return Tree.chain(self.draft_length) if self.tree is None else _static_tree(self.tree)

    @property
    def depth(self) -> int:
        """L, positions that can be accepted in one target pass."""
        tree = self.static_tree
        return self.draft_length if tree is None else tree.depth

    @field_validator("rule")
    @classmethod
    def _known_rule(cls, name: str) -> str:
        from .rules import get_rule  # rules reads this class

        return get_rule(name).name

    @model_validator(mode="before")
    @classmethod
    def _length_of_the_tree(cls, values: dict[str, Any]) -> dict[str, Any]:
        """What is stored of a run must be what it did: a static tree's depth, whatever draft_length says."""
        if values.get("tree") is None:
            return values
        tree = _static_tree(values["tree"])
        return values if tree is None else {**values, "draft_length": tree.depth}

    @model_validator(mode="after")
    def _nodes_for_every_level(self) -> SpeculativeConfig:
        if self.tree == DYNAMIC and self.tree_nodes < self.draft_length:
            raise InputError(
                f"tree_nodes = {self.tree_nodes}: too few for the {self.draft_length} levels of draft_length. "
                f"Use at least {self.draft_length}, or a smaller draft_length."
            )
        return self

    @model_validator(mode="after")
    def _resampling_of_the_rule(self) -> SpeculativeConfig:
        from .rules import RULES

        if self.resampling == "native" and "resampling" not in RULES[self.rule].parameters:
            having = ", ".join(rule.name for rule in RULES.values() if "resampling" in rule.parameters)
            raise InputError(
                f"resampling = 'native': rule {self.rule!r} has only the optimal one. Expected rule {having}."
            )
        return self


def _static_tree(tree: Any) -> Tree | None:
    """Of a name or a list of paths; None for "dynamic". Raises: InputError for anything else."""
    if isinstance(tree, str):
        return None if tree == DYNAMIC else named_tree(tree)
    return Tree.from_paths(tree)


def describe(error: ValidationError) -> str:
    """One sentence per wrong field: the field, what was found, what was expected."""
    sentences = []
    for detail in error.errors():
        field = ".".join(str(part) for part in detail["loc"])
        cause = detail.get("ctx", {}).get("error")
        if isinstance(cause, InputError):
            sentences.append(str(cause))
        elif detail["type"] == "extra_forbidden":
            sentences.append(f"{field} is not a setting. Remove it or check its spelling.")
        else:
            expected = detail["msg"].removeprefix("Input ").replace("should be", "must be")
            sentences.append(f"{field} = {detail['input']!r}: it {expected}.")
    return " ".join(sentences)
