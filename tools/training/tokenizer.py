"""Trains the VQ tokenizer on the pictures."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .emoji import EmojiData
from .loop import Task
from .pictures import EDGE_WEIGHT, HUE_WEIGHT, draw_pictures, picture_loss, psnr_db, sampling_weights, thinned
from .vq import VqConfig, VqTokenizer, from_uint8


class TokenizerTask(Task):
    """L1 + L2 + edge + hue loss on reconstructions, codebook and commitment loss, dead codes revived from the batch.

    The first `warm_up` steps train a plain autoencoder: codes drawn from an untrained encoder lose the colours.

    Codebook and commitment as in VQ-VAE (arXiv 1711.00937) on unit vectors (ViT-VQGAN, arXiv 2110.04627).
    """

    # Greens and purples are rare among emoji: without swapped colour channels the encoder learns to drop that axis.
    recolour = 0.3
    pull_weight = 2.0

    def __init__(self, data: EmojiData, config: VqConfig, *, batch: int, warm_up: int = 400) -> None:
        self.module = VqTokenizer(config)
        self.settings: dict[str, Any] = {
            "model": "tokenizer", "batch": batch, "warm_up": warm_up,
            "edge_weight": EDGE_WEIGHT, "hue_weight": HUE_WEIGHT,
            "pull_weight": self.pull_weight, "recolour": self.recolour,
            "base_width": config.base_width, "ch_mult": list(config.ch_mult), "z_channels": config.z_channels,
            "codebook_size": config.codebook_size, "embed_dim": config.embed_dim,
        }  # fmt: skip
        self.batch, self.warm_up = batch, warm_up
        train = ~data.held_out
        self.images, self.weights = data.images[train], sampling_weights(data.bases[train])
        self.held_out = torch.from_numpy(thinned(data.images[data.held_out], 96))
        self.module.register_buffer("usage", torch.ones(config.codebook_size))
        self.module.register_buffer("age", torch.zeros((), dtype=torch.int64))
        self._vectors: Tensor | None = None
        spread_vectors(self.module, thinned(self.images, 128))

    def loss(self, rng: np.random.Generator) -> tuple[Tensor, dict[str, float]]:
        """One batch of randomly flipped, shifted and recoloured pictures."""
        image = draw_pictures(self.images, self.weights, rng, self.batch, self.recolour)
        quantised = self.quantised
        reconstruction, vectors, codes = self.module(image, quantised)
        pictured = picture_loss(reconstruction.float(), image, self.module.config.downsampling)
        self._vectors = vectors.detach().movedim(1, -1).flatten(0, 2)
        self.module.age += 1
        if not quantised:
            return pictured, {"picture": float(pictured.detach())}
        chosen_rows = self.module.look_up(codes, vectors.shape[3])
        pull = F.mse_loss(chosen_rows, vectors.detach()) + 0.25 * F.mse_loss(vectors, chosen_rows.detach())
        used = torch.bincount(codes.flatten(), minlength=self.module.config.codebook_size).float()
        self.module.usage.mul_(0.98).add_(used / used.mean(), alpha=0.02)
        metrics = {"picture": float(pictured.detach()), "codes_in_batch": int((used > 0).sum())}
        return pictured + self.pull_weight * pull, metrics

    @property
    def quantised(self) -> bool:
        """Whether the warm-up as a plain autoencoder is over."""
        return int(self.module.age) >= self.warm_up

    def validate(self) -> dict[str, float]:
        """Reconstruction loss, PSNR in dB and number of codes used on held-out pictures."""
        image = from_uint8(self.held_out)
        reconstruction, _, codes = self.module(image)
        return {
            "loss": float(picture_loss(reconstruction, image, self.module.config.downsampling)),
            "psnr_db": psnr_db(reconstruction, image),
            "codes": float(codes.unique().numel()),
            "code_dimensions": effective_dimensions(self.module.codebook[codes].flatten(0, 1)),
        }

    def after_step(self, optimizer: torch.optim.Optimizer, rng: np.random.Generator) -> None:
        """Draw the first codes when the warm-up ends; then replace hardly used ones by vectors of this batch."""
        if int(self.module.age) == self.warm_up:
            first_codes(self.module, self.images[rng.choice(len(self.images), 128, p=self.weights)], rng)
        if not self.quantised:
            return
        dead = (self.module.usage < 0.03).nonzero().flatten()
        if len(dead) == 0 or self._vectors is None:
            return
        weight = self.module.quantize.embedding.weight
        rows = torch.from_numpy(rng.choice(len(self._vectors), len(dead)))
        with torch.no_grad():
            weight[dead] = self._vectors[rows] * weight.norm(dim=1).median()
        for moment in ("exp_avg", "exp_avg_sq"):
            if moment in optimizer.state[weight]:
                optimizer.state[weight][moment][dead] = 0
        self.module.usage[dead] = 1.0


@torch.no_grad()
def spread_vectors(model: VqTokenizer, pictures: np.ndarray) -> None:
    """Whiten `quant_conv` on pictures uint8 [N, H, W, 3], so that the first encoder vectors fill the sphere.

    An untrained encoder's vectors nearly coincide after normalisation.
    """
    latent, inked = _latents(model, pictures)
    latent = latent[inked]
    values, directions = torch.linalg.eigh(torch.cov(latent.T).double())
    top = slice(-model.config.embed_dim, None)
    whitening = (directions[:, top] / values[top].clamp_min(1e-8).sqrt()).T.float()
    model.quant_conv.weight.copy_(whitening[:, :, None, None])
    model.quant_conv.bias.copy_(-whitening @ latent.mean(0))


@torch.no_grad()
def first_codes(model: VqTokenizer, pictures: np.ndarray, rng: np.random.Generator, rounds: int = 8) -> None:
    """Spherical k-means of the encoder vectors of pictures uint8 [N, H, W, 3] becomes the codebook."""
    latent, inked = _latents(model, pictures)
    vectors = F.normalize(latent @ model.quant_conv.weight[:, :, 0, 0].T + model.quant_conv.bias, dim=1)
    inked_rows = inked.nonzero().flatten().numpy()
    codes = vectors[torch.from_numpy(rng.choice(inked_rows, model.config.codebook_size, replace=False))].clone()
    for _ in range(rounds):
        nearest = (vectors @ codes.T).argmax(1)
        sums = torch.zeros_like(codes).index_add_(0, nearest, vectors)
        codes = torch.where(sums.norm(dim=1, keepdim=True) > 0, F.normalize(sums, dim=1), codes)
    model.quantize.embedding.weight.copy_(codes)


def _latents(model: VqTokenizer, pictures: np.ndarray) -> tuple[Tensor, Tensor]:
    """Encoder outputs [cells, z_channels] before quant_conv, and bool [cells]: is the cell not all white?"""
    image = from_uint8(torch.from_numpy(pictures))
    inked = F.max_pool2d(-image.amin(1, keepdim=True), model.config.downsampling).flatten() > -0.9
    return model.encoder(image).movedim(1, -1).flatten(0, 2), inked


def effective_dimensions(vectors: Tensor) -> float:
    """(sum e)^2 / sum e^2 of the covariance eigenvalues e of vectors [N, D]: D if spread evenly, 1 on a line."""
    eigenvalues = torch.linalg.eigvalsh(torch.cov(vectors.T))
    return float(eigenvalues.sum() ** 2 / eigenvalues.square().sum())
