"""Rollouts of one pool under one policy: from its nodes, gangs and running parts to starts."""

import dataclasses
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float64, Int8, Int64

from jaxsched.env.state import EnvConfig, make_params
from jaxsched.errors import UserError
from jaxsched.kube.planning.encode import blank_jobs
from jaxsched.kube.planning.pools import Pool
from jaxsched.kube.planning.rounds import home_partition, tenants_of
from jaxsched.kube.planning.run_times import drawn_durations
from jaxsched.kube.planning.settings import PlanSettings
from jaxsched.policies.base import Policy
from jaxsched.pytree import on_device
from jaxsched.simulation.engines.compiled.covered import no_numba
from jaxsched.simulation.engines.compiled.rollouts import Rollouts
from jaxsched.simulation.engines.compiled.run import Run
from jaxsched.simulation.engines.compiled.seated import Seat
from jaxsched.workload.jobs import JobTable

FEW_JOBS = 1500  # in all draws together: so many are played in Python sooner than machine code is loaded
MOST_FORWARDS = 2**20  # every plan of a live cluster begins to count anew


@dataclasses.dataclass(frozen=True)
class Question:
    """What is asked of the future. UserError on values out of range."""

    draws: int = 100
    error: float = 0.5  # standard deviation of the logarithm of run times
    seed: int = 0
    horizon_s: float = 7 * 86400.0
    interval_s: float = 10.0  # between decisions

    def __post_init__(self) -> None:
        if not 1 <= self.draws <= 10_000:
            raise UserError(f"--draws: {self.draws} should be a whole number from 1 to 10000")
        if not 0.0 <= self.error <= 3.0:
            raise UserError(f"--duration-error: {self.error} should be a number from 0 to 3")
        if not 0 <= self.seed < 2**32:
            raise UserError(f"--seed: {self.seed} should be a whole number from 0 to {2**32 - 1}")
        if not 1.0 <= self.interval_s <= 3600.0:
            raise UserError(f"--interval-s: {self.interval_s} should be a number of seconds from 1 to 3600")
        if not self.interval_s <= self.horizon_s <= 1e8:
            raise UserError(f"--horizon-s: {self.horizon_s} should be a number of seconds from --interval-s to 1e8")


class Starts(NamedTuple):
    """Of the pool's gangs, in all draws."""

    possible: Bool[np.ndarray, "J"]  # some partition holds it when it is empty
    start_s: Float64[np.ndarray, "D J"]  # from now, inf: not before the horizon
    partition: Int64[np.ndarray, "D J"]  # -1: not started
    workers: Int8[np.ndarray, "D J NK"]


def rollouts(policy: Policy, pool: Pool, settings: PlanSettings, question: Question) -> Starts:
    """Plays all draws. The same draws, whatever the policy."""
    seated, waiting = len(pool.parts), len(pool.gangs)
    names = [part.namespace for part in pool.parts] + [gang.namespace for gang in pool.gangs]
    tenants = tenants_of(names, settings.tenants)
    attained_s = np.zeros(settings.tenants)
    for part in pool.parts:
        attained_s[tenants[part.namespace]] += part.gpus * part.elapsed_s
    in_python = no_numba() is not None or question.draws * (seated + waiting) <= FEW_JOBS
    run = _run(policy, pool, settings, question, tenants)
    seats = [
        Seat(row, part.partition, part.workers.reshape(-1), part.duration_s) for row, part in enumerate(pool.parts)
    ]
    player = Rollouts(run, seats, attained_s.tolist(), in_python=in_python)
    drawn, done_s = _drawn(pool, question, player.slowdowns())
    start, partition, workers = [], [], []
    for durations in drawn.T:
        tables = player.play(durations, durations - done_s)
        records = tables.records[seated:]
        start.append(np.where(records["start"] < 0, np.inf, records["start"] * question.interval_s))
        partition.append(records["partition"])
        workers.append(tables.placement[seated:])
    return Starts(run.home[seated:] >= 0, np.array(start), np.array(partition), np.array(workers))


def _drawn(
    pool: Pool, question: Question, slowdowns: Float64[np.ndarray, "J"]
) -> tuple[Float64[np.ndarray, "J D"], Float64[np.ndarray, "J"]]:
    """Ideal seconds of the running parts and then of the gangs, and those that are done.

    A part that is slowed down has done less than it has run; how slow it was before is taken to be as now.
    """
    stated = [(part.gang, part.duration_s, part.elapsed_s) for part in pool.parts]
    stated += [(gang.key, gang.duration_s, 0.0) for gang in pool.gangs]
    done_s = np.array([elapsed_s for _, _, elapsed_s in stated]) / slowdowns
    drawn = [
        drawn_durations(key, duration_s, float(done), question.error, question.draws, question.seed)
        for (key, duration_s, _), done in zip(stated, done_s)
    ]
    return np.array(drawn), done_s


def _run(policy: Policy, pool: Pool, settings: PlanSettings, question: Question, tenants: dict[str, int]) -> Run:
    waiting = len(pool.gangs)
    by_partition = np.bincount([part.partition for part in pool.parts], minlength=1)
    config = EnvConfig(
        running_slots=int(by_partition.max(initial=0)) + waiting,
        queue_slots=max(waiting, 1),
        rounds=settings.max_decisions,
        tenants=settings.tenants,
        record_placements=True,
    )
    params = make_params(
        pool.cluster,
        interval_s=question.interval_s,
        horizon=int(np.ceil(question.horizon_s / question.interval_s)),
        max_forwards=on_device(MOST_FORWARDS, np.int32),
    )
    run = Run(config, params, _table(pool, tenants), policy, question.interval_s)
    jobs = run.world.jobs[len(pool.parts) :]
    priority = np.array([-gang.priority for gang in pool.gangs])
    if policy.options is not None and policy.options.queue.order != "tenants":  # a lower key comes first
        jobs["key"][np.lexsort((jobs["key"], priority))] = np.arange(waiting)
    return run


def _table(pool: Pool, tenants: dict[str, int]) -> JobTable:
    """The running parts, a worker for each GPU, then the gangs; all are there from the beginning."""
    jobs, seated = blank_jobs(len(pool.parts) + len(pool.gangs)), len(pool.parts)
    jobs.arrival[:] = 0
    for row, part in enumerate(pool.parts):
        jobs.workers[row], jobs.model[row], jobs.tenant[row] = part.gpus, part.model, tenants[part.namespace]
        jobs.duration_s[row] = part.duration_s
    partitions = len(pool.cluster.group_gpus)
    for row, gang in enumerate(pool.gangs, seated):
        jobs.workers[row], jobs.gpus_per_worker[row] = len(gang.workers), gang.gpus_per_worker
        jobs.ps[row], jobs.model[row], jobs.tenant[row] = len(gang.ps), gang.model, tenants[gang.namespace]
        jobs.duration_s[row], jobs.home[row] = gang.duration_s, home_partition(gang.key, partitions)
    return jobs
