"""As the interval between decisions vanishes, times converge."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from tests.support import strategies


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_finish_times_converge_as_the_interval_vanishes(seed):
    """Enough room for all: every job starts at the boundary after its submission, and contention is all there is."""
    case = strategies.random_case(seed, "two", count=8, homogeneous=True)
    rng = np.random.default_rng(seed)
    jobs = dataclasses.replace(
        case.jobs,
        workers=rng.integers(1, 4, 8).astype(np.int32),
        gpus_per_worker=np.ones(8, np.int32),
        ps=(rng.random(8) < 0.5).astype(np.int32),
        submit_s=np.sort(rng.uniform(0, 400, 8)),
    )
    cluster = case.cluster.replace(group_gpus=jnp.where(case.cluster.group_gpus > 0, 8, 0))
    finish = {}
    for interval in (100.0, 10.0, 1.0, 0.1, 0.01):
        now = dataclasses.replace(case, cluster=cluster, jobs=jobs, interval_s=interval)
        done = strategies.outcome(now, strategies.run(now, "load-balance:tenants+backfill", case.shape.config()))
        assert (done.start_s >= jobs.submit_s - 1e-6).all() and (done.start_s < jobs.submit_s + interval).all()
        finish[interval] = done.finish_s
    error = [np.abs(finish[interval] - finish[0.01]).max() for interval in (100.0, 10.0, 1.0, 0.1)]
    # Slowdowns here are below 20: a start that is late by an interval cannot move a finish by more than that times it.
    assert all(e <= 20 * interval for e, interval in zip(error, (100.0, 10.0, 1.0, 0.1), strict=True))
    assert error[3] < error[1] < error[0]


@pytest.mark.slow
def test_queued_jobs_converge_as_the_interval_vanishes():
    """FIFO on one server: the starts approach those of the exact recursion."""
    from tests.env.test_queueing import recursion, simulated

    rng = np.random.default_rng(0)
    submit, duration = np.cumsum(rng.exponential(0.27, (1, 60)), 1), rng.exponential(1.0, (1, 60))
    exact = recursion(4, submit, duration)
    errors = [np.abs(simulated(4, submit, duration, interval) - exact).mean() for interval in (0.3, 0.1, 0.03, 0.01)]
    assert errors[0] > errors[1] > errors[2] > errors[3]
    assert errors[3] < 0.05
