"""Jobs for the tests of this folder."""

import numpy as np

from jaxsched.workload.jobs import JobList, make_job_list


def some_jobs(seed: int, count: int = 40) -> JobList:
    rng = np.random.default_rng(seed)
    return make_job_list(
        np.sort(rng.uniform(0, 3000, count)),
        rng.exponential(400, count) + 1,
        rng.choice([1, 2, 4, 16], count),
        model=rng.integers(0, 8, count),
        tenant=rng.choice([3, 70000], count),
    )
