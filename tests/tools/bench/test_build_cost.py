from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import typer
from coolsd_trt.export.locate import open_checkpoint
from coolsd_trt.export.random_weights import RandomCheckpoint
from coolsd_trt.runtime import InputError
from coolsd_trt.tools.bench import build_cost
from coolsd_trt.tools.bench.synthetic import write_safetensors


def test_a_synthetic_file_is_a_checkpoint(tmp_path: Path) -> None:
    made = RandomCheckpoint("made", {"a": (3, 5), "b.bias": (7,), "c": (2, 2)}, 0, {})
    write_safetensors(tmp_path / "model.safetensors", made)
    found = open_checkpoint(tmp_path)
    assert dict(found.shapes) == dict(made.shapes)
    for name in made.shapes:
        np.testing.assert_array_equal(found.tensor(name), made.tensor(name))


def test_steps_are_timed_for_each_length(tiny_bundle: Path) -> None:
    command = [sys.executable, "-m", "coolsd_trt.tools.bench", "passes", str(tiny_bundle)]
    done = subprocess.run(
        [*command, "--tokens", "1", "--tokens", "3", "--repeats", "2"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    seconds = json.loads(done.stdout)
    assert list(seconds) == ["1", "3"]
    assert min(seconds.values()) > 0


@pytest.mark.parametrize("peak, code", [(1_000_000_000, None), (3_000_000_000, 1)])
def test_a_build_over_its_allowance_fails(
    peak: int, code: int | None, tiny_bundle: Path, tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The processes are stand-ins: the build copies a finished bundle, the run reports made-up seconds."""

    def run(program: str, *arguments: str) -> tuple[str, int]:
        if program == "cli":
            shutil.copytree(tiny_bundle, arguments[-1])
            return "", peak
        return '{"1": 0.5, "6": 0.75}', 10

    def write_checkpoints(size: str, folder: Path) -> dict[str, Path]:
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(b"0" * 1000)
        return {"target": folder}

    monkeypatch.setattr(build_cost, "_run", run)
    monkeypatch.setattr(build_cost, "write_checkpoints", write_checkpoints)
    options = {"size": ["c2i-B"], "precision": ["fp32"], "from_file": True, "work": tmp_path, "repeats": 1}
    if code is None:
        build_cost.build_cost(**options)
    else:
        with pytest.raises(typer.Exit) as stopped:
            build_cost.build_cost(**options)
        assert stopped.value.exit_code == code
    row = capsys.readouterr().out.strip().splitlines()[-1]
    assert ("EXCEEDED" in row) == (code is not None)
    assert "| 500.0 ms | 750.0 ms |" in row
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "options, words",
    [
        ({"size": ["c2i-B", "c2i-Q"]}, "--size c2i-Q: no such size. Expected one of: c2i-B"),
        ({"precision": ["fp8"]}, "--precision fp8: no such precision. Expected one of: fp32"),
    ],
)
def test_unknown_names_are_refused(options: dict[str, list[str]], words: str) -> None:
    with pytest.raises(InputError, match=words):
        build_cost.build_cost(**options)
