"""Picture data: checksum, compositing, split."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from coolsd_trt.runtime.errors import InputError
from coolsd_trt.tools.training import emoji


def test_another_archive_is_refused_before_it_is_read(package, tmp_path):
    path, _ = package
    with pytest.raises(InputError, match=r"SHA-256 found [0-9a-f]{64}, expected fb5fd131"):
        emoji.fetch(path, tmp_path)


def test_a_missing_archive_is_named(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.tgz"):
        emoji.fetch(tmp_path / "nowhere.tgz", tmp_path)


def test_no_npm_says_how_to_go_on(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(InputError, match="--archive"):
        emoji.fetch(None, tmp_path)


def test_a_damaged_archive_is_one_message(tmp_path):
    path = tmp_path / "half.tgz"
    path.write_bytes(b"\x1f\x8b\x08 not a gzip file")
    with pytest.raises(InputError, match=r"half\.tgz"):
        emoji.prepare(path, tmp_path)


def test_prepared_data_round_trips(package, tmp_path):
    path, sha256 = package
    written = emoji.prepare(emoji.fetch(path, tmp_path, sha256), tmp_path / "data")
    read = emoji.EmojiData.load(tmp_path / "data")
    assert read.classes == ("banner", "beast") and read.categories == ("Flags", "Animals & Nature")
    assert read.images.shape == (50, 64, 64, 3) and read.images.dtype == np.uint8
    for name in ("images", "labels", "bases", "held_out", "names"):
        np.testing.assert_array_equal(getattr(read, name), getattr(written, name))
    assert [p.name for p in (tmp_path / "data").iterdir() if "partial" in p.name] == []


def test_pictures_lie_on_white(package, tmp_path):
    data = emoji.prepare(package[0], tmp_path)
    assert (data.images[:, 0, 0] == 255).all()
    half_transparent = data.images[list(data.names).index("thing 0"), 32, 32]
    np.testing.assert_allclose(half_transparent, [127, 187, 157], atol=2)


def test_variants_share_the_side_of_the_split(package, tmp_path):
    data = emoji.prepare(package[0], tmp_path, held_out_fraction=0.3)
    assert 0 < data.held_out.sum() < len(data.held_out)
    for base in np.unique(data.bases):
        assert len(np.unique(data.held_out[data.bases == base])) == 1
    toned = [i for i, name in enumerate(data.names) if name.startswith("thing 3")]
    assert len({int(data.bases[i]) for i in toned if data.names[i] in ("thing 3", "thing 3 (1f3fb)")}) == 1


def test_no_class_is_held_out_whole():
    labels = np.array([0, 1, 1, 1, 1])
    held_out = emoji.split_by_base(labels, np.arange(5), fraction=1.0)
    assert not held_out[0] and held_out.sum() == 3


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1F3C3", "1F3C3-1F3FD-200D-2640-FE0F"),  # person running, woman running: medium skin tone
        ("1F468-200D-1F33E", "1F469-1F3FF-200D-1F33E"),  # man farmer, woman farmer: dark skin tone
        ("1F6B6-200D-27A1-FE0F", "1F6B6"),  # facing right
        ("1F934", "1F478"),
    ],
)
def test_same_concept_same_base(one, other):
    assert emoji.base_of(one) == emoji.base_of(other)


def test_different_concepts_differ():
    assert emoji.base_of("1F468-200D-1F33E") != emoji.base_of("1F468-200D-1F373")
    assert emoji.base_of("1F1E9-1F1EA") != emoji.base_of("1F1EB-1F1F7")
    assert emoji.base_of("2640-FE0F")


def test_missing_data_folder_says_how_to_make_it(tmp_path):
    with pytest.raises(InputError, match="training data --out"):
        emoji.EmojiData.load(tmp_path)
