"""What `Pipeline.generate` returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .stats import ImageStats, number_or_none


@dataclass(frozen=True)
class GenerationResult:
    """images: N arrays [height, width, 3] uint8. tokens: [N, n_tokens] int64. stats: one per image.

    parameters: one dict per image with everything needed to make it again. lossy: True when the settings can leave
    the target's distribution. images_per_pass: of every target pass, the images that shared it: it falls as finished
    ones leave. seconds: wall time of the whole call.
    """

    images: list[NDArray[np.uint8]]
    tokens: NDArray[np.int64]
    stats: list[ImageStats]
    parameters: list[dict[str, Any]]
    lossy: bool
    images_per_pass: list[int]
    seconds: float

    @property
    def accepted_length(self) -> float:
        """Tokens emitted per target pass, over all images; plain autoregression is 1.00."""
        return sum(s.n_tokens for s in self.stats) / sum(s.target_passes for s in self.stats)

    @property
    def drift_per_token(self) -> float:
        """Total variation from the target per emitted token, over all images; NaN for rules that can't tell."""
        return sum(s.drift for s in self.stats) / sum(s.n_tokens for s in self.stats)

    @property
    def tokens_per_second(self) -> float:
        """Image tokens of all images over the wall time of the call."""
        return self.tokens.size / self.seconds

    @property
    def images_per_minute(self) -> float:
        return 60 * len(self.images) / self.seconds

    @property
    def shared(self) -> float:
        """Images that share a target pass, on average; the batch size, less what ragged ends leave empty."""
        return sum(self.images_per_pass) / len(self.images_per_pass)

    def as_dict(self) -> dict[str, Any]:
        """Everything but the pixels, as plain numbers and lists."""
        return {
            "images": len(self.images),
            "seconds": self.seconds,
            "lossy": self.lossy,
            "accepted_length": self.accepted_length,
            "drift_per_token": number_or_none(self.drift_per_token),
            "tokens_per_second": self.tokens_per_second,
            "images_per_minute": self.images_per_minute,
            "images_per_pass": self.images_per_pass,
            "per_image": [
                {**parameters, "tokens": tokens.tolist(), **stats.as_dict()}
                for parameters, tokens, stats in zip(self.parameters, self.tokens, self.stats, strict=True)
            ],
        }
