from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from coolsd_trt.engines.bundle import Bundle
from coolsd_trt.export.build import BuildRequest, build_bundle
from coolsd_trt.runtime import SpeculativeConfig
from coolsd_trt.tools.bench.statistics import Estimate
from coolsd_trt.tools.calibration.prediction import Prediction
from coolsd_trt.tools.calibration.search import Candidate
from coolsd_trt.tools.cli import calibrate as module
from coolsd_trt.tools.cli.commands import app
from coolsd_trt.tools.cli.errors import run_app
from rich.console import Console

FAST = ("--images", 2, "--max-length", 2, "--check-images", 0, "--threads", 1)


@pytest.fixture(autouse=True)
def consoles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made while stdout is captured."""
    monkeypatch.setattr(module, "stdout", Console(width=200))
    monkeypatch.setattr(module, "stderr", Console(stderr=True))


def calibrate(bundle: Path, *options: object) -> int:
    arguments: Sequence[str] = ["calibrate", str(bundle), *map(str, (*FAST, *options))]
    with pytest.raises(SystemExit) as exit_:
        run_app(lambda: app(arguments))
    return int(exit_.value.code or 0)


def test_the_sampling_it_holds_for_becomes_the_default_and_is_named(
    tiny_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))
    assert calibrate(bundle, "--top-k", 7) == 0
    assert "top_k 7 (was 2000)" in capsys.readouterr().out
    assert Bundle.open(bundle).manifest.sampling.top_k == 7
    assert calibrate(bundle) == 0
    assert "(was" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("drift", "speed_up", "words"),
    [
        (Estimate(0.08, 0.06, 0.1), Estimate(1.5, 1.4, 1.6), "above the budget of 0.05"),
        (Estimate(0.04, 0.03, 0.05), Estimate(0.8, 0.7, 0.9), "below that of `ar`"),
        (Estimate(0.06, 0.04, 0.08), Estimate(0.9, 0.8, 1.1), None),
    ],
)
def test_a_setting_that_the_check_refutes_is_not_kept(
    tiny_bundle: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    drift: Estimate,
    speed_up: Estimate,
    words: str | None,
) -> None:
    bundle = Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))
    before = Bundle.open(bundle).manifest
    config = SpeculativeConfig(rule="cool", delta=1.7, draft_length=2)
    measured = {"accepted_length": Estimate(1.5, 1.4, 1.6), "drift_per_token": drift, "speed_up": speed_up}
    monkeypatch.setattr(module, "best_within", lambda *_: Candidate(config, Prediction(1.5, 0.05), 1.4))
    monkeypatch.setattr(module, "measure_setting", lambda *_: measured)
    code = calibrate(bundle, "--check-images", 2, "--json", tmp_path / "report.json")
    captured = capsys.readouterr()
    if words is None:
        assert code == 0
        assert Bundle.open(bundle).manifest.speculative == config
    else:
        assert code == 2
        assert words in captured.err
        assert "default is now" not in captured.out
        assert Bundle.open(bundle).manifest == before
    assert json.loads((tmp_path / "report.json").read_text())["measured"]["speed_up"]["value"] == speed_up.value


def test_json_on_stdout_is_alone_there(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert calibrate(tiny_bundle, "--dry-run", "--json", "-") == 0
    assert json.loads(capsys.readouterr().out)["frontier"]
    assert list(tmp_path.iterdir()) == []


def test_a_bundle_without_room_and_a_bad_seed(
    tiny_checkpoints: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = (tiny_checkpoints / part for part in ("target", "image_tokenizer", "draft"))
    build_bundle(BuildRequest(*folders, max_draft_length=0), tmp_path / "bundle")
    assert calibrate(tmp_path / "bundle") == 2
    assert "no room for drafts. Build it again with --max-draft" in capsys.readouterr().err
    assert calibrate(tmp_path / "bundle", "--seed", -1) == 2
    assert "--seed" in capsys.readouterr().err
    assert calibrate(tmp_path / "bundle", "--json", tmp_path) == 2
    assert f"--json {tmp_path}: it is a folder" in capsys.readouterr().err
