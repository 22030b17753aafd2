from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from coolsd_trt.runtime import InputError
from coolsd_trt.tools.evaluation.frechet import frechet_distance
from coolsd_trt.tools.training import emoji
from coolsd_trt.tools.training.classifier import (
    HELD_OUT_FRACTION,
    ClassifierNet,
    ClassifierTask,
    held_out_statistics,
    write_classifier,
)
from coolsd_trt.tools.training.export import load_run
from coolsd_trt.tools.training.loop import LoopSettings, train
from coolsd_trt.tools.training.vq import from_uint8


@pytest.fixture(scope="module")
def data(package: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory) -> emoji.EmojiData:
    return emoji.prepare(package[0], tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def run(data: emoji.EmojiData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run")
    torch.manual_seed(0)
    train(ClassifierTask(data, batch=8), LoopSettings(12, 3e-3, validate_every=12, checkpoint_every=12), out)
    return out


def test_numpy_computes_what_torch_does(data: emoji.EmojiData, run: Path, tmp_path: Path) -> None:
    classifier = write_classifier(run, data, tmp_path / "classifier")
    assert classifier.class_names == data.classes
    net = ClassifierNet(len(data.classes)).eval()
    net.load_state_dict(load_run(run, "classifier")[1])
    images = data.images[:40]
    with torch.no_grad():
        x = from_uint8(torch.from_numpy(images))
        for conv, norm in zip(net.conv, net.norm, strict=True):
            x = torch.relu(norm(conv(x)))
        features, logits = net.embed(x.mean(dim=(2, 3))).numpy(), net(from_uint8(torch.from_numpy(images))).numpy()
    found = classifier.features(images)
    # The committed weights are half precision.
    np.testing.assert_allclose(found, features, atol=5e-3 * np.abs(features).max())
    clear = np.abs(np.diff(np.sort(logits, axis=1)[:, -2:])[:, 0]) > 0.05
    assert clear.any()
    np.testing.assert_array_equal(classifier.predict(found)[clear], logits.argmax(axis=1)[clear])


def test_the_reference_is_of_unseen_pictures_with_every_class_alike(
    data: emoji.EmojiData, run: Path, tmp_path: Path
) -> None:
    classifier = write_classifier(run, data, tmp_path / "classifier")
    task = ClassifierTask(data, batch=8)
    assert not set(data.bases[task.train_rows]) & set(data.bases[task.held_out_rows])
    assert len(task.held_out_rows) > HELD_OUT_FRACTION / 2 * len(data.images)
    features, labels = classifier.features(data.images[task.held_out_rows]), data.labels[task.held_out_rows]
    assert set(labels) == {0, 1}
    # Without variants of unequal number, every class alike is the mean of the class means.
    alone = emoji.EmojiData(**{**vars(data), "bases": np.arange(len(data.bases))})
    rows = np.flatnonzero(emoji.split_by_base(alone.labels, alone.bases, HELD_OUT_FRACTION))
    features, labels = classifier.features(data.images[rows]), data.labels[rows]
    expected = np.mean([features[labels == k].mean(axis=0) for k in (0, 1)], axis=0)
    np.testing.assert_allclose(held_out_statistics(classifier, alone).mean, expected, rtol=1e-6)
    # Kept in single precision.
    assert frechet_distance(classifier.reference, held_out_statistics(classifier, data)) < 1e-3


def test_another_run_is_refused(data: emoji.EmojiData, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="training classifier"):
        write_classifier(tmp_path, data, tmp_path / "out")
