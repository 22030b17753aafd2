from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from coolsd_trt.engines.neighbors import read_neighbors
from coolsd_trt.runtime import BundleError

GOOD = np.array([[1, 2], [0, 2], [1, 0]], np.uint16)


def test_a_table_is_mapped(tmp_path: Path) -> None:
    np.save(tmp_path / "n.npy", GOOD)
    table = read_neighbors(tmp_path / "n.npy", 3)
    assert isinstance(table, np.memmap)
    np.testing.assert_array_equal(table, GOOD)


@pytest.mark.parametrize(
    "table",
    [
        GOOD[:2],
        GOOD[:, :0],
        GOOD[0],
        GOOD.astype(np.int64),
        GOOD + np.uint16(1),
        np.tile(GOOD, 2),
        np.array([{"a": "pickle"}], dtype=object),
    ],
    ids=["rows", "columns", "dimensions", "type", "range", "more than there are", "pickled"],
)
def test_other_arrays_are_refused(tmp_path: Path, table: np.ndarray) -> None:
    np.save(tmp_path / "n.npy", table)
    with pytest.raises(BundleError, match=r"n\.npy: .*Build the bundle again"):
        read_neighbors(tmp_path / "n.npy", 3)


def test_a_file_that_is_no_array(tmp_path: Path) -> None:
    for content in (b"", b"text", b"\x93NUMPY"):
        (tmp_path / "n.npy").write_bytes(content)
        with pytest.raises(BundleError, match="not a readable table"):
            read_neighbors(tmp_path / "n.npy", 3)
