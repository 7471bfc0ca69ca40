"""Runs that begin with jobs on the cluster: what a live cluster looks like when it is first seen."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from jaxsched.event_loop.occupancy import start
from jaxsched.event_loop.run import Run


class Seat(NamedTuple):
    """A job that runs already."""

    job: int  # row of the job table
    partition: int
    workers: Int[np.ndarray, "NK"]  # of each group
    left_s: float  # ideal seconds


def seat(run: Run, seats: Iterable[Seat]) -> None:
    """Put jobs on the empty cluster of a run at boundary 0. They must come before all others in the job table.

    Jobs that would fit no empty partition are left out: the simulator knows no such job.
    """
    with run.in_rows() as (w, t):
        for one in seats:
            groups = np.flatnonzero(one.workers)
            if run.home[one.job] < 0 or not len(groups):
                continue
            t.service[one.job].left_s = one.left_s
            for used, group in enumerate(groups):
                t.place[used].group, t.place[used].workers = int(group), int(one.workers[group])
            start(w, t, one.partition, one.job, len(groups))
