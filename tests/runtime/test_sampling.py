from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from coolsd_trt.runtime.sampling import image_generator, sample_token
from hypothesis import given
from hypothesis import strategies as st

LARGEST_UNIFORM = float(np.nextafter(1.0, 0.0))


def test_inverse_cdf_takes_the_first_token_that_exceeds() -> None:
    p = np.array([0.25, 0.0, 0.5, 0.25])
    assert [sample_token(p, u) for u in (0.0, 0.2499, 0.25, 0.74, 0.75, LARGEST_UNIFORM)] == [0, 0, 2, 2, 3, 3]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.sampled_from([0.0, 0.5, LARGEST_UNIFORM]))
def test_a_token_without_mass_is_never_drawn(weights: list[float], u: float) -> None:
    p = np.array([*weights, 0.3, 0.0])
    assert p[sample_token(p, u)] > 0


def test_a_total_that_rounds_up_still_yields_the_last_token_with_mass() -> None:
    assert sample_token(np.array([0.5, 0.5, 0.0], dtype=np.float32), 1.0) == 1


def test_generators_depend_on_seed_and_index_alone() -> None:
    first = image_generator(7, 3).random(4)
    np.testing.assert_array_equal(first, image_generator(7, 3).random(4))
    for other in (image_generator(7, 4), image_generator(8, 3)):
        assert not np.allclose(first, other.random(4))


def test_frequencies_follow_p() -> None:
    # 40,000 draws: a cell off by 0.015 would be 6 standard errors away.
    p, rng = np.array([0.1, 0.2, 0.3, 0.4]), np.random.default_rng(0)
    counts = np.bincount([sample_token(p, rng.random()) for _ in range(40_000)], minlength=4)
    assert counts / counts.sum() == pytest.approx(p, abs=0.015)


def test_no_compiled_module_is_left_to_be_loaded_amid_the_work() -> None:
    code = "import sys, coolsd_trt.runtime; before = 'numpy.random' in sys.modules; sys.exit(not before)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
