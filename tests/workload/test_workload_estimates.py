import numpy as np
import pytest

from jaxsched.errors import UserError
from jaxsched.workload.jobs import make_job_list, pad_table, rescale_to_load, take, to_table
from jaxsched.workload.load import add_estimates


def many(count: int = 20_000):
    return make_job_list(np.arange(count), np.linspace(1, 1e5, count), 1)


def test_exact_unless_asked_otherwise():
    jobs = many(10)
    np.testing.assert_array_equal(jobs.estimate_s, jobs.duration_s)
    np.testing.assert_array_equal(add_estimates(jobs, 0.0, 3).estimate_s, jobs.duration_s)


def test_errors_are_lognormal_with_median_one():
    logs = np.log(add_estimates(many(), 0.7, 0).estimate_ratio)
    assert np.median(logs) == pytest.approx(0, abs=0.02)
    assert logs.std() == pytest.approx(0.7, rel=0.02)
    assert (np.abs(logs) > 2 * 0.7).mean() == pytest.approx(0.0455, abs=0.006)


def test_errors_follow_the_seed_and_grow_with_the_error():
    jobs = many(50)
    one, same, other = (add_estimates(jobs, 0.5, seed).estimate_ratio for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert (one != other).all()
    np.testing.assert_allclose(add_estimates(jobs, 1.0, 1).estimate_ratio, one**2)


def test_a_job_keeps_its_estimate():
    jobs = add_estimates(many(50), 0.5, 1)
    kept = take(rescale_to_load(jobs, 8, 0.5), [7, 30])
    np.testing.assert_array_equal(kept.estimate_s, jobs.estimate_s[[7, 30]])
    table = pad_table(to_table(kept, 60.0), 3)
    np.testing.assert_allclose(table.estimate_s[:2], kept.estimate_s, rtol=1e-6)
    np.testing.assert_allclose(table.duration_s[:2], kept.duration_s, rtol=1e-6)


@pytest.mark.parametrize("error", [-0.1, float("nan"), float("inf")])
def test_bad_errors(error):
    with pytest.raises(UserError, match=r"duration_error: .* should be a finite number >= 0"):
        add_estimates(many(3), error, 0)
