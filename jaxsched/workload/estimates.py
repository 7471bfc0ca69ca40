"""Durations as policies see them: estimates with a random error, the same for every policy."""

import dataclasses

import numpy as np

from jaxsched.errors import UserError
from jaxsched.workload.jobs import JobList

MOST_ERROR = 10.0  # the largest of a million errors is then a factor of 1e21: float32 holds what follows of it
_STREAM = 7  # sets the errors apart from the other draws of the same seed


def with_estimates(jobs: JobList, error: float, seed: int) -> JobList:
    """The same jobs with estimates `duration * exp(error * z)`, `z` standard normal, drawn per job with `seed`.

    The ratio's median is 1: as many estimates are too long as too short, and its mean is `exp(error^2 / 2)`. With
    `error` 0 the estimates are exact. UserError unless `error` is a finite number of at least 0.
    """
    if not 0 <= error <= MOST_ERROR:
        raise UserError(f"duration_error: {error} should be a finite number >= 0 and <= {MOST_ERROR:g}")
    draws = np.random.default_rng((_STREAM, seed)).standard_normal(len(jobs))
    return dataclasses.replace(jobs, estimate_ratio=np.exp(error * draws))
