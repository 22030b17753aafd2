from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from coolsd_trt.runtime import InputError
from coolsd_trt.runtime.schedules import cool_schedule, linear_schedule, uniform_schedule
from hypothesis import given
from hypothesis import strategies as st

LENGTHS, DELTAS, RATES = st.integers(1, 32), st.floats(0.1, 5), st.floats(0, 3)


def test_the_papers_schedule() -> None:
    np.testing.assert_allclose(
        cool_schedule(5, delta=1.1, nu=0.7, floor=None), [2.855, 1.418, 0.704, 0.350, 0.174], atol=5e-4
    )


def test_the_floor_raises_only_what_lies_below() -> None:
    np.testing.assert_allclose(cool_schedule(5, delta=1.1, nu=0.7), [2.855, 1.418, 1, 1, 1], atol=5e-4)


@given(LENGTHS, DELTAS, RATES)
def test_unfloored_schedules_have_mean_delta_and_decay(length: int, delta: float, nu: float) -> None:
    for omega in (cool_schedule(length, delta, nu, floor=None), linear_schedule(length, delta)):
        assert omega.shape == (length,)
        assert omega.dtype == np.float64
        assert omega.mean() == pytest.approx(delta)
        assert (np.diff(omega) <= 1e-12).all()
        assert (omega > 0).all()


@given(LENGTHS, DELTAS)
def test_without_annealing_cool_is_uniform(length: int, delta: float) -> None:
    np.testing.assert_allclose(cool_schedule(length, delta, nu=0, floor=None), uniform_schedule(length, delta))


@pytest.mark.parametrize("nu", [80.0, 800.0, 1e300])
def test_steep_annealing_spends_everything_on_the_first_token(nu: float) -> None:
    np.testing.assert_allclose(cool_schedule(5, delta=1.1, nu=nu), [5.5, 1, 1, 1, 1])
    np.testing.assert_allclose(cool_schedule(5, delta=1.1, nu=nu, floor=None), [5.5, 0, 0, 0, 0], atol=1e-30)


@pytest.mark.parametrize("schedule", [cool_schedule, linear_schedule, uniform_schedule])
@pytest.mark.parametrize("delta", [1e309, float("nan"), -0.1])
def test_factors_that_are_no_numbers_are_refused(schedule: Callable[..., object], delta: float) -> None:
    with pytest.raises(InputError, match="Expected finite factors"):
        schedule(5, delta=delta)


def test_linear_reaches_zero_one_position_past_the_draft() -> None:
    np.testing.assert_allclose(linear_schedule(4, delta=1.0), [1.6, 1.2, 0.8, 0.4])
