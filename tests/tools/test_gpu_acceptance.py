"""Dry runs of the acceptance script: on the CPU provider, and on a fake GPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from coolsd_trt.engines import backends
from coolsd_trt.engines.trt import opener
from coolsd_trt.tools import gpu_acceptance
from fake_gpu import GPU, FakeCuda, FakeTrt, add_fake_plans

pytest.importorskip("polygraphy", reason="needs polygraphy: pip install polygraphy")


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu_acceptance", *map(str, arguments)])
    gpu_acceptance.main()


def check(out: Path, backend: str) -> dict:
    report = json.loads((out / "report.json").read_text())
    [entry] = report["bundles"]
    assert entry["backend"] == backend
    assert all(result["passed"] for result in entry["parity"])
    assert [(row["rule"], row["batch_size"]) for row in entry["speed"]] == [
        (rule, size) for size in (1, 2) for rule in gpu_acceptance.RULES
    ]
    assert entry["speed"][0]["accepted_length"] == 1.0
    assert f"on {backend}" in (out / "report.md").read_text()
    return report


def test_on_the_cpu(tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(monkeypatch, tiny_bundle, "--backend", "ort-cpu", "--pictures", 2, "--out", tmp_path / "report")
    check(tmp_path / "report", "ort-cpu")


def test_on_a_fake_gpu(tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda()
    monkeypatch.setattr(backends, "probe_gpu", lambda: GPU)
    monkeypatch.setattr(gpu_acceptance, "probe_gpu", lambda: GPU)
    monkeypatch.setattr(backends, "load_module", lambda flavour: FakeTrt(cuda))
    monkeypatch.setattr(opener, "Cuda", lambda: cuda)
    bundle = add_fake_plans(tiny_bundle, tmp_path / "b")
    run(monkeypatch, bundle, "--pictures", 2, "--out", tmp_path / "report")
    assert check(tmp_path / "report", "trt-rtx")["machine"]["gpu"] == "Fake"
    assert cuda.device == {}


def test_no_measurement_starts_after_the_deadline(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(monkeypatch, tiny_bundle, "--backend", "ort-cpu", "--minutes", 0, "--out", tmp_path / "report")
    assert json.loads((tmp_path / "report" / "report.json").read_text())["bundles"][0]["speed"] == []
