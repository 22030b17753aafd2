"""The VQ-16 tokenizer against the official code: checkpoint -> bundle -> onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from coolsd_trt.engines.ort import OrtImageDecoder, OrtImageEncoder
from coolsd_trt.export.graph.image_decoder import write_image_decoder
from coolsd_trt.export.graph.image_encoder import write_image_encoder
from coolsd_trt.export.locate import open_checkpoint
from coolsd_trt.export.vq import VqTokenizer
from coolsd_trt.runtime.images import to_uint8

from .golden import golden_folder


@pytest.fixture(scope="module")
def tokenizer() -> VqTokenizer:
    return VqTokenizer(open_checkpoint(golden_folder("llamagen_vq16") / "vq_ds16_tiny.pt"), 512)


@pytest.fixture(scope="module")
def data() -> dict[str, np.ndarray]:
    return dict(np.load(golden_folder("llamagen_vq16") / "goldens.npz"))


def test_encoder(tokenizer: VqTokenizer, data: dict[str, np.ndarray], tmp_path: Path) -> None:
    write_image_encoder(tmp_path / "encoder.onnx", tokenizer)
    codes = OrtImageEncoder(tmp_path / "encoder.onnx", threads=1).encode(data["enc_image"])
    np.testing.assert_array_equal(codes, data["enc_codes"])


def test_decoder(tokenizer: VqTokenizer, data: dict[str, np.ndarray], tmp_path: Path) -> None:
    write_image_decoder(tmp_path / "decoder.onnx", tokenizer, (8, 8))
    pixels = OrtImageDecoder(tmp_path / "decoder.onnx", threads=1).decode(data["codes"])
    np.testing.assert_allclose(pixels, data["image"], atol=1e-4, rtol=0)
    difference = np.abs(to_uint8(pixels).astype(int) - data["image_uint8"].astype(int))
    assert difference.max() <= 1
