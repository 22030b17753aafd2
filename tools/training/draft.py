"""Trains the EAGLE draft on the frozen target's features, and measures how often its tokens would be accepted."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .codes import Codes
from .eagle import Draft, DraftConfig
from .llamagen import Target, guided
from .loop import Task

_EAGLE_LENGTH = 512  # EAGLE scales its feature noise to this sequence length


class DraftTask(Task):
    """Smooth-L1 to the next feature + weighted cross entropy against the target's distribution (EAGLE, section 4.2).

    A second pass sees, at random positions, the features the first pass predicted instead of the target's: while
    drafting, every token but the first is predicted from such features.
    """

    def __init__(
        self,
        codes: Codes,
        target: Target,
        *,
        batch: int,
        ce_weight: float = 0.1,
        noise: float = 0.2,
        class_dropout: float = 0.1,
        second_pass: float = 0.0,
        target_id: str = "",
    ) -> None:
        shape = target.config
        config = DraftConfig(
            hidden_size=shape.dim, intermediate_size=shape.hidden_dim_ffn, num_attention_heads=shape.n_head,
            vocab_size=shape.vocab_size, grid_size=shape.grid_size,
        )  # fmt: skip
        self.module = Draft(config)
        self.target = target.eval().requires_grad_(False)
        with torch.no_grad():
            self.module.embed_tokens.weight.copy_(target.output.weight)
        self.codes, self.batch = codes, batch
        self.ce_weight, self.noise, self.class_dropout, self.second_pass = ce_weight, noise, class_dropout, second_pass
        self.settings: dict[str, Any] = {
            "model": "draft", "batch": batch, "ce_weight": ce_weight, "noise": noise, "class_dropout": class_dropout,
            "second_pass": second_pass, "target_id": target_id, **asdict(config),
        }  # fmt: skip

    def loss(self, rng: np.random.Generator) -> tuple[Tensor, dict[str, float]]:
        """One augmented batch, one or two passes."""
        tokens, labels = self.codes.draw(rng, self.batch)
        labels[torch.from_numpy(rng.random(self.batch) < self.class_dropout)] = self.target.null_class
        with torch.no_grad():
            logits, hidden = self.target(labels, tokens[:, :-1])
            p = logits[:, 1:].softmax(-1)
        given, wanted, following = hidden[:, :-1].float(), hidden[:, 1:].float(), tokens[:, :-1]
        spread = self.noise * _EAGLE_LENGTH / given.shape[1]
        predicted = self.module(given + (torch.rand_like(given) - 0.5) * spread, following)
        total, metrics = self._loss_of(predicted, wanted, p)
        if self.second_pass:
            own = torch.cat([given[:, :1], predicted[:, :-1].detach().float()], 1)
            swap = torch.rand(given.shape[:2]).unsqueeze(-1) < 0.5
            predicted = self.module(torch.where(swap, own, given), following)
            total = total + self.second_pass * self._loss_of(predicted, wanted, p)[0]
        return total, metrics

    def validate(self) -> dict[str, float]:
        """Mean overlap sum_x min(p, q) on held-out pictures, without and with CFG 2; `loss` is 1 - overlap at CFG 2."""
        tokens, labels = self.codes.held_out_pictures(limit=64)
        plain, with_cfg = overlaps(self.target, self.module, tokens, labels, cfg_scale=2.0)
        return {"loss": 1 - with_cfg, "overlap": plain, "overlap_cfg2": with_cfg}

    def _loss_of(self, predicted: Tensor, wanted: Tensor, p: Tensor) -> tuple[Tensor, dict[str, float]]:
        log_q = self.target.output(predicted).float().log_softmax(-1)
        regression = F.smooth_l1_loss(predicted.float(), wanted)
        cross_entropy = -(p * log_q).sum(-1).mean()
        overlap = torch.minimum(p, log_q.detach().exp()).sum(-1).mean()
        numbers = {"regression": regression, "cross_entropy": cross_entropy, "overlap": overlap}
        return regression + self.ce_weight * cross_entropy, {k: float(v.detach()) for k, v in numbers.items()}


@torch.no_grad()
def overlaps(
    target: Target, draft: Draft, tokens: Tensor, labels: Tensor, cfg_scale: float, batch: int = 16
) -> tuple[float, float]:
    """Mean of sum_x min(p, q) over image tokens 1.., without CFG and with; p target, q draft, temperature 1.

    This is the acceptance probability of the first drafted token of a round (arXiv 2211.17192).
    """
    plain, with_cfg = [], []
    for some_tokens, some_labels in zip(tokens.split(batch), labels.split(batch), strict=True):
        both = torch.cat([some_labels, torch.full_like(some_labels, target.null_class)])
        logits, hidden = target(both, some_tokens[:, :-1].repeat(2, 1))
        q_logits = target.output(draft(hidden[:, :-1], some_tokens[:, :-1].repeat(2, 1))).float()
        p_logits = logits[:, 1:]
        plain.append(_overlap(p_logits.chunk(2)[0], q_logits.chunk(2)[0]))
        with_cfg.append(_overlap(guided(p_logits, cfg_scale), guided(q_logits, cfg_scale)))
    return float(torch.cat(plain).mean()), float(torch.cat(with_cfg).mean())


def _overlap(p_logits: Tensor, q_logits: Tensor) -> Tensor:
    return torch.minimum(p_logits.softmax(-1), q_logits.softmax(-1)).sum(-1)
