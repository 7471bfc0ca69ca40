import math

import numpy as np
import pytest

from jaxsched.evaluation.metrics import (
    batch_interval,
    bootstrap_interval,
    interquartile_mean,
    mean_interval,
    probability_of_improvement,
    t_quantile,
)  # fmt: skip


@pytest.mark.parametrize(
    ("freedom", "value"), [(1, 12.7062), (4, 2.7764), (11, 2.20099), (19, 2.09302), (1000, 1.96234)]
)
def test_quantiles_of_students_t(freedom, value):
    assert t_quantile(freedom) == pytest.approx(value, abs=2e-4)


def test_interval_over_seeds_by_hand():
    # mean 4, standard deviation 2, standard error 2 / sqrt(3), t(2) = 4.3027
    low, high = mean_interval(np.array([2.0, 4.0, 6.0]))
    assert (low + high) / 2 == pytest.approx(4.0)
    assert (high - low) / 2 == pytest.approx(4.3027 * 2 / math.sqrt(3))


def test_no_interval_from_too_little():
    assert math.isnan(mean_interval(np.array([1.0]))[0])
    assert math.isnan(batch_interval(np.ones(199))[0])


def test_batches_cover_the_mean_of_a_correlated_series_far_better_than_independence_would():
    """AR(1) with coefficient 0.9: the naive interval covers about a third, batches of 100 nearly the nominal 95%."""
    rng = np.random.default_rng(0)
    hits = naive = 0
    for _ in range(200):
        noise = rng.normal(size=2100)
        series = np.zeros(2100)
        for i in range(1, 2100):
            series[i] = 0.9 * series[i - 1] + noise[i]
        low, high = batch_interval(series[100:])
        hits += low <= 0 <= high
        low, high = mean_interval(series[100:])
        naive += low <= 0 <= high
    assert hits >= 175
    assert naive <= 120


def test_interquartile_mean_and_probability_of_improvement_by_hand():
    scores = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 100.0]])
    assert interquartile_mean(scores) == pytest.approx((3 + 4 + 5 + 6) / 4)
    assert interquartile_mean(np.array([[2.0, 4.0, 9.0]])) == 5.0, "of three, nothing is cut off"
    one, other = np.array([[1.0, 5.0], [2.0, 5.0]]), np.array([[2.0, 4.0], [3.0, 4.0]])
    assert probability_of_improvement(one, other) == pytest.approx((3.5 / 4 + 0.0) / 2)
    assert probability_of_improvement(one, one) == 0.5


def test_a_bootstrap_interval_holds_the_statistic_and_covers_as_it_says():
    """Of 100 samples of 20 runs about 95 intervals hold the true mean; fewer, since runs are few."""
    mean, rng = lambda sample: float(sample.mean()), np.random.default_rng(0)
    samples = rng.normal(5.0, 1.0, (60, 20, 1))
    found = [bootstrap_interval(mean, sample) for sample in samples]
    assert 50 <= sum(low <= 5.0 <= high for low, high in found) <= 60
    assert np.isnan(bootstrap_interval(mean, np.ones((1, 3)))).all()
    assert bootstrap_interval(mean, samples[0]) == bootstrap_interval(mean, samples[0])
