from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny
from coolsd_trt.engines.bundle import Bundle
from coolsd_trt.engines.manifest import LoweringName
from coolsd_trt.engines.ort import OrtImageDecoder, OrtImageEncoder, OrtTransformer
from coolsd_trt.export.build import BuildRequest, build_bundle
from coolsd_trt.runtime import BackendError
from coolsd_trt.runtime.stepping import chain_step


@pytest.fixture
def target(tiny_bundle: Path) -> OrtTransformer:
    bundle = Bundle.open(tiny_bundle)
    engine = OrtTransformer(bundle.file(bundle.manifest.target.files[0]), bundle.manifest.target, threads=1)
    engine.allocate(4, 20)
    return engine


def tokens(rows: int, length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 8, (rows, length))


def test_caches_are_updated_in_place(target: OrtTransformer) -> None:
    cache = target._caches["key_0"]
    address = cache.ctypes.data
    chain_step(target, tokens(4, 3), np.array([0, 1, 2, 5]))
    assert target._caches["key_0"].ctypes.data == address
    written = np.abs(cache).sum(axis=(1, 3)) > 0
    for row, start in enumerate([0, 1, 2, 5]):
        # Position 0 is the condition's: its RoPE row is zero, and so is its key.
        assert written[row].nonzero()[0].tolist() == [p for p in range(start, start + 3) if p]


def test_onnxruntime_does_not_copy_the_caches(tiny_bundle: Path) -> None:
    """Where past and present are not one buffer it warns "in-place optimization not activated" and doubles the step."""
    script = (
        "import sys; from coolsd_trt.runtime import Pipeline\n"
        "with Pipeline.load(sys.argv[1]) as p: p.generate([0])\nprint('done')"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tiny_bundle)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "done"
    assert "in-place" not in done.stderr
    assert done.stderr == ""


def test_fewer_rows_use_the_first_ones(target: OrtTransformer) -> None:
    ids = tokens(4, 6)
    whole = chain_step(target, ids, np.zeros(4, np.int64)).logits.copy()
    target.allocate(4, 20)
    part = chain_step(target, ids[:2], np.zeros(2, np.int64)).logits
    np.testing.assert_allclose(part, whole[:2], atol=1e-6)


def test_copy_row_moves_a_sequence(target: OrtTransformer) -> None:
    ids = tokens(4, 6)
    chain_step(target, ids, np.zeros(4, np.int64))
    after = tokens(4, 2, seed=1)
    expected = chain_step(target, after, np.full(4, 6)).logits[3].copy()
    target.copy_row(3, 0)
    moved = np.concatenate([after[3:], after[1:]])
    np.testing.assert_array_equal(chain_step(target, moved, np.full(4, 6)).logits[0], expected)


def test_two_bundles_live_in_one_process(tiny_bundle: Path, tmp_path: Path) -> None:
    """Equal file names of external data must not be mixed up between models."""
    tiny.make_checkpoints(tmp_path, seed=99)
    other_path = tmp_path / "other"
    build_bundle(BuildRequest(tmp_path / "target", tmp_path / "image_tokenizer", max_draft_length=8), other_path)
    ids, start = tokens(1, 5), np.zeros(1, np.int64)

    def logits(path: Path) -> np.ndarray:
        bundle = Bundle.open(path)
        engine = OrtTransformer(bundle.file(bundle.manifest.target.files[0]), bundle.manifest.target)
        engine.allocate(1, 20)
        return chain_step(engine, ids, start).logits.copy()

    alone, other, again = logits(tiny_bundle), logits(other_path), logits(tiny_bundle)
    assert np.abs(alone - other).max() > 1e-3
    np.testing.assert_array_equal(alone, again)


def test_an_old_onnxruntime_is_told_to_use_the_portable_lowering(
    tiny_checkpoints: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def built(name: str, lowering: LoweringName | None) -> Bundle:
        request = BuildRequest(
            tiny_checkpoints / "target", tiny_checkpoints / "image_tokenizer", None, lowering=lowering
        )
        build_bundle(request, tmp_path / name)
        return Bundle.open(tmp_path / name)

    new = built("new", "tensor_scatter").manifest.target
    monkeypatch.setattr("coolsd_trt.engines.backends.version", lambda package: "1.23.2")
    with pytest.raises(BackendError, match=r"needs onnxruntime 1\.24.*--lowering portable"):
        OrtTransformer(tmp_path / "new" / new.files[0].name, new)
    old = built("old", None).manifest.target
    assert old.lowering == "portable"
    OrtTransformer(tmp_path / "old" / old.files[0].name, old).close()


def test_closed_graphs_say_so(tiny_bundle: Path) -> None:
    decoder = OrtImageDecoder(tiny_bundle / "image_decoder.onnx", threads=1)
    encoder = OrtImageEncoder(tiny_bundle / "image_encoder.onnx", threads=1)
    for part in (decoder, encoder):
        part.close()
        part.close()
    with pytest.raises(BackendError, match=r"image_decoder\.onnx: it has been closed. Load the bundle again"):
        decoder.decode(np.zeros((1, 16), np.int64))
    with pytest.raises(BackendError, match=r"image_encoder\.onnx: it has been closed"):
        encoder.encode(np.zeros((1, 3, 8, 8), np.float32))
