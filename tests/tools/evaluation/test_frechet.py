from __future__ import annotations

import numpy as np
import pytest
from coolsd_trt.tools.bench.statistics import Estimate, resampled_images
from coolsd_trt.tools.evaluation.frechet import Gaussian, frechet_distance
from scipy.linalg import sqrtm


def test_the_distance_is_that_of_the_matrix_square_root() -> None:
    rng = np.random.default_rng(0)
    a, b = (Gaussian.of(rng.normal(size=(40, 6)) @ rng.normal(size=(6, 6)) + rng.normal(size=6)) for _ in range(2))
    root = sqrtm(a.covariance @ b.covariance).real
    expected = ((a.mean - b.mean) ** 2).sum() + np.trace(a.covariance + b.covariance - 2 * root)
    assert frechet_distance(a, b) == pytest.approx(expected, rel=1e-9)
    assert frechet_distance(b, a) == pytest.approx(expected, rel=1e-9)


def test_in_one_dimension_it_is_the_difference_of_means_and_deviations() -> None:
    a, b = Gaussian(np.array([1.0]), np.array([[4.0]])), Gaussian(np.array([3.0]), np.array([[9.0]]))
    assert frechet_distance(a, b) == pytest.approx(2.0**2 + 1.0**2)
    assert frechet_distance(a, a) == pytest.approx(0.0, abs=1e-12)


def test_fewer_pictures_than_dimensions() -> None:
    features = np.random.default_rng(1).normal(size=(5, 16))
    assert frechet_distance(Gaussian.of(features), Gaussian.of(features)) == pytest.approx(0.0, abs=1e-9)


def test_whole_number_weights_are_repetitions() -> None:
    features, counts = np.random.default_rng(2).normal(size=(6, 3)), np.array([1, 3, 2, 1, 5, 2])
    weighted, repeated = Gaussian.of(features, counts.astype(float)), Gaussian.of(np.repeat(features, counts, axis=0))
    np.testing.assert_allclose(weighted.mean, repeated.mean)
    ratio = weighted.covariance / repeated.covariance  # they differ by what is taken for the number of pictures
    np.testing.assert_allclose(ratio, ratio[0, 0])
    np.testing.assert_allclose(Gaussian.of(features).covariance, np.cov(features.T))


def test_a_centred_interval_surrounds_a_figure_that_duplicates_push_up() -> None:
    features = np.random.default_rng(4).normal(size=(40, 8))
    real = Gaussian(np.zeros(8), np.eye(8))
    picks = [np.arange(40), *resampled_images(40, 200)]
    value, *resampled = (frechet_distance(Gaussian.of(features[chosen]), real) for chosen in picks)
    pushed, centred = (Estimate.of(value, np.array(resampled), centred=centred) for centred in (False, True))
    assert pushed.value < pushed.low
    assert centred.low < centred.value < centred.high
    assert centred.high - centred.low == pytest.approx(pushed.high - pushed.low)
