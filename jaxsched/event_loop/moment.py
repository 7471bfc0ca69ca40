"""One boundary by itself: rounds of decisions for another world, such as a live cluster."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int, Int64

from jaxsched.event_loop.events import play_round
from jaxsched.event_loop.occupancy import recount
from jaxsched.event_loop.queues import enqueue
from jaxsched.event_loop.run import Run
from jaxsched.event_loop.seated import Seat, seat
from jaxsched.event_loop.world import BOUNDARY, NEWS, NEXT_JOB


class Round(NamedTuple):
    """What all schedulers did."""

    job: Int64[np.ndarray, "P"]  # the row that each has placed, -1 = none
    workers: Int64[np.ndarray, "P NK"]  # of that job
    ps: Int64[np.ndarray, "P NK"]
    moved: bool  # somebody has placed or forwarded a job


class Moment:
    """Rounds of decisions on a run that has just begun. In Python: they are few, and nothing is to be compiled."""

    def __init__(
        self, run: Run, seats: Sequence[Seat], queues: Sequence[Iterable[int]], attained_s: Sequence[float]
    ) -> None:
        """Args: `queues`: rows of the jobs that wait in each partition; `attained_s`: GPU seconds of each tenant."""
        self.seated = len(seats)  # rows of the job table before those that wait
        run.tables.tenants["attained_s"] = attained_s
        run.tables.numbers[NEXT_JOB] = len(run.home)
        seat(run, seats)
        with run.in_rows() as (w, t):
            for partition, queue in enumerate(queues):
                for job in queue:
                    if run.home[job] >= 0:
                        enqueue(w, t, partition, int(job))
                        if w.jobs[job].arrival == t.numbers[BOUNDARY]:
                            t.numbers[NEWS] = t.numbers[BOUNDARY]
        self._run = run

    def decide(self, free: Int[np.ndarray, "P NK"]) -> Round:
        """One round with so many free GPUs; who has waited does not decide again, unless it is sent a job."""
        partitions, moved = len(free), False
        job, workers, ps = np.full(partitions, -1), np.zeros(free.shape, int), np.zeros(free.shape, int)
        with self._run.in_rows() as (w, t):
            t.free[:] = free
            for p in range(partitions):
                t.partitions[p].free_gpus, t.partitions[p].settled = int(free[p].sum()), 0
                recount(t, p)
            queued = [t.partitions[p].queued for p in range(partitions)]
            play_round(w, t)
            for p in range(partitions):
                partition = t.partitions[p]
                moved |= partition.target >= 0
                if partition.queued > queued[p]:
                    partition.waited = 0
                if partition.target == p:
                    job[p] = t.running[p, partition.running - 1].job
                    _read_back(w, t, p, workers[p], ps[p])
        return Round(job, workers, ps, moved)


def _read_back(w: Any, t: Any, p: int, workers: Int64[np.ndarray, "NK"], ps: Int64[np.ndarray, "NK"]) -> None:
    """Where the last job of a partition has started; parameter servers in proportion to the workers."""
    run = t.running[p, t.partitions[p].running - 1]
    job, tasks, before = w.jobs[run.job], 0, 0
    for i in range(t.slots[p, run.slot].groups):
        group = t.groups[p, run.slot, i]
        tasks += group.workers
        share = tasks * job.ps // job.workers
        workers[group.group], ps[group.group] = group.workers, share - before
        before = share
