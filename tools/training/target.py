"""Trains the class-conditional target on codes."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .codes import Codes
from .llamagen import Target, TargetConfig
from .loop import Task


class TargetTask(Task):
    """Cross entropy of the next token; 10 % of the classes are replaced by the null class, so that CFG works."""

    def __init__(
        self, codes: Codes, config: TargetConfig, *, batch: int, dropout: float = 0.1, class_dropout: float = 0.1
    ) -> None:
        self.module = Target(config, dropout)
        self.settings: dict[str, Any] = {
            "model": "target", "batch": batch, "dropout": dropout, "class_dropout": class_dropout, **asdict(config),
        }  # fmt: skip
        self.codes, self.batch, self.class_dropout = codes, batch, class_dropout
        self.forward = self.module

    def loss(self, rng: np.random.Generator) -> tuple[Tensor, dict[str, float]]:
        """Nats per token of one augmented batch."""
        tokens, labels = self.codes.draw(rng, self.batch)
        labels[torch.from_numpy(rng.random(self.batch) < self.class_dropout)] = self.module.null_class
        return nats_per_token(self.forward, labels, tokens), {}

    def validate(self) -> dict[str, float]:
        """Nats per token of the held-out pictures, each with its class."""
        tokens, labels = self.codes.held_out_pictures()
        losses = [
            nats_per_token(self.module, some_labels, some_tokens) * len(some_labels)
            for some_tokens, some_labels in zip(tokens.split(32), labels.split(32), strict=True)
        ]
        return {"loss": float(torch.stack(losses).sum() / len(labels))}


def nats_per_token(model: Target, labels: Tensor, tokens: Tensor) -> Tensor:
    """Mean cross entropy of image tokens int64 [B, T] given labels int64 [B]."""
    logits, _ = model(labels, tokens[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), tokens.flatten())
