"""Orders of the queues are compared by what would become of them (docs/semantics.md, section 7, "Search")."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float32, Int64

from jaxsched.env.state import EnvConfig, EnvParams
from jaxsched.policies.base import Policy
from jaxsched.semantics import WORK_TOLERANCE
from jaxsched.simulation.engines.compiled.covered import rule_of
from jaxsched.simulation.engines.compiled.estimates import left_by_estimate_s
from jaxsched.simulation.engines.compiled.rollouts import copied, to_the_end
from jaxsched.simulation.engines.compiled.run import Run
from jaxsched.simulation.engines.compiled.world import BOUNDARY, NEXT_JOB, START, Tables, World
from jaxsched.simulation.settings import LARGEST_HORIZON
from jaxsched.workload.jobs import JobTable

Keys = Float32[np.ndarray, "waiting"]  # of the jobs that wait: the lowest comes first, ties by row


class SearchedRun(Run):
    """A run that looks for a better order of its queues wherever jobs have come or gone; as machine code."""

    def __init__(
        self,
        config: EnvConfig,
        params: EnvParams,
        jobs: JobTable,
        policy: Policy,
        interval_s: float,
        seed: Sequence[int] = (0,),
    ) -> None:
        """As `Run`. `seed`: of the draws of jobs that are moved, where more wait than are tried."""
        assert policy.searches and policy.options is not None
        super().__init__(config, params, jobs, rule_of(policy), interval_s)
        self._most, self._seed = policy.options.search, seed
        self._own = self.world.jobs["key"].copy()  # in the rule's order
        self._seen = (0, 0)

    def go_on(self, rounds: int = 2**30) -> bool:
        """See `Run`. Before every boundary it looks for a better order."""
        until = self.rounds + rounds
        over = super().go_on(0)
        while not over and self.rounds < until:
            self.look()
            over = super().go_on(1)
        return over

    def look(self) -> None:
        """Take the best of some orders for the present boundary, if jobs have come or gone since the last time."""
        here = self.boundary
        there = (int(np.searchsorted(self.world.jobs["arrival"], here, side="right")), self.finished)
        if there == self._seen:
            return
        self._seen = there
        waiting, partition = waiting_jobs(self.world, self.tables)
        orders = self._orders(waiting, partition)
        if len(orders) < 2:
            return
        costs = what_becomes(self.world, self.tables, waiting, orders)
        self._take(waiting, orders[int(np.argmin(costs))])

    def _orders(self, waiting: Int64[np.ndarray, "waiting"], partition: Int64[np.ndarray, "waiting"]) -> list[Keys]:
        """The present order, the rule's own where that is another, and such with one job moved to its queue's head."""
        present, own = self.world.jobs["key"][waiting], self._own[waiting]
        orders = [present] if (present == own).all() else [present, own]
        moved = _behind_others(waiting, partition, present)
        left = max(self._most - len(orders), 0)
        if len(moved) > left:
            draw = np.random.default_rng((*self._seed, self.boundary))
            moved = np.sort(draw.choice(moved, left, replace=False))
        head = min(float(present.min(initial=0.0)), 0.0) - 1.0
        for at in moved:
            orders.append(present.copy())
            orders[-1][at] = head
        return orders[: self._most]

    def _take(self, waiting: Int64[np.ndarray, "waiting"], order: Keys) -> None:
        if (self.world.jobs["key"][waiting] != order).any():
            self.world.jobs["key"][waiting] = order
            _sort_queues(self.world, self.tables)


def waiting_jobs(world: World, tables: Tables) -> tuple[Int64[np.ndarray, "waiting"], Int64[np.ndarray, "waiting"]]:
    """Rows, ascending, and partitions of the jobs that wait at this boundary, with those that join the queues there."""
    waits = _filled(tables.queue, tables.partitions["queued"])
    first = tables.numbers[NEXT_JOB]
    until = np.searchsorted(world.jobs["arrival"], tables.numbers[BOUNDARY], side="right")
    new = np.arange(first, max(until, first))
    new = new[world.jobs["home"][new] >= 0]
    rows = np.concatenate([tables.queue[waits], new])
    ascending = np.argsort(rows)
    return rows[ascending], np.concatenate([np.nonzero(waits)[0], world.jobs["home"][new]])[ascending]


def _behind_others(
    waiting: Int64[np.ndarray, "waiting"], partition: Int64[np.ndarray, "waiting"], keys: Keys
) -> Int64[np.ndarray, "behind"]:
    """Places in `waiting` of the jobs that are not the first of their queues."""
    order = np.lexsort((waiting, keys, partition))
    follows = np.diff(partition[order], prepend=-1) == 0
    return np.sort(order[follows])


def _filled(places: np.ndarray, count: Int64[np.ndarray, "P"]) -> Bool[np.ndarray, "P places"]:
    """Which places of the partitions' tables are taken: so many from the first on."""
    return np.arange(places.shape[1]) < count[:, None]


def what_becomes(
    world: World, tables: Tables, waiting: Int64[np.ndarray, "waiting"], orders: Sequence[Keys]
) -> list[float]:
    """Of each order the sum of the finish times of all jobs that are there, if no more came and estimates were true.

    Infinite if some job would not finish.
    """
    alone, begin, rows = there_by_estimates(world, tables, waiting)
    at = np.searchsorted(rows, waiting)
    costs = []
    for order in orders:
        jobs, played = alone.jobs.copy(), copied(begin)
        if (jobs["key"][at] != order).any():
            jobs["key"][at] = order
            _sort_queues(alone._replace(jobs=jobs), played)
        to_the_end(alone._replace(jobs=jobs), played)
        total_s = float(played.records["finish_s"].sum())
        costs.append(np.inf if np.isnan(total_s) else total_s)
    return costs


def there_by_estimates(
    world: World, tables: Tables, waiting: Int64[np.ndarray, "waiting"]
) -> tuple[World, Tables, Int64[np.ndarray, "there"]]:
    """The present state of a run with the jobs alone that run or wait, whose run times are as their estimates have it.

    Returns world, tables and the rows that the jobs have in the run, ascending: theirs here are 0, 1, ...
    """
    runs = _filled(tables.running, tables.partitions["running"])
    waits = _filled(tables.queue, tables.partitions["queued"])
    rows = np.sort(np.concatenate([tables.running["job"][runs], waiting]))
    few = len(rows)
    alone = world._replace(jobs=world.jobs[rows], queue_slots=few, horizon=LARGEST_HORIZON)
    begin = copied(
        tables._replace(
            queue=np.where(waits, np.searchsorted(rows, tables.queue), 0)[:, :few],
            service=tables.service[rows],
            records=tables.records[rows],
            placement=np.zeros((0, 0), np.int8),
            starts=np.zeros(0, START),
            start_workers=np.zeros((0, tables.free.shape[1]), np.int8),
        )
    )
    begin.numbers[NEXT_JOB] = (rows < tables.numbers[NEXT_JOB]).sum()
    begin.running["job"] = np.where(runs, np.searchsorted(rows, begin.running["job"]), 0)
    _believe(alone, begin, runs)
    return alone, begin, rows


def _believe(world: World, tables: Tables, runs: Bool[np.ndarray, "P R"]) -> None:
    """Put the estimates in the place of the run times; `runs`: which places of the tables have running jobs."""
    jobs, by_name = world.jobs, world._replace(jobs=world.jobs.view(np.recarray))
    for p, i in np.argwhere(runs):
        run = tables.running[p, i]
        job = jobs[run["job"]]
        if job["estimate_s"] == job["duration_s"]:
            continue  # it ends when it ends, to the last bit
        from_s = max(tables.now_s[0], run["resume_s"])
        remaining_s = (run["finish_s"] - from_s) / run["slowdown"]
        left_s = left_by_estimate_s(by_name, run["job"], remaining_s)
        job["estimate_s"] = job["duration_s"] = job["duration_s"] - remaining_s + left_s
        run["finish_s"] = from_s + left_s * run["slowdown"]
        run["early_s"] = run["finish_s"] - WORK_TOLERANCE * job["duration_s"] * run["slowdown"]
    jobs["duration_s"] = jobs["estimate_s"]
    new = tables.records["start"] < 0
    tables.service["left_s"][new] = jobs["estimate_s"][new]
    for p, partition in enumerate(tables.partitions):
        here = tables.running[p, : partition["running"]]
        partition["next_finish_s"] = here["finish_s"].min(initial=np.inf)
        partition["next_early_s"] = here["early_s"].min(initial=np.inf)


def _sort_queues(world: World, tables: Tables) -> None:
    """Bring queues into the order of keys that have been changed."""
    for p, partition in enumerate(tables.partitions):
        queue = tables.queue[p, : partition["queued"]]
        queue[:] = queue[np.lexsort((queue, world.jobs["key"][queue]))]
        partition["settled"] = 0
