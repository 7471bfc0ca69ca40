"""What a list of jobs asks of a cluster: its load, stretched to another one, and jobs that share GPUs."""

import dataclasses

import numpy as np

from jaxsched.errors import UserError
from jaxsched.workload.jobs import WHOLE, JobList


def from_start(jobs: JobList) -> JobList:
    """The same jobs with the first one submitted at 0 s."""
    return dataclasses.replace(jobs, submit_s=jobs.submit_s - (jobs.submit_s[0] if len(jobs) else 0.0))


def offered_load(jobs: JobList, total_gpus: int) -> float:
    """sum(GPUs * duration) / (span * total_gpus), span = last - first submit; fractions of GPUs count as such.

    UserError if the span is 0.
    """
    span_s = float(jobs.submit_s[-1] - jobs.submit_s[0]) if len(jobs) else 0.0
    if span_s <= 0 or total_gpus < 1:
        raise UserError(
            f"load: needs jobs at two different times and total_gpus >= 1, not span {span_s:g} s, {total_gpus} GPUs"
        )
    return float(jobs.gpu_demand @ jobs.duration_s) / (span_s * total_gpus)


def thousandths(share: float) -> int:
    """A share of a GPU in thousandths. UserError unless it is from 0.001 to 1."""
    if not 1 / WHOLE <= share <= 1.0:
        raise UserError(f"gpu_share: {share} should be from {1 / WHOLE:g} to 1")
    return round(share * WHOLE)


def sharing(jobs: JobList, share: float) -> JobList:
    """The same jobs; those of one whole GPU, without parameter servers, ask for `share` of it, in thousandths.

    UserError if `share` is out of its range, or less than 1 and for none of the jobs.
    """
    milli, alone = thousandths(share), (jobs.num_gpus == 1) & (jobs.ps == 0) & (jobs.milli == WHOLE)
    if milli < WHOLE and not alone.any():
        raise UserError(f"gpu_share: {share} of a GPU is for jobs of one whole GPU, and there are none")
    return dataclasses.replace(jobs, milli=np.where(alone, milli, jobs.milli).astype(np.int32))


def rescale_to_load(jobs: JobList, total_gpus: int, load: float) -> JobList:
    """The same jobs, submit times stretched about the first so that `offered_load` is `load`; the first is at 0 s."""
    if not (np.isfinite(load) and load > 0):
        raise UserError(f"load: {load} should be a finite number > 0")
    stretch = offered_load(jobs, total_gpus) / load
    return dataclasses.replace(jobs, submit_s=(jobs.submit_s - jobs.submit_s[0]) * stretch)
