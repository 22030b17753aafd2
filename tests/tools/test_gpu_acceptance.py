"""Dry runs of the acceptance script: on the CPU provider, and on a fake GPU."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from coolsd_trt.engines import backends
from coolsd_trt.engines.bundle import read_manifest
from coolsd_trt.engines.trt import opener, plans
from coolsd_trt.export import random_weights
from coolsd_trt.export.random_weights import Size
from coolsd_trt.runtime import BackendError, InputError
from coolsd_trt.tools import acceptance_bundles, gpu_acceptance
from coolsd_trt.tools.acceptance_bundles import usable_flavour
from coolsd_trt.tools.gpu_acceptance import RULES, Budget, app
from fake_gpu import GPU, FakeCuda, FakeTrt, add_fake_plans
from typer.testing import CliRunner

pytest.importorskip("polygraphy", reason="needs polygraphy: pip install polygraphy")


def run(out: Path, *arguments: object, exit_code: int = 0) -> dict:
    done = CliRunner().invoke(app, [*map(str, arguments), "--out", str(out)], catch_exceptions=False)
    assert done.exit_code == exit_code, done.output
    report = json.loads((out / "report.json").read_text())
    assert (out / "report.md").read_text() in done.output
    return report


def check(report: dict, backend: str) -> None:
    [entry] = report["bundles"]
    assert (entry["backend"], "error" in entry, "skipped" in entry) == (backend, False, False)
    assert all(result["passed"] for result in entry["parity"])
    assert [(row["rule"], row["batch_size"]) for row in entry["speed"]] == [
        (rule, size) for size in (1, 2) for rule in RULES
    ]
    assert entry["speed"][0]["accepted_length"] == 1.0


def test_on_the_cpu(tiny_bundle: Path, tmp_path: Path) -> None:
    check(run(tmp_path, tiny_bundle, "--backend", "ort-cpu", "--pictures", 2), "ort-cpu")
    assert "on ort-cpu" in (tmp_path / "report.md").read_text()


def test_on_a_fake_gpu(tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda()
    monkeypatch.setattr(backends, "probe_gpu", lambda: GPU)
    monkeypatch.setattr(gpu_acceptance, "probe_gpu", lambda: GPU)
    monkeypatch.setattr(backends, "load_module", lambda flavour: FakeTrt(cuda))
    monkeypatch.setattr(opener, "Cuda", lambda: cuda)
    bundle = add_fake_plans(tiny_bundle, tmp_path / "b")
    report = run(tmp_path / "report", bundle, "--pictures", 2)
    check(report, "trt-rtx")
    assert report["machine"]["gpu"] == "Fake"
    assert cuda.device == {}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> str:
    """A size with random weights that no one released."""
    shapes = random_weights.tokenizer_shapes
    monkeypatch.setitem(random_weights.SIZES, "small", Size(hidden=128, layers=1, heads=2, ffn=64, grid=2))
    monkeypatch.setattr(random_weights, "VOCAB", 64)
    monkeypatch.setattr(random_weights, "tokenizer_shapes", lambda: shapes(32, (1, 1), 8, 64))
    return "small"


@pytest.mark.usefixtures("small")
def test_it_builds_what_it_is_not_given(tmp_path: Path) -> None:
    report = run(tmp_path, "--only", "small", "--backend", "ort-cpu", "--pictures", 2)
    check(report, "ort-cpu")
    assert report["bundles"][0]["build"]["plans"] == []
    assert (tmp_path / "bundles" / "small" / "manifest.json").is_file()


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_it_builds_plans_for_the_gpu_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorrt_rtx", reason="needs tensorrt-rtx: pip install 'coolsd-trt[rtx]'")
    monkeypatch.setattr(plans, "probe_gpu", lambda: GPU)
    path, built = acceptance_bundles.make_bundle(tmp_path, "small", "trt-rtx", max_batch=2)
    [engines] = read_manifest(path).engine_sets
    assert (engines.compute_capability, engines.precision, engines.max_batch) == ("8.9", "fp16", 2)
    assert {plan["part"] for plan in built["plans"]} == {"target", "draft", "draft sampler", "image decoder"}
    assert all(plan["bytes"] > 0 for plan in built["plans"])


def test_the_demo_pair_is_one_of_them(tmp_path: Path) -> None:
    report = run(tmp_path, "--only", "demo", "--backend", "ort-cpu", "--pictures", 1)
    [entry] = report["bundles"]
    assert [row["rule"] for row in entry["speed"]] == list(RULES)
    assert entry["speed"][1]["accepted_length"] > 1.5


def test_nothing_begins_that_would_not_end_in_time(tiny_bundle: Path, tmp_path: Path) -> None:
    report = run(tmp_path, "--only", "demo", "--backend", "ort-cpu", "--minutes", 0)
    assert report["bundles"] == [{"bundle": "demo", "skipped": "no time is left"}]
    budget = Budget(100)
    with budget.learning(1_000):
        time.sleep(0.001)
    assert budget.estimate(10**9) == 0, "what is small says nothing of what is large"
    with budget.learning(gpu_acceptance.LARGE):
        time.sleep(0.01)
    assert budget.refuses(budget.estimate(gpu_acceptance.LARGE)) is None
    assert "s are left" in (budget.refuses(budget.estimate(gpu_acceptance.LARGE * 10**5)) or "")


@pytest.mark.parametrize("wrong", [("--backend", "npu"), ("--only", "c2i-S")])
def test_a_name_that_is_none_is_refused(tmp_path: Path, wrong: tuple[str, str]) -> None:
    with pytest.raises(InputError, match=wrong[1]):
        run(tmp_path, *wrong)
    assert not (tmp_path / "report.json").exists()


def test_an_error_is_reported_and_the_next_bundle_examined(tiny_bundle: Path, tmp_path: Path) -> None:
    report = run(tmp_path, tmp_path / "missing", tiny_bundle, "--backend", "ort-cpu", "--pictures", 1, exit_code=1)
    assert "no such bundle" in report["bundles"][0]["error"]
    assert len(report["bundles"][1]["speed"]) == len(RULES)


def test_plans_are_built_where_tensorrt_and_a_gpu_are(monkeypatch: pytest.MonkeyPatch) -> None:
    assert usable_flavour("ort-cpu") is None
    monkeypatch.setattr(acceptance_bundles, "probe_gpu", lambda: GPU)
    monkeypatch.setattr(acceptance_bundles, "load_module", lambda flavour: None)
    assert (usable_flavour("auto"), usable_flavour("trt")) == ("trt-rtx", "trt")

    def missing(flavour: object) -> None:
        raise BackendError("not installed.")

    monkeypatch.setattr(acceptance_bundles, "load_module", missing)
    assert usable_flavour("auto") is None
    with pytest.raises(BackendError, match="not installed"):
        usable_flavour("trt")
