"""What training on pixels shares: augmented batches of pictures and the loss of a reconstruction."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .vq import from_uint8

MAX_SHIFT = 3
EDGE_WEIGHT, HUE_WEIGHT = 0.5, 1.5


def draw_pictures(
    images: np.ndarray, weights: np.ndarray, rng: np.random.Generator, batch: int, recolour: float
) -> Tensor:
    """A batch float32 [B, 3, H, W] in [-1, 1] of images uint8 [N, H, W, 3], flipped and shifted at random.

    weights [N] are their probabilities; recolour is the share whose colour channels are swapped at random.
    """
    chosen = rng.choice(len(images), batch, p=weights)
    pictures = np.stack([shifted(images[i], *rng.integers(-MAX_SHIFT, MAX_SHIFT + 1, 2)) for i in chosen])
    flip = rng.random(batch) < 0.5
    pictures[flip] = pictures[flip, :, ::-1]
    for i in np.flatnonzero(rng.random(batch) < recolour):
        pictures[i] = pictures[i][..., rng.permutation(3)]
    return from_uint8(torch.from_numpy(pictures))


def picture_loss(reconstruction: Tensor, image: Tensor, cell: int) -> Tensor:
    """L1 + L2 + L1 of the pixel differences + L2 of the hue of whole cells of `cell` pixels; images [B, 3, H, W]."""
    difference = reconstruction - image
    edges = difference.diff(dim=2).abs().mean() + difference.diff(dim=3).abs().mean()
    red, green, blue = F.avg_pool2d(difference, cell).unbind(1)
    hue = (red - blue).square().mean() + 3 * (green - (red + blue) / 2).square().mean()
    return difference.abs().mean() + difference.square().mean() + EDGE_WEIGHT * edges + HUE_WEIGHT * hue


def psnr_db(reconstruction: Tensor, image: Tensor) -> float:
    """Peak signal-to-noise ratio in dB of images in [-1, 1], the reconstruction clamped."""
    error = F.mse_loss(reconstruction.clamp(-1, 1), image)
    return float(10 * torch.log10(4 / error))


def thinned(images: np.ndarray, limit: int) -> np.ndarray:
    """Every n-th of the images, at most about `limit` of them."""
    return images[:: max(1, len(images) // limit)]


def sampling_weights(bases: np.ndarray) -> np.ndarray:
    """Probability float64 [N] of each picture: a base with n variants counts sqrt(n) times, not n times."""
    _, inverse, counts = np.unique(bases, return_inverse=True, return_counts=True)
    weights = counts[inverse] ** -0.5
    return weights / weights.sum()


def shifted(picture: np.ndarray, down: int, right: int) -> np.ndarray:
    """uint8 [H, W, 3] moved by whole pixels; what comes in is white."""
    height, width = picture.shape[:2]
    moved = np.full_like(picture, 255)
    source = picture[max(0, -down) : height - max(0, down), max(0, -right) : width - max(0, right)]
    top, left = max(0, down), max(0, right)
    moved[top : top + source.shape[0], left : left + source.shape[1]] = source
    return moved
