from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from coolsd_trt.tools.bench.statistics import ratio_of_medians, ratio_of_sums


def test_interval_covers_the_truth_as_often_as_it_says() -> None:
    """200 experiments on 64 images: a 95 % interval misses 10 of them; missing over 24 has probability below 1e-4."""
    rng = np.random.default_rng(0)
    misses = 0
    for seed in range(200):
        passes = rng.integers(100, 140, 64)
        estimate = ratio_of_sums(rng.poisson(2 * passes), passes, seed)
        misses += not estimate.low <= 2 <= estimate.high
    assert misses <= 24


def test_the_interval_of_a_ratio_of_medians_covers_the_truth() -> None:
    """As above; both samples are skewed, and their medians are 2 and 1."""
    rng = np.random.default_rng(1)
    misses = 0
    for seed in range(200):
        samples = [median * rng.lognormal(0.0, 0.5, 41) for median in (2.0, 1.0)]
        estimate = ratio_of_medians(*samples, seed=seed)
        misses += not estimate.low <= 2 <= estimate.high
    assert misses <= 24


def test_a_constant_ratio_has_no_width() -> None:
    estimate = ratio_of_sums([2, 4, 6], [1, 2, 3])
    assert (estimate.value, estimate.low, estimate.high) == pytest.approx((2, 2, 2))


def test_the_command_compares_every_rule_with_ar(tiny_bundle: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "coolsd_trt.tools.bench", "rules", str(tiny_bundle)]
    options = ["--images", "6", "--draft-length", "2", "--batch-size", "3", "--json", str(tmp_path / "new" / "r.json")]
    done = subprocess.run([*command, *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "new" / "r.json").read_text())["figures"]
    assert [row["rule"] for row in rows][:2] == ["ar", "lossless"]
    assert rows[0]["accepted_length"]["value"] == rows[0]["speed_up"]["value"] == 1
    assert rows[1]["drift_per_token"]["value"] == 0
    assert all(row["drift_per_token"]["value"] > 0 for row in rows[2:])
    assert done.stdout.count("\n| ") == len(rows) + 1
