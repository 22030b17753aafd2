from __future__ import annotations

import numpy as np
import pytest
from coolsd_trt.tools.bench.contenders import Sample
from coolsd_trt.tools.bench.statistics import Estimate
from coolsd_trt.tools.calibration.prediction import predict
from coolsd_trt.tools.calibration.trace import OMEGAS, Trace
from coolsd_trt.tools.evaluation.equal_length import OMEGA, SCHEDULES, delta_for, difference, drift_at


def random_trace(rounds: int = 400, length: int = 4, size: int = 6) -> Trace:
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.ones(size), (rounds, length)), rng.dirichlet(np.ones(size), (rounds, length))
    x = np.array([[rng.choice(size, p=law) for law in row] for row in q])[..., None]
    ratio = np.take_along_axis(p, x, 2)[..., 0] / np.take_along_axis(q, x, 2)[..., 0]
    beta = np.stack([np.minimum(q, omega * p).sum(axis=2) for omega in OMEGAS], axis=2)
    return Trace(ratio, beta)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_delta_found_gives_the_length_asked_for(schedule: str) -> None:
    trace = random_trace()
    for tokens in (2.4, 2.9):
        delta = delta_for(trace, schedule, tokens)
        assert predict(trace, OMEGA[schedule](4, delta)).tokens == pytest.approx(tokens, abs=5e-3)


def sample(passes: int, drift: float, images: int = 30) -> Sample:
    """Images of 100 tokens, a little noise between them."""
    noise = np.random.default_rng(1).integers(-2, 3, images)
    return Sample([100] * images, (passes + noise).tolist(), [drift] * images, [1.0] * images)


def test_drift_is_read_off_the_line_through_the_deltas() -> None:
    samples = [sample(50, 2.0), sample(40, 4.0), sample(25, 10.0)]
    lengths = [sum(s.tokens) / sum(s.passes) for s in samples]
    slope, start = np.polyfit(lengths, [0.02, 0.04, 0.10], 1)
    value, resampled = drift_at(samples, 3.0)
    assert value == pytest.approx(start + 3 * slope)
    estimate = Estimate.of(value, resampled)
    assert estimate.low < value < estimate.high


def test_differences_are_paired_by_image() -> None:
    samples = [sample(50, 2.0), sample(40, 4.0), sample(25, 10.0)]
    more = [Sample(s.tokens, s.passes, [d + 0.5 for d in s.drift], s.seconds) for s in samples]
    gap = difference(drift_at(more, 3.0), drift_at(samples, 3.0))
    assert (gap.value, gap.low, gap.high) == pytest.approx((0.005, 0.005, 0.005))
