from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from coolsd_trt.engines.bundle import Bundle
from coolsd_trt.engines.loader import load_engines
from coolsd_trt.runtime import Pipeline, SamplingConfig, SpeculativeConfig
from coolsd_trt.runtime.condition import class_prompts
from coolsd_trt.runtime.drift import acceptance_probability, position_drift
from coolsd_trt.runtime.schedules import cool_schedule
from coolsd_trt.tools.bench.contenders import Workload
from coolsd_trt.tools.bench.statistics import Estimate
from coolsd_trt.tools.calibration.check import measure_setting, refutation
from coolsd_trt.tools.calibration.costs import PassCosts
from coolsd_trt.tools.calibration.prediction import predict
from coolsd_trt.tools.calibration.search import best_within, candidates
from coolsd_trt.tools.calibration.trace import OMEGAS, Trace, image_sequences, record_trace


def exact_trace(p: np.ndarray, q: np.ndarray) -> tuple[Trace, np.ndarray]:
    """Every chain of two tokens from one law per position, and its probability."""
    chains = list(itertools.product(range(len(q[0])), repeat=2))
    ratio = np.array([[p[i][x] / q[i][x] for i, x in enumerate(chain)] for chain in chains])
    beta = np.array([[acceptance_probability(p[i], q[i], w) for w in OMEGAS] for i in range(2)])
    return Trace(ratio, np.broadcast_to(beta, (len(chains), *beta.shape))), np.array(
        [q[0][a] * q[1][b] for a, b in chains]
    )


def test_prediction_is_the_exact_expectation() -> None:
    p = np.array([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7]])
    q = np.array([[0.3, 0.6, 0.1], [0.4, 0.3, 0.3]])
    trace, weight = exact_trace(p, q)
    # The trace's mean is over drawn chains: draw each as often as its probability says.
    counts = np.round(weight * 10_000).astype(int)
    drawn = Trace(np.repeat(trace.ratio, counts, axis=0), np.repeat(trace.beta, counts, axis=0))
    for omega in ([OMEGAS[5], 1.0], [OMEGAS[5], 0.6], [0.5, OMEGAS[3]], [0.8, 0.3]):
        betas = [acceptance_probability(p[i], q[i], omega[i]) for i in range(2)]
        drifts = [position_drift(p[i], q[i], omega[i]) for i in range(2)]
        prediction = predict(drawn, np.array(omega))
        assert prediction.tokens == pytest.approx(1 + betas[0] + betas[0] * betas[1], rel=1e-9)
        assert prediction.drift == pytest.approx(drifts[0] + betas[0] * drifts[1], rel=1e-9)


def test_omega_below_one_is_free_of_drift() -> None:
    p, q = np.array([[0.5, 0.3, 0.2]] * 2), np.array([[0.2, 0.7, 0.1]] * 2)
    trace, _ = exact_trace(p, q)
    assert predict(trace, np.ones(2)).drift == 0
    assert predict(trace, np.array([0.7, 0.4])).drift == 0


@pytest.mark.parametrize("omega", [1.005, 1.015, 1.02, 1.095, 1.15, 1.37, 2.6])
def test_between_the_grids_points_drift_is_hardly_underestimated(omega: float) -> None:
    """Over laws as a pair has them, of a thousand tokens; it is concave, so never above the exact one."""
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.full(1000, 0.3), 40)
    noise = rng.lognormal(0.0, 0.6, p.shape)
    q = p * noise / (p * noise).sum(axis=1, keepdims=True)
    beta = np.stack([np.minimum(q, w * p).sum(axis=1) for w in OMEGAS], axis=1)[:, None]
    exact = np.mean([position_drift(*laws, omega) for laws in zip(p, q, strict=True)])
    predicted = predict(Trace(np.ones((len(p), 1)), beta), np.array([omega])).drift
    assert 0.99 * exact <= predicted <= exact * (1 + 1e-12)


def test_the_search_keeps_the_budget_and_says_when_speculation_does_not_pay() -> None:
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.ones(5), 2), rng.dirichlet(np.ones(5), 2)
    trace, _ = exact_trace(p, q)
    cheap = PassCosts(np.array([1.0, 1.05, 1.1]), np.full(3, 0.05), 0.05, 0.0, 0.0)
    found = candidates(trace, cheap)
    speeds = [best_within(found, budget).speed_up for budget in (0.0, 0.02, 0.1, 0.5)]
    assert speeds == sorted(speeds)
    assert speeds[0] > 1
    assert best_within(found, 0.0).prediction.drift == 0
    dear = PassCosts(np.array([1.0, 3.0, 9.0]), np.full(3, 1.0), 1.0, 0.0, 0.0)
    assert best_within(candidates(trace, dear), 0.5).config.rule == "ar"


def test_prediction_agrees_with_running_the_schedule(tiny_bundle: Path) -> None:
    """400 images each way; the tolerances are five standard errors, and relaxing moves the figure by over ten."""
    settings = {"cfg_scale": 1.5, "temperature": 1.5}
    config = SpeculativeConfig(rule="cool", delta=1.6, nu=0.7, draft_length=3)
    engines = load_engines(tiny_bundle, "auto", threads=1)
    sampling = SamplingConfig(**settings)
    prompts = class_prompts(engines.info.condition, [i % 5 for i in range(400)])
    trace = record_trace(engines, image_sequences(prompts, 16, 1, 3), sampling, 3, 100)
    engines.close()
    assert trace.ratio.shape[1:] == (3,)
    omega = cool_schedule(3, config.delta, config.nu)
    predicted, exact = predict(trace, omega), predict(trace, np.ones(3))
    with Pipeline.load(tiny_bundle, threads=1) as pipeline:
        result = pipeline.generate([i % 5 for i in range(400)], seed=2, speculative=config, batch_size=100, **settings)
    # Only rounds that could draft all three tokens are comparable: leave out the image's last ones.
    rounds = [
        length for s in result.stats for length in np.array(s.accepted_lengths)[np.cumsum(s.accepted_lengths) < 11]
    ]
    assert np.mean(rounds) == pytest.approx(predicted.tokens, abs=0.12)
    assert predicted.tokens - exact.tokens > 0.1
    assert predicted.drift_per_token > 0


def test_the_command_writes_the_default_and_keeps_the_bundle_intact(tiny_bundle: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(tiny_bundle, tmp_path / "copy"))
    command = [
        sys.executable,
        "-m",
        "coolsd_trt.tools.cli",
        "calibrate",
        str(copy),
        "--images",
        "4",
        "--max-length",
        "2",
    ]
    files = ["--json", str(tmp_path / "c.json"), "--plot", str(tmp_path / "c.png"), "--check-images", "0"]
    done = subprocess.run([*command, *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    assert "c(T)" in done.stdout
    assert "default is now" in done.stdout
    report = json.loads((tmp_path / "c.json").read_text())
    chosen = next(point for point in report["frontier"] if point["drift_budget"] == 0.05)
    assert report["measured"] is None
    assert Bundle.open(copy).manifest.speculative.model_dump(mode="json") == chosen["settings"]
    with Pipeline.load(copy) as pipeline:
        assert pipeline.generate([0]).parameters[0]["rule"] == chosen["settings"]["rule"]


def test_the_chosen_setting_is_measured_beside_ar(tiny_bundle: Path) -> None:
    config = SpeculativeConfig(rule="uniform", delta=2.0, draft_length=2)
    with Pipeline.load(tiny_bundle, threads=1) as pipeline:
        measured = measure_setting(pipeline, config, Workload(4, 2, 0))
        alone = pipeline.generate([0, 1, 2, 3], speculative=config)
    assert measured["accepted_length"].value == pytest.approx(alone.accepted_length)
    drift = measured["drift_per_token"]
    assert drift.value == pytest.approx(alone.drift_per_token)
    fast = {**measured, "speed_up": Estimate(1.1, 0.9, 1.3)}
    assert "above the budget" in (refutation(fast, drift.low * 0.9) or "")
    assert refutation(fast, drift.value) is None
    assert "below that of `ar`" in (refutation({**fast, "speed_up": Estimate(0.8, 0.7, 0.99)}, 1.0) or "")
    assert refutation({**fast, "speed_up": Estimate(0.8)}, 1.0) is None


def test_greedy_sampling_is_refused(tiny_bundle: Path) -> None:
    command = [sys.executable, "-m", "coolsd_trt.tools.cli", "calibrate", str(tiny_bundle), "--temperature", "0"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "no schedule to calibrate" in done.stderr


def test_a_chain_in_one_call_costs_what_that_call_does() -> None:
    stepwise = PassCosts(np.array([1.0, 1.1, 1.2, 1.3]), np.array([0.1, 0.2, 0.3]), 0.1, 0.05, 0.02)
    assert stepwise.round(0, 1.0) == pytest.approx(1.0 + 0.02)  # the host has one position to judge
    assert stepwise.round(3, 2.0) == pytest.approx(1.3 + 0.2 + 2 * 0.1 + 0.05)
    fused = PassCosts(stepwise.target, stepwise.draft_first, 0.1, 0.05, 0.02, chains=np.array([0.1, 0.15]))
    assert fused.round(2, 2.0) == pytest.approx(1.2 + 0.15 + 0.05)
    assert fused.round(3, 2.0) == stepwise.round(3, 2.0)  # longer than any it was built for
