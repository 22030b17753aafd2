"""Every command on a machine without an NVIDIA driver: one clear message, exit code 2, never a crash."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from coolsd_trt.tools.cli.commands import app
from fake_gpu import add_fake_plans


def coolsd(*arguments: object) -> subprocess.CompletedProcess[str]:
    # Pretending there is no device keeps the test the same on machines that have one.
    command = [sys.executable, "-m", "coolsd_trt.tools.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})


def refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode == 2, (done.returncode, done.stderr)
    assert done.stderr.count("error: ") == 1
    assert "Traceback" not in done.stderr
    assert all(word in done.stderr for word in words), done.stderr


@pytest.fixture
def bundle(tiny_bundle: Path, tmp_path: Path) -> Path:
    """With plans of both flavours."""
    return add_fake_plans(add_fake_plans(tiny_bundle, tmp_path / "a"), tmp_path / "b", flavour="trt")


# What each command is given beside a bundle; a command of its own test is None.
COMMANDS: dict[str, list[str] | None] = {
    "build": None,
    "calibrate": None,
    "check": [],
    "evaluate": ["--run", "OUT"],
    "generate": ["-c", "0", "--out", "OUT"],
    "inspect": None,
    "profile": [],
}


def test_every_command_is_here() -> None:
    assert {command.name for command in app.registered_commands} == set(COMMANDS)


@pytest.mark.parametrize("backend", ["trt-rtx", "trt", "ort-trt", "ort-cuda"])
@pytest.mark.parametrize("command", [name for name, options in COMMANDS.items() if options is not None])
def test_a_gpu_backend_is_refused(bundle: Path, tmp_path: Path, command: str, backend: str) -> None:
    options = (str(tmp_path / "out") if option == "OUT" else option for option in COMMANDS[command] or ())
    done = coolsd(command, bundle, *options, "--backend", backend)
    refused(done, f"error: backend {backend}: ")
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b"}


def test_generate_on_what_is_there(bundle: Path, tmp_path: Path) -> None:
    done = coolsd("generate", bundle, "-c", 0, "--out", tmp_path / "pictures")
    assert done.returncode == 0, done.stderr
    assert "backend ort-cpu: trt-rtx: " in done.stdout
    assert len(list((tmp_path / "pictures").iterdir())) == 1


def test_check(bundle: Path) -> None:
    refused(coolsd("check", bundle), "there is nothing to compare", "trt-rtx: ")


def test_check_a_graph(bundle: Path) -> None:
    refused(coolsd("check", "--graph", bundle / "target.onnx", "--backend", "trt"), "error: backend trt: ")


def test_calibrate(bundle: Path, tmp_path: Path) -> None:
    """It measures what is there, and says what that is."""
    done = coolsd("calibrate", bundle, "--images", 2, "--max-length", 2, "--dry-run")
    assert done.returncode == 0, done.stderr


def test_gpu_acceptance(bundle: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "coolsd_trt.tools.gpu_acceptance", "--out", tmp_path / "r", "--backend", "trt-rtx"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    refused(done, "error: ")
    assert not (tmp_path / "r").exists()


def test_inspect(bundle: Path) -> None:
    done = coolsd("inspect", bundle)
    assert done.returncode == 0, done.stderr
    assert "sm 8.9" in done.stdout and "trt-rtx 1.7.1" in done.stdout and "trt 1.7.1" in done.stdout
    plans = coolsd("inspect", bundle, "--plans").stdout
    assert "trt-1.7.1-8.9-b4 target" in plans and "2 ATTENTION_INPUT" in plans
    assert re.search(r"draft +verify +1-8 \(8\) +3-9 \(6\) +25\b", plans), plans


def test_inspect_names_a_damaged_plan(bundle: Path) -> None:
    next(bundle.glob("engines/trt-rtx*/draft.plan")).write_bytes(b"")
    refused(coolsd("inspect", bundle), "draft.plan: 0 bytes")


@pytest.mark.parametrize(
    "options, words",
    [
        (["--backend", "trt"], ["backend trt: TensorRT builds for the GPU it builds on", "--backend trt-rtx"]),
        (["--backend", "trt-rtx"], ["--compute-capability is missing, and this machine can't tell"]),
        (["--backend", "npu"], ["--backend 'npu': no such backend", "ort-cpu"]),
        (["--compute-capability", "8.9"], ["--compute-capability is for TensorRT plans"]),
        (["--backend", "trt-rtx", "--compute-capability", "x"], ["--compute-capability 'x'"]),
    ],
)
def test_build(tiny_checkpoints: Path, tmp_path: Path, options: list[str], words: list[str]) -> None:
    parts = ["--target", tiny_checkpoints / "target", "--image-decoder", tiny_checkpoints / "image_tokenizer"]
    refused(coolsd("build", *parts, "--out", tmp_path / "b", *options), *words)
    assert not (tmp_path / "b").exists()


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("tensorrt_rtx") is None, reason="needs tensorrt-rtx")
def test_build_plans(tiny_checkpoints: Path, tmp_path: Path) -> None:
    parts = ["--target", tiny_checkpoints / "target", "--image-decoder", tiny_checkpoints / "image_tokenizer"]
    plans = ["--backend", "trt-rtx", "--compute-capability", "8.9", "--max-batch", 1, "--precision", "fp16"]
    first, second = (coolsd("build", *parts, "--out", tmp_path / "b", *plans) for _ in range(2))
    assert (first.returncode, second.returncode) == (0, 0), first.stderr
    assert "workspace" in first.stdout and "sm89-fp16-b1: built" in first.stdout
    assert "sm89-fp16-b1: up to date, nothing was done" in second.stdout
