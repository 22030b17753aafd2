from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from PIL import Image


def coolsd(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "coolsd_trt.tools.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def build(checkpoints: Path, out: Path) -> subprocess.CompletedProcess[str]:
    parts = [f"--{part.replace('_', '-')}" for part in ("target", "draft")]
    options = [value for part in parts for value in (part, checkpoints / part[2:])]
    return coolsd("build", *options, "--image-decoder", checkpoints / "image_tokenizer", "--out", out)


def test_build_then_no_op(tiny_checkpoints: Path, tmp_path: Path) -> None:
    first, second = (build(tiny_checkpoints, tmp_path / "bundle") for _ in range(2))
    assert (first.returncode, second.returncode) == (0, 0), first.stderr
    assert re.search(r"target +0\.\d\d M +2 +fp32", first.stdout)
    assert "is up to date" in second.stdout


def test_integer_weights_suit_the_backend(tiny_checkpoints: Path, tmp_path: Path) -> None:
    """onnxruntime's CUDA provider, too, has no product of unsigned bytes."""
    parts = ("--target", tiny_checkpoints / "target", "--image-decoder", tiny_checkpoints / "image_tokenizer")
    for backend, form in (("ort-cpu", "dynamic"), ("ort-cuda", "weight-only")):
        out = tmp_path / backend
        done = coolsd("build", *parts, "--precision", "int8", "--backend", backend, "--out", out)
        assert done.returncode == 0, done.stderr
        assert json.loads((out / "manifest.json").read_text())["target"]["quantisation"] == form
    refused = coolsd("build", *parts, "--precision", "bf16", "--backend", "ort-cuda", "--out", tmp_path / "b")
    assert refused.returncode == 2
    assert "--precision bf16: " in refused.stderr


def test_build_names_a_bad_checkpoint(tiny_checkpoints: Path, tmp_path: Path) -> None:
    (tmp_path / "picture.safetensors").write_bytes(b"\x89PNG")
    done = coolsd(
        *("build", "--target", tmp_path / "picture.safetensors", "--out", tmp_path / "bundle"),
        *("--image-decoder", tiny_checkpoints / "image_tokenizer"),
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "picture.safetensors: this is a PNG picture" in done.stderr
    assert not (tmp_path / "bundle").exists()


def test_inspect_shows_what_it_is(tiny_bundle: Path) -> None:
    done = coolsd("inspect", tiny_bundle, "--classes", "--tensors")
    assert done.returncode == 0, done.stderr
    for words in ("4x4 = 16 tokens of 8", "5 classes", "cat-face", "past_key_0", "files intact", "rule=cool"):
        assert words in done.stdout, words
    manifest = json.loads(coolsd("inspect", tiny_bundle, "--json").stdout)
    assert manifest["schema_version"] == 1


def test_inspect_refuses_what_it_is_not(tmp_path: Path) -> None:
    Image.new("RGB", (1, 1)).save(tmp_path / "x.png")
    for path, words in ((tmp_path, "no manifest.json"), (tmp_path / "x.png", "carries no")):
        done = coolsd("inspect", path)
        assert done.returncode == 2
        assert words in done.stderr


def test_no_arguments_show_help_and_unknown_options_exit_2() -> None:
    assert "generate" in coolsd("--help").stdout
    assert coolsd("generate").returncode == 2
    assert coolsd("inspect", "x", "--wrong").returncode == 2
