"""From a state of another world, such as a live cluster: one boundary, or again and again what may happen then."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float64, Int, Int8, Int64

from jaxsched.env.state import EnvConfig, EnvParams
from jaxsched.event_loop._kernel.build import build_jobs
from jaxsched.event_loop._kernel.events import play_round
from jaxsched.event_loop._kernel.occupancy import recount, refresh, start
from jaxsched.event_loop._kernel.queues import enqueue
from jaxsched.event_loop._kernel.records import BOUNDARY, NEWS, NEXT_JOB, Tables
from jaxsched.event_loop.run import Run, copy_tables, play_to_end
from jaxsched.policies.policy import Policy
from jaxsched.semantics import WORK_TOLERANCE
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


class Played(NamedTuple):
    """What became of the jobs in one future."""

    start: Int64[np.ndarray, "J"]  # boundary, -1 = not before the horizon
    partition: Int64[np.ndarray, "J"]  # -1 = not started
    workers: Int8[np.ndarray, "J NK"]  # of each group; without rows if placements are not recorded


class Futures:
    """Plays one run from its beginning as often as it is asked to."""

    def __init__(
        self,
        config: EnvConfig,
        params: EnvParams,
        jobs: JobTable,
        policy: Policy,
        *,
        interval_s: float,
        running: Sequence[RunningJob],
        attained_s: Sequence[float],
        compiled: bool,
    ) -> None:
        """A run that begins with some jobs on the cluster.

        Args:
            config: As of `Run`, as all up to `policy`; `record_placements` says whether workers are found.
            params: Up to its horizon every future is played.
            jobs: The running ones first; the last ones may be others in every future, see `play`.
            policy: See `why_not`.
            interval_s: That of `params`, but as a 64-bit float.
            running: The first rows of `jobs`, which run at boundary 0.
            attained_s: GPU-seconds of each tenant up to now.
            compiled: As machine code, which needs Numba; else as plain Python, for short runs.
        """
        run = Run(config, params, jobs, policy, interval_s, in_python=not compiled)
        run.tables.tenants["attained_s"] = attained_s
        run.tables.numbers[NEXT_JOB] = len(running)
        place_running(run, running)
        with run.in_rows() as (w, t):
            refresh(w, t)  # else the loop, which does so after a start, would not know when they end
        assert policy.spec is not None
        self._config, self._params, self._order, self._compiled = config, params, policy.spec.queue.order, compiled
        self._world, self._begin, self._keys = run.world, run.tables, run.world.jobs["key"].copy()

    @property
    def possible(self) -> Bool[np.ndarray, "J"]:
        """Whether some partition holds a job when it is empty."""
        return self._world.jobs["home"] >= 0

    @property
    def slowdowns(self) -> Float64[np.ndarray, "J"]:
        """Of the jobs that run at the beginning; 1 for the others."""
        found = np.ones(len(self._world.jobs))
        for p, partition in enumerate(self._begin.partitions):
            runs = self._begin.running[p, : partition["running"]]
            found[runs["job"]] = runs["slowdown"]
        return found

    def play(
        self,
        duration_s: Float64[np.ndarray, "J"],
        left_s: Float64[np.ndarray, "J"],
        *,
        later: JobTable | None = None,
        priority: Int[np.ndarray, "J"] | None = None,
    ) -> Played:
        """One future, to the end or the horizon. Policies know the estimates of the table.

        Args:
            duration_s: Ideal seconds of all jobs.
            left_s: Of these, what is left now.
            later: Takes the place of the last rows of the table; none is larger than the largest that was there.
            priority: Higher comes first in queues; of one priority the order of the queue decides. It is for orders by
                a key of the job: not `tenants`, nor those of preemptive policies.
        """
        world, tables, keys = self._world, copy_tables(self._begin), self._keys.copy()
        if later is not None:
            assert not callable(self._order)
            last = build_jobs(self._params.cluster, self._params.profiles, later, self._order, self._config)
            first = len(world.jobs) - len(last)
            world.jobs[first:], keys[first:] = last, last["key"]
        world.jobs["key"] = keys if priority is None else _rank_by(priority, keys)
        world.jobs["duration_s"], tables.service["left_s"] = duration_s, left_s
        _set_ends(tables, duration_s, left_s)
        play_to_end(world, tables, in_python=not self._compiled)
        return Played(tables.records["start"], tables.records["partition"], tables.placement)


def _rank_by(priority: Int[np.ndarray, "J"], keys: np.ndarray) -> np.ndarray:
    """Places by priority, higher first, then by key, then by row."""
    places = np.zeros(len(keys), np.float32)
    places[np.lexsort((keys, -np.asarray(priority, np.int64)))] = np.arange(len(keys))
    return places


def _set_ends(tables: Tables, duration_s: Float64[np.ndarray, "J"], left_s: Float64[np.ndarray, "J"]) -> None:
    """Running jobs end when they have done what is left of them."""
    for p, partition in enumerate(tables.partitions):
        runs = tables.running[p, : partition["running"]]
        job, slowdown = runs["job"], runs["slowdown"]
        runs["finish_s"] = left_s[job] * slowdown
        runs["early_s"] = runs["finish_s"] - WORK_TOLERANCE * duration_s[job] * slowdown
        partition["next_finish_s"] = runs["finish_s"].min(initial=np.inf)
        partition["next_early_s"] = runs["early_s"].min(initial=np.inf)
