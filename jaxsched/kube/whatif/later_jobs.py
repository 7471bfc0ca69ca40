"""Gangs that may come later as rows at the end of a job table, others in every draw."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from jaxsched.kube.policy.encode import blank_jobs
from jaxsched.kube.whatif.pools import Pool
from jaxsched.kube.whatif.question import Question
from jaxsched.policies.policy import Policy
from jaxsched.workload.jobs import JobTable

RUN_TIMES, HOMES = 1, 2  # streams of random numbers


class Last(NamedTuple):
    """The last rows of the job table in one draw; those that nobody fills never arrive."""

    jobs: JobTable
    priority: Int64[np.ndarray, "rows"]


class LaterJobs:
    """`rows` of the job table; none if nobody comes."""

    def __init__(self, pool: Pool, question: Question, tenants: dict[str, int], now_s: float) -> None:
        self.pool, self.question = pool, question
        self.gangs = () if pool.later is None else pool.later.gangs
        self.shapes = blank_jobs(len(self.gangs))
        for row, gang in enumerate(self.gangs):
            jobs = self.shapes
            jobs.workers[row], jobs.gpus_per_worker[row] = len(gang.workers), gang.gpus_per_worker
            jobs.ps[row], jobs.model[row] = len(gang.ps), gang.model
            jobs.tenant[row], jobs.estimate_s[row] = tenants[gang.namespace], gang.duration_s
        self.priority = np.array([gang.priority for gang in self.gangs], np.int64)
        self.futures: list[tuple[list[int], list[float]]] = []
        if pool.later is not None:
            ends_s = question.horizon_s
            self.futures = [pool.later.drawn(now_s, ends_s, (question.seed, draw)) for draw in range(question.draws)]
        self._distinct = _one_of_each(self.shapes)
        self.rows = max([len(self._distinct), *(len(come) for come, _ in self.futures)])

    def largest(self) -> JobTable:
        """As many rows, with every size that occurs: so much room must there be."""
        which = np.resize(self._distinct, self.rows) if self.rows else np.zeros(0, np.int64)
        return _rows(self.shapes, which)

    def drawn(self, draw: int) -> Last:
        """The rows of one draw, in order of arrival."""
        come, at_s = self.futures[draw] if self.futures else ([], [])
        which = np.array([*come, *[0] * (self.rows - len(come))], np.int64)
        jobs, own = _rows(self.shapes, which), slice(len(come))
        z = np.random.default_rng([self.question.seed, draw, RUN_TIMES]).standard_normal(len(come))
        partitions = len(self.pool.cluster.group_gpus)
        homes = np.random.default_rng([self.question.seed, draw, HOMES]).integers(0, partitions, len(come))
        jobs.arrival[own] = np.ceil(np.array(at_s) / self.question.interval_s)
        jobs.duration_s[:] = jobs.estimate_s
        jobs.duration_s[own] *= np.exp(self.question.error * z)
        jobs.home[own] = homes
        return Last(jobs, self.priority[which])


def joined(first: JobTable, last: JobTable) -> JobTable:
    """The rows of both."""
    pairs = {name: (column, getattr(last, name)) for name, column in vars(first).items() if column is not None}
    return first.replace(**{name: np.concatenate(pair) for name, pair in pairs.items()})


def orders_by_key(policy: Policy) -> bool:
    """Its queues go by a key of the job, so that priorities can be put into it."""
    return policy.spec is not None and policy.spec.queue.order != "tenants"


def _one_of_each(jobs: JobTable) -> Int64[np.ndarray, "sizes"]:
    sizes = np.stack([jobs.workers, jobs.gpus_per_worker], 1)
    return np.unique(sizes, axis=0, return_index=True)[1] if len(sizes) else np.zeros(0, np.int64)


def _rows(jobs: JobTable, which: Int64[np.ndarray, "rows"]) -> JobTable:
    return jobs.replace(**{name: column[which] for name, column in vars(jobs).items() if column is not None})
