"""What is counted while an image is generated, and the snapshot that progress callbacks receive."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .spans import span
from .verification import Verdict

PHASES = ("draft", "target", "host", "decode")


@dataclass
class ImageStats:
    """Counters of one image.

    n_tokens: image tokens emitted. target_passes: prefill included. rounds: passes that verified a draft (or none,
    for "ar"). accepted_lengths: tokens emitted by each round. drift: sum of the positions' total variation.
    reached, acceptance, accepted: [L] per draft position: rounds that reached it, sum of beta_i there, tokens that
    stood. seconds: time by phase; passes shared by a batch are split evenly among its images.
    """

    draft_length: int
    n_tokens: int = 0
    target_passes: int = 0
    accepted_lengths: list[int] = field(default_factory=list)
    drift: float = 0.0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))

    def __post_init__(self) -> None:
        self.reached = np.zeros(self.draft_length, dtype=np.int64)
        self.acceptance = np.zeros(self.draft_length)
        self.accepted = np.zeros(self.draft_length, dtype=np.int64)

    def record(self, verdict: Verdict) -> None:
        """Count one verified round."""
        reached = len(verdict.acceptance)
        self.reached[:reached] += 1
        self.acceptance[:reached] += verdict.acceptance
        self.accepted[: verdict.n_accepted] += 1
        self.accepted_lengths.append(verdict.n_accepted + 1)
        self.drift += verdict.drift

    @property
    def accepted_length(self) -> float:
        """Tokens emitted per target pass, prefill included: plain autoregression is exactly 1.00."""
        return self.n_tokens / self.target_passes if self.target_passes else 0.0

    @property
    def drift_per_token(self) -> float:
        """Total variation from the target per emitted token (an upper bound in expectation); 0 when lossless, NaN for
        rules that can't tell."""
        return self.drift / self.n_tokens if self.n_tokens else 0.0

    @property
    def histogram(self) -> list[int]:
        """Rounds by tokens emitted: entry k counts the rounds that emitted k + 1."""
        accepted = np.array(self.accepted_lengths, dtype=np.int64) - 1
        counts: list[int] = np.bincount(accepted, minlength=self.draft_length + 1).tolist()
        return counts

    @property
    def acceptance_by_position(self) -> list[float | None]:
        """Mean acceptance probability beta_i over the rounds that reached position i; None where none did."""
        return [float(a / r) if r else None for a, r in zip(self.acceptance, self.reached, strict=True)]

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers and lists, for JSON."""
        return {
            "n_tokens": self.n_tokens,
            "target_passes": self.target_passes,
            "accepted_length": self.accepted_length,
            "accepted_length_histogram": self.histogram,
            "acceptance_by_position": self.acceptance_by_position,
            "drift_per_token": number_or_none(self.drift_per_token),
            "seconds": dict(self.seconds),
            "tokens_per_second": self.n_tokens / total if (total := sum(self.seconds.values())) else None,
        }


def number_or_none(value: float) -> float | None:
    """For JSON, which has no NaN."""
    return None if math.isnan(value) else value


@dataclass(frozen=True)
class Progress:
    """A snapshot between two rounds. Tokens are image tokens of all images of the call; seconds since its start."""

    images_done: int
    images_total: int
    tokens_done: int
    tokens_total: int
    target_passes: int
    seconds: float

    @property
    def accepted_length(self) -> float:
        """Tokens emitted per target pass and image so far."""
        return self.tokens_done / self.target_passes if self.target_passes else 0.0

    @property
    def tokens_per_second(self) -> float:
        return self.tokens_done / self.seconds if self.seconds > 0 else 0.0


class PhaseClock:
    """Charges wall time to phases of the images that were active meanwhile, an equal share each.

    images_per_pass: of every target pass so far, the images that shared it.
    """

    def __init__(self) -> None:
        self.images_per_pass: list[int] = []

    @contextmanager
    def phase(self, name: str, images: list[ImageStats]) -> Iterator[None]:
        if name == "target":
            self.images_per_pass.append(len(images))
        start = time.perf_counter()
        with span(name):
            yield
        share = (time.perf_counter() - start) / max(1, len(images))
        for stats in images:
            stats.seconds[name] += share
