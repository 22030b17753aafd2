from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from coolsd_trt.runtime import InputError
from coolsd_trt.runtime.images import METADATA_KEY, make_grid, read_parameters, save_png, to_uint8
from PIL import Image
from PIL.PngImagePlugin import PngInfo


def test_pixels_are_clamped_and_rounded() -> None:
    pixels = np.array([-3.0, -1.0, 0.0, 1.0, 2.0, 1 / 255], np.float32)
    image = to_uint8(np.broadcast_to(pixels, (1, 3, 1, 6)))
    assert image.shape == (1, 1, 6, 3)
    assert image[0, 0, :, 0].tolist() == [0, 0, 128, 255, 255, 128]


def test_a_png_carries_its_parameters(tmp_path: Path) -> None:
    path, image = tmp_path / "a.png", np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    save_png(path, image, {"seed": 3, "class": "Ü"})
    assert read_parameters(path) == {"seed": 3, "class": "Ü"}
    np.testing.assert_array_equal(np.asarray(Image.open(path)), image)
    assert [file.name for file in tmp_path.iterdir()] == ["a.png"]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    save_png(path, np.zeros((2, 2, 3), np.uint8), {"seed": 1})
    with pytest.raises(TypeError):
        save_png(path, np.zeros((2, 2, 5), np.uint8), {"seed": 2})
    assert read_parameters(path) == {"seed": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["a.png"]


def test_grid_is_square_on_white() -> None:
    images = [np.full((2, 3, 3), value, np.uint8) for value in range(5)]
    grid = make_grid(images, gap=1)
    assert grid.shape == (2 * 2 + 1, 3 * 3 + 2, 3)
    assert (grid[:2, 8:] == 2).all()
    assert (grid[3:, :3] == 3).all()
    assert (grid[3:, 8:] == 255).all()
    assert (grid[2] == 255).all()


@pytest.mark.parametrize("content", [b"", b"not a picture"])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.png"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"x\.png: not a readable picture"):
        read_parameters(path)


def test_a_foreign_png_is_refused(tmp_path: Path) -> None:
    Image.new("RGB", (1, 1)).save(tmp_path / "x.png")
    with pytest.raises(InputError, match="carries no"):
        read_parameters(tmp_path / "x.png")


def broken_json(path: Path) -> None:
    info = PngInfo()
    info.add_text(METADATA_KEY, "{")
    Image.new("RGB", (1, 1)).save(path, pnginfo=info)


def text_that_unpacks_to_too_much(path: Path) -> None:
    info = PngInfo()
    info.add_text(METADATA_KEY, " " * (2 << 20), zip=True)
    Image.new("RGB", (1, 1)).save(path, pnginfo=info)


def a_picture_that_unpacks_to_too_much(path: Path) -> None:
    Image.new("1", (20000, 20000)).save(path)


@pytest.mark.parametrize("write", [broken_json, text_that_unpacks_to_too_much, a_picture_that_unpacks_to_too_much])
def test_broken_pictures_are_refused(tmp_path: Path, write: Callable[[Path], None]) -> None:
    write(tmp_path / "x.png")
    with pytest.raises(InputError, match=r"x\.png: not a readable picture"):
        read_parameters(tmp_path / "x.png")
