"""What a profile says, as it is stored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ...runtime.errors import InputError

SCHEMA_VERSION = 1


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Setup(_Section):
    """What was run. machine: CPU, cores, versions. sampling, speculative: the settings by name. tokens_per_pass: of a
    whole round, the pending one and all drafted."""

    bundle: str
    build_key: str
    machine: str
    backend: str
    threads: int
    precision: str
    lowering: str
    sampling: dict[str, Any]
    speculative: dict[str, Any]
    tokens_per_pass: int
    images: int
    batch_size: int
    seed: int


class Speed(_Section):
    """image_seconds: by image, its share of the passes it was in. round_ms: every round. plain_ms: rounds of plain
    autoregression in the same setting. images_per_pass: of every target pass."""

    seconds: float
    warm_up_seconds: float
    tokens_per_second: float
    images_per_minute: float
    image_seconds: list[float]
    round_ms: list[float]
    plain_ms: list[float]
    images_per_pass: list[int]


class Part(_Section):
    """Milliseconds a round spends in one part, see `rounds.Round`. share: of all rounds' time. Where a GPU was timed,
    `gpu` is its own time, copies to and from it included, and `engine` what the host spent beside that on launching
    and waiting."""

    name: str
    share: float
    p50: float
    p90: float
    p99: float


class Acceptance(_Section):
    """accepted_length: tokens per target pass. histogram[k]: rounds that emitted k + 1 tokens. by_position[i]: mean
    probability that drafted token i + 1 stands once it is reached; reached[i]: rounds that reached it."""

    accepted_length: float
    drift_per_token: float | None
    histogram: list[int]
    by_position: list[float | None]
    reached: list[int]


class Costs(_Section):
    """Milliseconds of passes of 1, 2, ... tokens over a half-filled cache. chain: of the draft's whole chain, where one
    call makes it. plain_host: of the host in a round of plain autoregression. floor: of the target's matrix products
    alone; None where it was not measured."""

    target: list[float]
    draft: list[float] | None
    plain_host: float
    chain: list[float] | None = None
    floor: list[float] | None


class Bandwidth(_Section):
    """Bytes per second. weight_bytes: that a target pass has to read. stream: what this machine reads at best.
    plain: weights over the time of a pass of one token; run: over the median pass of this run. cached: whether the
    weights fit into the last-level cache, where `stream` is no limit."""

    weight_bytes: int
    stream: float
    plain: float
    run: float
    cached: bool


class Memory(_Section):
    """Bytes. weights: of each part, on disk. caches: keys and values of target and draft. base: resident before the
    bundle was opened; peak: at most, by the end of the run."""

    weights: dict[str, int]
    caches: dict[str, int]
    base: int
    peak: int

    @property
    def needed(self) -> int:
        return sum(self.weights.values()) + sum(self.caches.values())

    @property
    def excess(self) -> float:
        """What opening and running the bundle took, over what it needs."""
        return (self.peak - self.base) / self.needed


class Report(_Section):
    """A profile. parts: largest first. bandwidth: None off the CPU. verdict: sentences."""

    schema_version: int = Field(default=SCHEMA_VERSION, ge=SCHEMA_VERSION, le=SCHEMA_VERSION)
    setup: Setup
    speed: Speed
    parts: list[Part]
    part_ms: dict[str, list[float]] = Field(description="every round's milliseconds in each part")
    acceptance: Acceptance
    costs: Costs
    bandwidth: Bandwidth | None
    memory: Memory
    verdict: list[str] = []


def read_report(path: Path) -> Report:
    """Raises: InputError for a file that is no profile."""
    try:
        return Report.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise InputError(f"{path}: can't be read ({error.strerror}). Expected a file of `profile --json`.") from None
    except (ValueError, ValidationError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else {"loc": ("file",), "msg": str(error)}
        where = ".".join(map(str, first["loc"]))
        raise InputError(
            f"{path}: {where!r} is wrong: {first['msg']}. Expected a file of `profile --json` of this version."
        ) from None
