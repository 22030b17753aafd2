"""Fits the tokenizer's decoder to the codes the target is trained on, with encoder and codebook frozen."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from .codes import ThriftyEncoder
from .emoji import EmojiData
from .loop import Task
from .pictures import draw_pictures, picture_loss, psnr_db, sampling_weights, thinned
from .vq import VqTokenizer, from_uint8


class DecoderTask(Task):
    """Reconstruction loss alone. The decoder learnt on nearest codes; the target speaks in thrifty ones."""

    def __init__(self, data: EmojiData, model: VqTokenizer, *, batch: int, tokenizer_id: str = "") -> None:
        self.module = model
        for part in (model.encoder, model.quant_conv, model.quantize):
            part.requires_grad_(False)
        config = model.config
        self.settings: dict[str, Any] = {
            "model": "decoder", "batch": batch, "tokenizer_id": tokenizer_id, "base_width": config.base_width,
            "ch_mult": list(config.ch_mult), "z_channels": config.z_channels,
            "codebook_size": config.codebook_size, "embed_dim": config.embed_dim,
        }  # fmt: skip
        self.batch = batch
        self.encoder = ThriftyEncoder.fit(model, thinned(data.images, 256))
        train = ~data.held_out
        self.images, self.weights = data.images[train], sampling_weights(data.bases[train])
        self.held_out = from_uint8(torch.from_numpy(thinned(data.images[data.held_out], 96)))
        with torch.no_grad():
            self.held_out_codes = self.encoder(self.held_out)

    def loss(self, rng: np.random.Generator) -> tuple[Tensor, dict[str, float]]:
        """One batch of randomly flipped and shifted pictures."""
        image = draw_pictures(self.images, self.weights, rng, self.batch, recolour=0.0)
        with torch.no_grad():
            codes = self.encoder(image)
        return picture_loss(self.module.decode(codes).float(), image, self.module.config.downsampling), {}

    def validate(self) -> dict[str, float]:
        """Reconstruction loss and PSNR in dB of held-out pictures."""
        again = self.module.decode(self.held_out_codes)
        cell = self.module.config.downsampling
        return {
            "loss": float(picture_loss(again, self.held_out, cell)),
            "psnr_db": psnr_db(again, self.held_out),
        }
