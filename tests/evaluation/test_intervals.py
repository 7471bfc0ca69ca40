import math

import numpy as np
import pytest

from jaxsched.evaluation.statistics import batch_interval, mean_interval, t_quantile


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
