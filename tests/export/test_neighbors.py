"""The neighbour table against the reference's, and inside a bundle."""

from __future__ import annotations

import numpy as np
import pytest
from coolsd_trt.export import neighbors
from coolsd_trt.export.neighbors import nearest_codes

from .golden import golden_folder


def load_array(file: str) -> np.ndarray:
    return np.load(golden_folder("lantern_llamagen", file) / file)


def test_the_references_table() -> None:
    codebook = load_array("codebook_embedding.npy")
    table = nearest_codes(codebook, 1000)
    expected = load_array("top_511_indices.npy")
    assert table.dtype == np.uint16
    assert table.shape == expected.shape
    # Ties are unspecified: where the codes differ, their distances must not.
    row, column = np.nonzero(table != expected)
    assert len(row) < 20
    for chosen in (table, expected):
        assert not (chosen == np.arange(512)[:, None]).any()
    distance = [np.linalg.norm(codebook[row] - codebook[t[row, column]], axis=1) for t in (table, expected)]
    np.testing.assert_allclose(*distance, rtol=1e-5)
    few = np.load(golden_folder("llamagen_vq16") / "goldens.npz")["top_neighbours_uint16"]
    np.testing.assert_array_equal(nearest_codes(codebook, 32), few)


def test_blocks_do_not_change_it(monkeypatch: pytest.MonkeyPatch) -> None:
    codebook = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    whole = nearest_codes(codebook, 9)
    monkeypatch.setattr(neighbors, "BLOCK_DISTANCES", 7 * 50)
    np.testing.assert_array_equal(nearest_codes(codebook, 9), whole)
    distances = np.linalg.norm(codebook[:, None] - codebook[None], axis=2) + np.diag(np.full(50, np.inf))
    np.testing.assert_array_equal(whole, np.argsort(distances, axis=1)[:, :9])
