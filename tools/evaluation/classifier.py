"""A small picture classifier in NumPy: its features carry the Fréchet distance, its answers the class accuracy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...export.locate import open_checkpoint
from ...runtime.errors import InputError
from .frechet import Gaussian

BATCH = 32
CLASSES_KEY, STRIDES_KEY = "class_names", "strides"


@dataclass(frozen=True)
class PictureClassifier:
    """3x3 convolutions with ReLU, their mean over the picture, a linear map to D features; ReLU and another to logits.

    tensors: `conv.{i}.weight` [9 * in, out] (rows: kernel row, column, channel) and `.bias`, `embed.*`, `head.*`
    [in, out]. reference: real pictures that the classifier was not trained on, every class alike.
    """

    class_names: tuple[str, ...]
    strides: tuple[int, ...]
    tensors: Mapping[str, NDArray[np.float32]]
    reference: Gaussian

    @classmethod
    def load(cls, folder: Path) -> PictureClassifier:
        """Read what `training classifier` wrote. Raises: InputError naming the file."""
        checkpoint = open_checkpoint(folder)
        try:
            strides, names = checkpoint.config[STRIDES_KEY], checkpoint.config[CLASSES_KEY]
            tensors = {name: np.asarray(checkpoint.tensor(name), dtype=np.float32) for name in checkpoint.shapes}
            reference = Gaussian(
                tensors.pop("reference.mean").astype(np.float64),
                tensors.pop("reference.covariance").astype(np.float64),
            )
        except KeyError as error:
            raise InputError(
                f"{folder}: {error.args[0]!r} is missing, so this is no picture classifier. "
                "Expected a folder of `training classifier`, such as tools/demo/classifier."
            ) from None
        return cls(tuple(names), tuple(strides), tensors, reference)

    def features(self, images: NDArray[np.uint8]) -> NDArray[np.float64]:
        """[N, H, W, 3] uint8 -> [N, D]."""
        blocks = [self._embed(images[first : first + BATCH]) for first in range(0, len(images), BATCH)]
        return np.concatenate(blocks).astype(np.float64)

    def predict(self, features: NDArray[np.floating[Any]]) -> NDArray[np.int64]:
        """Features [N, D] -> class ids [N]."""
        return self._linear("head", np.maximum(features, 0.0)).argmax(axis=1)

    def _embed(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        x = images.astype(np.float32) / 127.5 - 1.0
        for i, stride in enumerate(self.strides):
            padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
            windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))[:, ::stride, ::stride]
            rows, columns = windows.shape[1:3]
            patches = windows.transpose(0, 1, 2, 4, 5, 3).reshape(len(x) * rows * columns, -1)
            x = np.maximum(self._linear(f"conv.{i}", patches), 0.0).reshape(len(x), rows, columns, -1)
        return self._linear("embed", x.mean(axis=(1, 2)))

    def _linear(self, name: str, x: NDArray[Any]) -> NDArray[Any]:
        return x @ self.tensors[f"{name}.weight"] + self.tensors[f"{name}.bias"]
