"""Job lists to learn from: a workload's past, drawn anew, or new jobs of a synthetic one."""

import dataclasses

import numpy as np

from jaxsched.workload.jobs import JobList, from_start, rescale_to_load
from jaxsched.workload.load import with_estimates

BLOCKS = 24  # of equal time, from which a list is drawn
LOADS = (0.9, 1.1)  # of a drawn list, over that which was asked for
ERRORS = (0.25, 1.5)  # of estimates: sigma of the logarithm of their ratio to run times
SHORTER = (0.125, 1.0)  # factors of all times of a list


def drawn(jobs: JobList, rng: np.random.Generator, gpus: int, load: float | None) -> JobList:
    """As many stretches of time as there are, drawn with replacement, one after the other, at a load about `load`.

    So arrivals keep their rhythm within a stretch, and no list comes twice. None: at the pace that the jobs have. They
    must not all be submitted at once.
    """
    assert jobs.submit_s[-1] > jobs.submit_s[0]
    again = _shuffled(jobs, rng.integers(0, BLOCKS, BLOCKS))
    while len(again) == 0 or again.submit_s[-1] == again.submit_s[0]:  # few stretches have jobs
        again = _shuffled(jobs, rng.integers(0, BLOCKS, BLOCKS))
    return at_about(from_start(again), rng, gpus, load)


def at_about(jobs: JobList, rng: np.random.Generator, gpus: int, load: float | None) -> JobList:
    """The jobs at a load about that one; None: at their pace."""
    return jobs if load is None else rescale_to_load(jobs, gpus, load * rng.uniform(*LOADS))


def shortened(jobs: JobList, rng: np.random.Generator) -> JobList:
    """The jobs with all their times a random factor shorter, so that intervals are longer beside them."""
    factor = float(np.exp(rng.uniform(*np.log(SHORTER))))
    return dataclasses.replace(jobs, submit_s=jobs.submit_s * factor, duration_s=jobs.duration_s * factor)


def misjudged(jobs: JobList, rng: np.random.Generator) -> JobList:
    """The jobs with wrong estimates of their run times."""
    return with_estimates(jobs, rng.uniform(*ERRORS), int(rng.integers(2**31)))


def _shuffled(jobs: JobList, stretches: np.ndarray) -> JobList:
    """The jobs of these stretches, one after the other."""
    span_s = float(jobs.submit_s[-1]) + 1.0
    stretch = np.floor(jobs.submit_s / span_s * BLOCKS).astype(np.int64)
    rows = [np.flatnonzero(stretch == chosen) for chosen in stretches]
    later_s = [np.full(len(here), (i - stretches[i]) * span_s / BLOCKS) for i, here in enumerate(rows)]
    index = np.concatenate(rows)
    columns = {field.name: getattr(jobs, field.name)[index] for field in dataclasses.fields(JobList)}
    return JobList(**columns | {"submit_s": columns["submit_s"] + np.concatenate(later_s)})
