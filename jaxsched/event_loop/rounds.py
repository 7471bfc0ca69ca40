"""One boundary by itself: rounds of decisions for another world, such as a live cluster."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int, Int64

from jaxsched.env.state import EnvConfig, EnvParams
from jaxsched.event_loop._kernel.events import play_round
from jaxsched.event_loop._kernel.occupancy import recount, start
from jaxsched.event_loop._kernel.queues import enqueue
from jaxsched.event_loop._kernel.records import BOUNDARY, NEWS, NEXT_JOB
from jaxsched.event_loop.run import Run
from jaxsched.policies.policy import Policy
from jaxsched.workload.jobs import JobTable


class RunningJob(NamedTuple):
    """A job that runs when the loop begins: one of the first rows of the job table."""

    row: int
    partition: int
    workers: Int[np.ndarray, "NK"]  # of each group
    left_s: float  # ideal seconds


class Round(NamedTuple):
    """What all schedulers did."""

    row: Int64[np.ndarray, "P"]  # the job that each has placed, -1 = none
    workers: Int64[np.ndarray, "P NK"]  # of that job
    ps: Int64[np.ndarray, "P NK"]
    moved: bool  # somebody has placed or forwarded a job


class DecisionRounds:
    """Rounds of decisions from a given state on. In plain Python: they are few, and nothing is to be compiled."""

    def __init__(
        self,
        config: EnvConfig,
        params: EnvParams,
        jobs: JobTable,
        policy: Policy,
        *,
        interval_s: float,
        running: Sequence[RunningJob],
        queues: Sequence[Iterable[int]],
        attained_s: Sequence[float],
    ) -> None:
        """The state before the first round.

        Args:
            config: As of `Run`, as all up to `policy`.
            params: Likewise.
            jobs: The running ones first.
            policy: See `why_not`.
            interval_s: Seconds from a boundary to the next.
            running: The first rows of `jobs`.
            queues: Rows of the jobs that wait in each partition.
            attained_s: GPU-seconds of each tenant up to now.
        """
        self._run = run = Run(config, params, jobs, policy, interval_s, in_python=True)
        run.tables.tenants["attained_s"] = attained_s
        run.tables.numbers[NEXT_JOB] = len(run.home)
        place_running(run, running)
        with run.in_rows() as (w, t):
            for partition, queue in enumerate(queues):
                for job in queue:
                    if run.home[job] >= 0:
                        enqueue(w, t, partition, int(job))
                        if w.jobs[job].arrival == t.numbers[BOUNDARY]:
                            t.numbers[NEWS] = t.numbers[BOUNDARY]

    def decide(self, free: Int[np.ndarray, "P NK"]) -> Round:
        """One round with so many free GPUs; who has waited does not decide again, unless it is sent a job."""
        partitions, moved = len(free), False
        row, workers, ps = np.full(partitions, -1), np.zeros(free.shape, int), np.zeros(free.shape, int)
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
                    row[p] = t.running[p, partition.running - 1].job
                    _read_back(w, t, p, workers[p], ps[p])
        return Round(row, workers, ps, moved)


def place_running(run: Run, running: Iterable[RunningJob]) -> None:
    """Put jobs on the empty cluster of a run at boundary 0. They must come before all others in the job table.

    Jobs that would fit no empty partition are left out: the simulator knows no such job.
    """
    with run.in_rows() as (w, t):
        for one in running:
            groups = np.flatnonzero(one.workers)
            if run.home[one.row] < 0 or not len(groups):
                continue
            t.service[one.row].left_s = one.left_s
            for used, group in enumerate(groups):
                t.scratch.place[used].group, t.scratch.place[used].workers = int(group), int(one.workers[group])
            start(w, t, one.partition, one.row, len(groups))


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
