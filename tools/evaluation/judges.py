"""What can be said of generated pictures: the demo classifier's measures, and those of torchmetrics."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ...runtime.errors import InputError
from ..bench.statistics import Estimate, ratio_of_sums, resampled_images
from .classifier import PictureClassifier
from .frechet import Gaussian, frechet_distance

# Each takes an eigendecomposition or two.
FRECHET_RESAMPLES = 300
PICTURE_SUFFIXES = {".png", ".jpg", ".jpeg", ".webp"}


class Judge(Protocol):
    """Measures a set of pictures."""

    def judge(self, pictures: Sequence[Path], prompts: Sequence[int | str]) -> dict[str, Estimate]:
        """Named figures of the pictures in these files, each made from its class id or caption."""


class ClassifierJudge:
    """Fréchet distance to real pictures, and how often the classifier sees the class that was asked for."""

    def __init__(self, classifier: PictureClassifier, class_names: Sequence[str]) -> None:
        if tuple(class_names) != classifier.class_names:
            raise InputError(
                f"--classifier knows {len(classifier.class_names)} classes and they are not the bundle's "
                f"{len(class_names)}. Expected the classifier that was trained on the target's own classes."
            )
        self.classifier = classifier

    def judge(self, pictures: Sequence[Path], prompts: Sequence[int | str]) -> dict[str, Estimate]:
        features = self.features(pictures)
        distances = self.distances(features)
        return {
            "frechet": Estimate.of(distances[0], distances[1:], centred=True),
            "class_accuracy": self.accuracy(features, prompts),
        }

    def features(self, pictures: Sequence[Path]) -> NDArray[np.float64]:
        """[N, D] of picture files."""
        return self.classifier.features(_stack(pictures))

    def distance(self, features: NDArray[np.float64]) -> float:
        """Fréchet distance of features [N, D] from the classifier's reference pictures."""
        return frechet_distance(Gaussian.of(features), self.classifier.reference)

    def distances(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """The distance, followed by those on resampled pictures: [1 + FRECHET_RESAMPLES]."""
        picks = [np.arange(len(features)), *resampled_images(len(features), FRECHET_RESAMPLES)]
        return np.array([self.distance(features[chosen]) for chosen in picks])

    def accuracy(self, features: NDArray[np.float64], classes: Sequence[int | str]) -> Estimate:
        """How often the classifier sees the class that was asked for."""
        right = self.classifier.predict(features) == np.array(classes)
        return ratio_of_sums(right, np.ones(len(right)))


class InceptionJudge:
    """FID (arXiv 1706.08500) by torchmetrics, against the user's pictures; no interval."""

    def __init__(self, reference: Path, batch_size: int = 32) -> None:
        self._metric = _torchmetrics("image.fid", "FrechetInceptionDistance", reset_real_features=False)
        self._batch_size = batch_size
        self._update(_pictures_in(reference), real=True)

    def judge(self, pictures: Sequence[Path], prompts: Sequence[int | str]) -> dict[str, Estimate]:
        self._metric.reset()
        self._update(pictures, real=False)
        return {"fid": Estimate(float(self._metric.compute()))}

    def _update(self, pictures: Sequence[Path], real: bool) -> None:
        import torch

        for first in range(0, len(pictures), self._batch_size):
            batch = _stack(pictures[first : first + self._batch_size])
            self._metric.update(torch.from_numpy(batch.transpose(0, 3, 1, 2).copy()), real=real)


class ClipJudge:
    """CLIP score (arXiv 2104.08718) by torchmetrics: how well pictures fit their captions, 0 to 100."""

    def __init__(self, model: str) -> None:
        self._metric = _torchmetrics("multimodal", "CLIPScore", model_name_or_path=model)

    def judge(self, pictures: Sequence[Path], prompts: Sequence[int | str]) -> dict[str, Estimate]:
        import torch

        scores = []
        for path, prompt in zip(pictures, prompts, strict=True):
            pixels = torch.from_numpy(read_picture(path).transpose(2, 0, 1).copy())
            scores.append(float(self._metric(pixels, str(prompt))))
        return {"clip_score": ratio_of_sums(scores, np.ones(len(scores)))}


def read_picture(path: Path) -> NDArray[np.uint8]:
    """[H, W, 3] uint8. Raises: InputError when the file is no picture."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            return np.asarray(image.convert("RGB"))
    except (OSError, UnidentifiedImageError) as error:
        raise InputError(f"{path}: not a readable picture ({error}).") from None


def _stack(paths: Sequence[Path]) -> NDArray[np.uint8]:
    """[N, H, W, 3]. Raises: InputError when they are not of one size."""
    pictures = [read_picture(path) for path in paths]
    for path, picture in zip(paths, pictures, strict=True):
        if picture.shape != pictures[0].shape:
            height, width, _ = pictures[0].shape
            raise InputError(
                f"{path}: {picture.shape[1]}x{picture.shape[0]} pixels, and {paths[0]} has {width}x{height}. "
                "Crop and resize them to one size."
            )
    return np.stack(pictures)


def _pictures_in(folder: Path) -> list[Path]:
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in PICTURE_SUFFIXES)
    if len(found) < 2:
        raise InputError(
            f"--reference-images {folder}: {len(found)} pictures in it. Expected a folder of real pictures "
            f"({', '.join(sorted(PICTURE_SUFFIXES))}) of one size, the more the better."
        )
    return found


def _torchmetrics(module: str, name: str, **settings: Any) -> Any:
    """A metric of torchmetrics. Raises: InputError that says what to install, or that its model can't be had."""
    import importlib

    try:
        return getattr(importlib.import_module(f"torchmetrics.{module}"), name)(**settings)
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"FID and CLIP score need torchmetrics and what it computes them with ({error}). "
            "Install them: pip install 'coolsd-trt[metrics]'"
        ) from None
    except OSError as error:
        raise InputError(
            f"the model that {name} computes with can't be loaded ({error}). It is downloaded on first use: "
            "check the network and the model's name."
        ) from None
