"""Job lists to learn from: a workload's past, drawn anew."""

import dataclasses

import numpy as np

from jaxsched.workload.jobs import JobList, from_start, rescale_to_load

BLOCKS = 24  # of equal time, from which a list is drawn
LOADS = (0.9, 1.1)  # of a drawn list, over that which was asked for


def drawn(jobs: JobList, rng: np.random.Generator, gpus: int, load: float | None) -> JobList:
    """As many stretches of time as there are, drawn with replacement, one after the other, at a load about `load`.

    So arrivals keep their rhythm within a stretch, and no list comes twice. None: at the pace that the jobs have.
    """
    span_s = float(jobs.submit_s[-1]) + 1.0
    block = np.floor(jobs.submit_s / span_s * BLOCKS).astype(np.int64)
    rows, shifts = [], []
    for place, chosen in enumerate(rng.integers(0, BLOCKS, BLOCKS)):
        here = np.flatnonzero(block == chosen)
        rows.append(here)
        shifts.append(np.full(len(here), (place - chosen) * span_s / BLOCKS))
    index = np.concatenate(rows)
    columns = {field.name: getattr(jobs, field.name)[index] for field in dataclasses.fields(JobList)}
    again = JobList(**columns | {"submit_s": columns["submit_s"] + np.concatenate(shifts)})
    again = from_start(again)
    return again if load is None else rescale_to_load(again, gpus, load * rng.uniform(*LOADS))
