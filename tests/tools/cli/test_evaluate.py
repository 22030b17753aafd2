from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest

from .test_generate import coolsd

GRID = ["--rule", "lossless", "--rule", "uniform", "--delta", 1.2, "--delta", 2, "--draft-length", 2]


def test_figures_plot_and_pictures(tiny_bundle: Path, tmp_path: Path) -> None:
    out = tmp_path / "new"
    files = ["--json", out / "e.json", "--csv", out / "e.csv", "--plot", out / "e.svg", "--run", tmp_path / "run"]
    done = coolsd("evaluate", tiny_bundle, *GRID, "--images", 3, "--batch-size", 2, *files)
    assert done.returncode == 0, done.stderr
    rows = json.loads((out / "e.json").read_text())["rows"]
    assert [row["name"] for row in rows] == ["ar", "lossless L 2", "uniform L 2 delta 1.2", "uniform L 2 delta 2"]
    assert rows[0]["accepted_length"]["value"] == rows[0]["speed_up"]["value"] == 1
    assert rows[1]["drift_per_token"]["value"] == 0 < rows[2]["drift_per_token"]["value"]
    assert not rows[1]["lossy"]
    assert rows[2]["lossy"]
    for row in rows:
        assert row["target_passes"]["low"] <= row["target_passes"]["value"] <= row["target_passes"]["high"]
        assert row["name"] in done.stdout
    with (out / "e.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [float(line["accepted_length"]) for line in table] == [row["accepted_length"]["value"] for row in rows]
    assert [line["delta"] for line in table][2:] == ["1.2", "2.0"]
    assert (out / "e.svg").read_text().count("<svg") == 1
    assert len(list((tmp_path / "run" / "pictures").rglob("*.png"))) == 4 * 3


def test_native_drift_is_called_unknown(tiny_bundle: Path, tmp_path: Path) -> None:
    options = ["--rule", "lantern++", "--resampling", "native", "--lantern-k", 3, "--images", 2, "--json", "-"]
    done = coolsd("evaluate", tiny_bundle, *options, "--run", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout)["rows"][1]
    assert row["drift_per_token"] == {"value": None, "low": None, "high": None}
    table = coolsd("evaluate", tiny_bundle, *options[:-2], "--run", tmp_path / "run")
    assert "unknown" in table.stdout
    assert "nan" not in table.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--plot", "e.pdf"], "Expected .png or .svg"),
        (["--rule", "cool", "--grid", "g.json"], "not both"),
        (["--captions", "c.txt"], "takes classes"),
        (["--clip-model", "x"], "takes classes"),
        (["--rule", "lossless", "--nu", "1"], "--nu: no rule of the grid reads it"),
        (["--rule", "cool", "--floor", "low"], "expected a number above 0, or none"),
        (["--classifier", "tools"], "no checkpoint in it"),
    ],
)
def test_mistakes_are_explained_before_anything_runs(
    tiny_bundle: Path, tmp_path: Path, options: list[str], message: str
) -> None:
    done = coolsd("evaluate", tiny_bundle, "--run", tmp_path / "run", *options)
    assert done.returncode == 2, done.stderr
    assert message in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_classifier_of_other_classes_is_refused(tiny_bundle: Path, tmp_path: Path) -> None:
    classifier = Path(__file__).parents[3] / "tools" / "demo" / "classifier"
    done = coolsd("evaluate", tiny_bundle, "--classifier", classifier, "--run", tmp_path / "run")
    assert done.returncode == 2
    assert "99 classes" in done.stderr
    target = shutil.copytree(classifier, tmp_path / "broken")
    (target / "config.json").write_text("{}")
    broken = coolsd("evaluate", tiny_bundle, "--classifier", target, "--run", tmp_path / "run")
    assert "'strides' is missing" in broken.stderr
