from __future__ import annotations

from dataclasses import astuple

import numpy as np
import pytest
from coolsd_trt.tools.bench.statistics import bootstrap, ratio_of_sums
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


def test_the_bootstrap_agrees_with_the_one_for_ratios() -> None:
    rng = np.random.default_rng(3)
    x, y = rng.random(30), 1 + rng.random(30)
    found = bootstrap(lambda picks: x[picks].sum() / y[picks].sum(), 30)
    assert astuple(found) == pytest.approx(astuple(ratio_of_sums(x, y)))


def test_a_centred_interval_surrounds_a_figure_that_duplicates_push_up() -> None:
    features = np.random.default_rng(4).normal(size=(40, 8))
    real = Gaussian(np.zeros(8), np.eye(8))
    pushed = bootstrap(lambda picks: frechet_distance(Gaussian.of(features[picks]), real), 40, 200)
    centred = bootstrap(lambda picks: frechet_distance(Gaussian.of(features[picks]), real), 40, 200, centred=True)
    assert pushed.value < pushed.low
    assert centred.low < centred.value < centred.high
    assert centred.width == pytest.approx(pushed.width)
