from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny
from coolsd_trt.runtime import InputError
from coolsd_trt.runtime.images import save_png
from coolsd_trt.tools.evaluation.classifier import PictureClassifier
from coolsd_trt.tools.evaluation.grid import label
from coolsd_trt.tools.evaluation.judges import ClassifierJudge, ClipJudge, InceptionJudge
from coolsd_trt.tools.evaluation.recorded import record
from safetensors.numpy import save_file


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random, of the tiny bundle's classes."""
    folder, rng = tmp_path_factory.mktemp("classifier"), np.random.default_rng(0)
    shapes = {"conv.0": (27, 4), "conv.1": (36, 4), "embed": (4, 3), "head": (3, 5)}
    tensors = {f"{name}.weight": rng.normal(size=shape).astype(np.float16) for name, shape in shapes.items()}
    tensors |= {f"{name}.bias": np.zeros(shape[1], np.float16) for name, shape in shapes.items()}
    tensors |= {"reference.mean": np.zeros(3, np.float32), "reference.covariance": np.eye(3, dtype=np.float32)}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"strides": [1, 2], "class_names": tiny.CLASS_NAMES}))
    return folder


def report(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "coolsd_trt.tools.evaluation.report", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_page_is_written_from_what_was_run_and_goes_on(tiny_bundle: Path, classifier: Path, tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "docs" / "page.md"
    small = ("--images", 4, "--speed-images", 2, "--recorded-images", 3, "--cfg", 1, "--threads", 1)
    arguments = (tiny_bundle, *small, "--classifier", classifier, "--run", run, "--out", out)
    done = report(*arguments)
    assert done.returncode == 0, done.stderr
    page = out.read_text()
    for title in ("What held", "Schedules at equal", "The optimal residual", "Chain and trees", "Draft length"):
        assert f"## {title}" in page
    for name in ("schedules", "residuals", "lengths"):
        assert f"(page/{name}.png)" in page
        assert (out.parent / "page" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert "nan" not in page
    kept = {path: path.read_bytes() for path in run.rglob("*.json*")}
    out.unlink()
    assert report(*arguments).returncode == 0
    assert out.read_text() == page
    assert {path: path.read_bytes() for path in run.rglob("*.json*")} == kept
    other = report(*arguments[:-6], "--seed", 5, *arguments[-6:])
    assert other.returncode == 2
    assert "recorded.json: made with other settings (seed: 1 instead of 6)" in " ".join(other.stderr.split())


def test_recorded_rounds_compare_schedules_at_one_length(tiny_bundle: Path, tmp_path: Path) -> None:
    found = record(tiny_bundle, tmp_path / "r.json", 6, 3, 0, {"cfg_scale": 1.0}, 1)
    for gain in range(3):
        lengths = [sum(own[gain]) / sum(found.rounds) for own in found.tokens.values()]
        assert max(lengths) - min(lengths) < 0.02
    for k in found.optimal:
        assert found.drift(k, "optimal").value <= found.drift(k, "native").value
        assert found.drift(k, "optimal").value > 0
    again = record(tiny_bundle, tmp_path / "r.json", 6, 3, 0, {"cfg_scale": 1.0}, 1)
    assert again == found


def test_pictures_are_judged_by_class_and_distance(classifier: Path, tmp_path: Path) -> None:
    judge = ClassifierJudge(PictureClassifier.load(classifier), tiny.CLASS_NAMES)
    paths = [tmp_path / f"{i}.png" for i in range(8)]
    for i, path in enumerate(paths):
        save_png(path, np.random.default_rng(i).integers(0, 256, (8, 8, 3), dtype=np.uint8), {})
    seen = judge.classifier.predict(judge.features(paths)).tolist()
    assert judge.judge(paths, seen)["class_accuracy"].value == 1
    assert judge.judge(paths, [(label + 1) % 5 for label in seen])["class_accuracy"].value == 0
    figure = judge.judge(paths, seen)["frechet"]
    assert 0 < figure.low < figure.value < figure.high
    save_png(tmp_path / "wide.png", np.zeros((8, 9, 3), np.uint8), {})
    with pytest.raises(InputError, match=r"9x8 pixels, and .* has 8x8"):
        judge.features([*paths, tmp_path / "wide.png"])
    (tmp_path / "text.png").write_text("no picture")
    with pytest.raises(InputError, match="not a readable picture"):
        judge.features([tmp_path / "text.png"])


def test_missing_packages_and_pictures_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchmetrics", None)
    for judge in (lambda: InceptionJudge(tmp_path), lambda: ClipJudge("any")):
        with pytest.raises(InputError, match=r"pip install 'coolsd-trt\[metrics\]'"):
            judge()


def test_labels_of_the_report_are_distinct() -> None:
    from coolsd_trt.tools.evaluation.ablations import quality_settings, speed_settings

    for settings in (quality_settings({"linear": [1.1, 1.2], "uniform": [1.1]}, [2, 10]), speed_settings()):
        configs = {json.dumps(config.model_dump()) for config in settings}
        assert len({label(config) for config in settings}) == len(configs)
