"""The pictures as codes: augmented, encoded once, and drawn from while the target and the draft train."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from rich.progress import track

from ...runtime.errors import InputError
from .emoji import EmojiData
from .loop import write_atomically
from .pictures import MAX_SHIFT, sampling_weights, shifted, thinned
from .vq import VqTokenizer, from_uint8

CODES_NAME = "codes.npz"
_UNFLIPPABLE_CATEGORIES = {"Flags", "Symbols", "Component"}
# Lettered, pointing or otherwise handed things: their mirror image is not an emoji.
_UNFLIPPABLE_CLASSES = {
    "award-medal", "book-paper", "computer", "emotion", "game", "hand-fingers-closed", "hand-fingers-open",
    "hand-fingers-partial", "hand-prop", "hand-single-finger", "hands", "hotel", "mail", "money", "music", "office",
    "other-object", "phone", "place-building", "place-map", "place-other", "sound", "time", "writing",
}  # fmt: skip


@dataclass(frozen=True)
class Codes:
    """N pictures in K variants. codes uint16 [N, K, tokens], variant 0 unchanged; labels int64, held_out bool [N]."""

    codes: np.ndarray
    labels: np.ndarray
    held_out: np.ndarray
    weights: np.ndarray

    @classmethod
    def load(cls, folder: Path) -> Codes:
        """Read what `encode` wrote. Raises InputError if it is not there."""
        path = folder / CODES_NAME
        if not path.is_file():
            raise InputError(f"{path} is missing. Make it first: training encode --data {folder} --tokenizer FOLDER")
        with np.load(path, allow_pickle=False) as z:
            return cls(*(z[k] for k in ("codes", "labels", "held_out", "weights")))

    def draw(self, rng: np.random.Generator, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """A training batch: tokens int64 [B, tokens] of random variants, labels int64 [B]."""
        train = np.flatnonzero(~self.held_out)
        weights = self.weights[train] / self.weights[train].sum()
        chosen = train[rng.choice(len(train), batch, p=weights)]
        variants = rng.integers(0, self.codes.shape[1], batch)
        tokens = self.codes[chosen, variants].astype(np.int64)
        return torch.from_numpy(tokens), torch.from_numpy(self.labels[chosen])

    def held_out_pictures(self, limit: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """tokens int64 [M, tokens], labels int64 [M] of the unchanged held-out pictures, evenly thinned to `limit`."""
        rows = np.flatnonzero(self.held_out)
        if limit is not None and len(rows) > limit:
            rows = rows[np.linspace(0, len(rows) - 1, limit).round().astype(int)]
        return torch.from_numpy(self.codes[rows, 0].astype(np.int64)), torch.from_numpy(self.labels[rows])


@torch.no_grad()
def encode(data: EmojiData, model: VqTokenizer, folder: Path, variants: int, seed: int) -> Codes:
    """Encode every picture `variants` times, shifted by up to 3 pixels and mirrored where that makes sense."""
    rng = np.random.default_rng(seed)
    count = len(data.images)
    shifts = rng.integers(-MAX_SHIFT, MAX_SHIFT + 1, (count, variants, 2))
    flips = (rng.random((count, variants)) < 0.5) & flippable(data)[data.labels][:, None]
    shifts[:, 0], flips[:, 0] = 0, False
    encoder = ThriftyEncoder.fit(model, thinned(data.images, 256))
    cells = (data.images.shape[1] // model.config.downsampling) ** 2
    encoded = np.zeros((count, variants, cells), np.uint16)
    for i in track(range(0, count, 16), description="encode"):
        rows = [(j, k) for j in range(i, min(i + 16, count)) for k in range(1 if data.held_out[j] else variants)]
        pictures = [shifted(data.images[j, :, :: -1 if flips[j, k] else 1], *shifts[j, k]) for j, k in rows]
        codes = encoder(from_uint8(torch.from_numpy(np.stack(pictures))))
        for (j, k), row in zip(rows, codes.numpy(), strict=True):
            encoded[j, k] = row
    codes = Codes(encoded, data.labels, data.held_out, sampling_weights(data.bases))
    fields = {k: getattr(codes, k) for k in ("codes", "labels", "held_out", "weights")}
    write_atomically(folder / CODES_NAME, lambda p: np.savez_compressed(p, **fields))
    return codes


class ThriftyEncoder:
    """Entropy-constrained choice of codes (Chou, Lookabaugh and Gray 1989): of similar codes, the more predictable.

    Plain nearest codes flicker: one white background falls into a hundred codes that look the same, and the target
    would spend itself on noise. Cosine similarity is traded against the log frequency of a code and a bonus for
    repeating the left or the upper neighbour; all-white cells all get the same code.
    """

    frequency_weight = 0.04
    repeat_bonus = 0.2

    def __init__(self, model: VqTokenizer, log_frequency: torch.Tensor, white_code: int) -> None:
        self.model, self.log_frequency, self.white_code = model, log_frequency, white_code

    @classmethod
    def fit(cls, model: VqTokenizer, pictures: np.ndarray) -> ThriftyEncoder:
        """Count the codes of some pictures uint8 [N, H, W, 3], and find the one closest to white cells."""
        image = from_uint8(torch.from_numpy(pictures))
        similarity = _similarity(model, image)
        counts = torch.bincount(similarity.argmax(-1).flatten(), minlength=model.config.codebook_size) + 1.0
        white = _white_cells(model, image)
        white_code = int(similarity[white].mean(0).argmax()) if white.any() else -1
        return cls(model, (counts / counts.sum()).log(), white_code)

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        """Codes int64 [B, h*w] of images float32 [B, 3, H, W] in [-1, 1], chosen in raster order."""
        score = 2 * _similarity(self.model, image) + self.frequency_weight * self.log_frequency
        white = _white_cells(self.model, image)
        width = image.shape[3] // self.model.config.downsampling
        codes = torch.empty(score.shape[:2], dtype=torch.int64)
        bonus = torch.full((len(image), 1), self.repeat_bonus)
        for i in range(score.shape[1]):
            if i % width:
                score[:, i].scatter_add_(1, codes[:, i - 1 : i], bonus)
            if i >= width:
                score[:, i].scatter_add_(1, codes[:, i - width : i - width + 1], bonus)
            codes[:, i] = score[:, i].argmax(1)
            if self.white_code >= 0:
                codes[white[:, i], i] = self.white_code
        return codes


def _similarity(model: VqTokenizer, image: torch.Tensor) -> torch.Tensor:
    return model.embed(image).flatten(2).transpose(1, 2) @ model.codebook.T


def _white_cells(model: VqTokenizer, image: torch.Tensor) -> torch.Tensor:
    darkest = -F.max_pool2d(-image.amin(1, keepdim=True), model.config.downsampling)
    return darkest.flatten(1) >= 1


def flippable(data: EmojiData) -> np.ndarray:
    """bool [classes]: may pictures of this class be mirrored?"""
    return np.array([
        category not in _UNFLIPPABLE_CATEGORIES and name not in _UNFLIPPABLE_CLASSES
        for name, category in zip(data.classes, data.categories, strict=True)
    ])  # fmt: skip
