"""The classifier that judges the demo pair's pictures: a few convolutions, trained on the same emoji."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.numpy import save_file
from torch import Tensor, nn

from ..evaluation.classifier import CLASSES_KEY, STRIDES_KEY, PictureClassifier
from ..evaluation.frechet import Gaussian
from .codes import flippable
from .emoji import EmojiData, split_by_base
from .export import load_run, write_json
from .loop import Task, write_atomically
from .pictures import MAX_SHIFT, sampling_weights, shifted
from .vq import from_uint8

# More than the other models hold out: the reference needs pictures of (nearly) every class.
HELD_OUT_FRACTION = 0.2
WIDTHS, STRIDES, FEATURES = (16, 32, 64, 128, 128), (1, 2, 2, 2, 2), 64


class ClassifierNet(nn.Module):
    """Pictures [B, 3, H, W] in [-1, 1] -> logits [B, classes]. `PictureClassifier` is the same without torch."""

    def __init__(self, classes: int, dropout: float = 0.3) -> None:
        super().__init__()
        inputs = (3, *WIDTHS[:-1])
        self.conv = nn.ModuleList(
            nn.Conv2d(i, o, 3, stride, padding=1, bias=False)
            for i, o, stride in zip(inputs, WIDTHS, STRIDES, strict=True)
        )
        self.norm = nn.ModuleList(nn.BatchNorm2d(width) for width in WIDTHS)
        self.embed = nn.Linear(WIDTHS[-1], FEATURES)
        self.head = nn.Linear(FEATURES, classes)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        for conv, norm in zip(self.conv, self.norm, strict=True):
            x = F.relu(norm(conv(x)))
        return self.head(self.dropout(F.relu(self.embed(x.mean(dim=(2, 3))))))


class ClassifierTask(Task):
    """Cross entropy on shifted, mirrored and blurred pictures; rare classes are drawn more often than they occur."""

    def __init__(self, data: EmojiData, *, batch: int) -> None:
        self.module = ClassifierNet(len(data.classes))
        self.settings: dict[str, Any] = {"model": "classifier", "batch": batch, "classes": len(data.classes)}
        self.batch = batch
        self.images, self.labels, self.flippable = data.images, data.labels, flippable(data)
        held_out = split_by_base(data.labels, data.bases, HELD_OUT_FRACTION)
        self.train_rows, self.held_out_rows = np.flatnonzero(~held_out), np.flatnonzero(held_out)
        weights = sampling_weights(data.bases)[self.train_rows]
        labels = data.labels[self.train_rows]
        weights /= np.sqrt(np.bincount(labels, weights, minlength=len(data.classes)))[labels]
        self.weights = weights / weights.sum()

    def loss(self, rng: np.random.Generator) -> tuple[Tensor, dict[str, float]]:
        rows = rng.choice(self.train_rows, self.batch, p=self.weights)
        pictures = [shifted(self.images[row], *rng.integers(-MAX_SHIFT, MAX_SHIFT + 1, 2)) for row in rows]
        flip = (rng.random(self.batch) < 0.5) & self.flippable[self.labels[rows]]
        pictures = [picture[:, ::-1] if turned else picture for picture, turned in zip(pictures, flip, strict=True)]
        image = from_uint8(torch.from_numpy(np.stack(pictures)))
        # Generated pictures are as soft as the tokenizer's decoder.
        soft = torch.from_numpy(rng.random(self.batch) < 0.5)[:, None, None, None]
        image = torch.where(soft, F.interpolate(F.avg_pool2d(image, 2), scale_factor=2, mode="bilinear"), image)
        logits = self.module(image)
        labels = torch.from_numpy(self.labels[rows])
        return F.cross_entropy(logits, labels, label_smoothing=0.1), {
            "accuracy": float((logits.argmax(1) == labels).float().mean())
        }

    def validate(self) -> dict[str, float]:
        """Cross entropy and accuracy on held-out emoji, as they are."""
        labels = torch.from_numpy(self.labels[self.held_out_rows])
        image = from_uint8(torch.from_numpy(self.images[self.held_out_rows]))
        logits = torch.cat([self.module(part) for part in image.split(128)])
        return {
            "loss": float(F.cross_entropy(logits, labels)),
            "accuracy": float((logits.argmax(1) == labels).float().mean()),
        }


def write_classifier(run: Path, data: EmojiData, out_dir: Path) -> PictureClassifier:
    """The run's best weights in half precision, with the statistics of the held-out pictures, every class alike."""
    settings, tensors = load_run(run, "classifier")
    net = ClassifierNet(settings["classes"])
    net.load_state_dict(tensors)
    tensors = {name: value.astype(np.float16) for name, value in _plain_tensors(net).items()}
    single = {name: value.astype(np.float32) for name, value in tensors.items()}
    unknown = Gaussian(np.zeros(FEATURES), np.eye(FEATURES))
    classifier = PictureClassifier(data.classes, STRIDES, single, unknown)
    reference = held_out_statistics(classifier, data)
    stored = {
        **tensors,
        "reference.mean": reference.mean.astype(np.float32),
        "reference.covariance": reference.covariance.astype(np.float32),
    }
    out_dir.mkdir(parents=True, exist_ok=True)
    write_json({STRIDES_KEY: list(STRIDES), CLASSES_KEY: list(data.classes)}, out_dir / "config.json")
    path = out_dir / "model.safetensors"
    write_atomically(path, lambda p: save_file(stored, p))
    path.chmod(0o644)
    return PictureClassifier.load(out_dir)


def held_out_statistics(classifier: PictureClassifier, data: EmojiData) -> Gaussian:
    """Of the pictures that the classifier has not seen: every class alike, within it every emoji by its variants."""
    rows = np.flatnonzero(split_by_base(data.labels, data.bases, HELD_OUT_FRACTION))
    labels, weights = data.labels[rows], sampling_weights(data.bases)[rows]
    weights /= np.bincount(labels, weights, minlength=len(data.classes))[labels]
    return Gaussian.of(classifier.features(data.images[rows]), weights)


def _plain_tensors(net: ClassifierNet) -> dict[str, np.ndarray]:
    """float32 tensors as `PictureClassifier` names and lays them out, batch norms folded into the convolutions."""
    plain = {}
    for i, (conv, norm) in enumerate(zip(net.conv, net.norm, strict=True)):
        scale = norm.weight / torch.sqrt(norm.running_var + norm.eps)
        weight = (conv.weight * scale[:, None, None, None]).permute(2, 3, 1, 0).flatten(0, 2)
        plain[f"conv.{i}.weight"], plain[f"conv.{i}.bias"] = weight, norm.bias - norm.running_mean * scale
    for name in ("embed", "head"):
        layer = getattr(net, name)
        plain[f"{name}.weight"], plain[f"{name}.bias"] = layer.weight.T, layer.bias
    return {name: value.detach().contiguous().numpy() for name, value in plain.items()}
