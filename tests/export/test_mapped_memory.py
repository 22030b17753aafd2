"""Reading a checkpoint from end to end does not hold it in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from coolsd_trt.export import checkpoint
from coolsd_trt.export.locate import open_checkpoint
from safetensors.numpy import save_file

TENSORS = {f"t{i}": np.full((64, 64), i, dtype=np.float32) for i in range(8)}


def write_safetensors(path: Path) -> None:
    save_file(TENSORS, path)


def write_pickle(path: Path) -> None:
    torch.save({"model": {name: torch.from_numpy(value) for name, value in TENSORS.items()}}, path)


@pytest.mark.parametrize("write", [write_safetensors, write_pickle], ids=lambda write: write.__name__)
def test_files_are_mapped_anew_once_enough_was_read(write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "weights.pt")
    monkeypatch.setattr(checkpoint, "MAPPED_BYTES", 2 * TENSORS["t0"].nbytes)
    opened = open_checkpoint(tmp_path / "weights.pt")
    resident = []
    for name, expected in TENSORS.items():
        np.testing.assert_array_equal(opened.tensor(name), expected)
        resident.append(opened._mapped // expected.nbytes)
    assert max(resident) == 3
    assert resident.count(1) >= 2
