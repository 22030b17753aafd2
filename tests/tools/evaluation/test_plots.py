from __future__ import annotations

import csv
import io
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from coolsd_trt.runtime import InputError, SpeculativeConfig
from coolsd_trt.tools.bench.contenders import Contender
from coolsd_trt.tools.bench.statistics import Estimate
from coolsd_trt.tools.evaluation.plots import check_plot, frontier, pareto_plot
from coolsd_trt.tools.evaluation.table import Row, as_csv, as_json, shown


def row(name: str, speed: float, drift: float) -> Row:
    figures = {"speed_up": Estimate(speed, speed - 0.1, speed + 0.1), "drift_per_token": Estimate(drift)}
    return Row(Contender(name, SpeculativeConfig()), figures)


ROWS = [row("slow", 1.2, 0.0), row("best", 1.9, 0.02), row("beaten", 1.5, 0.03), row("wild", 2.4, 0.2)]


def test_the_frontier_is_what_nothing_beats_in_both() -> None:
    assert [found.contender.name for found in frontier(ROWS, "speed_up", "drift_per_token")] == ["slow", "best", "wild"]
    twins = [row("a", 1.5, 0.1), row("b", 1.6, 0.1)]
    assert [found.contender.name for found in frontier(twins, "speed_up", "drift_per_token")] == ["b"]


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_a_plot_with_an_unknown_drift(tmp_path: Path, suffix: str) -> None:
    pareto_plot([*ROWS, row("native", 2.0, math.nan)], tmp_path / f"plot{suffix}")
    assert [path.name for path in tmp_path.iterdir()] == [f"plot{suffix}"]


def test_a_plot_that_cannot_be_made_is_refused_before_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"ending in \.jpg. Expected \.png or \.svg"):
        check_plot(Path("a.jpg"))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"pip install 'coolsd-trt\[plot\]'"):
        check_plot(Path("a.png"))


def test_unknown_figures_are_null_empty_and_unknown() -> None:
    unknown = row("native", 2.0, math.nan)
    assert json.loads(as_json([unknown], {}))["rows"][0]["drift_per_token"] == {
        "value": None,
        "low": None,
        "high": None,
    }
    line = next(csv.DictReader(io.StringIO(as_csv([unknown]))))
    assert (line["speed_up"], line["drift_per_token"]) == ("2.0", "")
    assert shown(unknown.figures["drift_per_token"]) == "unknown"
    assert shown(Estimate(1.0, 1.0, 1.0)) == "1"


def test_judging_needs_no_torch() -> None:
    script = """
import sys
sys.modules["torch"] = None  # any import of it now fails
import numpy as np
from pathlib import Path
from coolsd_trt.tools.cli import evaluate
from coolsd_trt.tools.evaluation.classifier import PictureClassifier
print(PictureClassifier.load(Path(sys.argv[1])).features(np.zeros((2, 64, 64, 3), np.uint8)).shape)
"""
    folder = Path(__file__).parents[3] / "tools" / "demo" / "classifier"
    done = subprocess.run([sys.executable, "-c", script, str(folder)], capture_output=True, text=True)
    assert done.stdout.strip() == "(2, 64)", done.stderr
