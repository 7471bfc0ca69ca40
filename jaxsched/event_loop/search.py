"""Orders and holds are compared by what would become of the jobs (docs/semantics.md, section 7, "Search")."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Int64

from jaxsched.env.state import LARGEST_HORIZON, EnvConfig, EnvParams
from jaxsched.event_loop._kernel.estimates import left_by_estimate_s
from jaxsched.event_loop._kernel.records import BOUNDARY, NEXT_JOB, START, Tables, World
from jaxsched.event_loop.coverage import rule_of
from jaxsched.event_loop.run import WHOLE_RUN, Run, copy_tables, play_to_end
from jaxsched.policies.policy import Policy
from jaxsched.semantics import WORK_TOLERANCE
from jaxsched.workload.jobs import JobTable

Rows = Int64[np.ndarray, "waiting"]


class Choice(NamedTuple):
    """What is done with the jobs that wait."""

    keys: Float32[np.ndarray, "waiting"]  # the lowest comes first, ties by row
    held: Int64[np.ndarray, "waiting"]  # they do not start before that boundary


class SearchedRun(Run):
    """A run that looks for something better than its rule wherever jobs have come or gone; as machine code."""

    def __init__(
        self,
        config: EnvConfig,
        params: EnvParams,
        jobs: JobTable,
        policy: Policy,
        interval_s: float,
        seed: Sequence[int] = (0,),
    ) -> None:
        """As `Run`. `seed`: of the draws of choices, where there are more than are tried."""
        assert policy.searches and policy.spec is not None
        super().__init__(config, params, jobs, rule_of(policy), interval_s)
        self._most, self._seed = policy.spec.search, seed
        if self._most > 1:
            self.world = self._with_rule(timed=True, settles=False)  # a hold ends by the clock
        self._own = self.world.jobs["key"].copy()  # in the rule's order
        self._seen = (0, 0)

    def go_on(self, rounds: int = WHOLE_RUN) -> bool:
        """See `Run`. Before every boundary it looks for something better."""
        until = self.rounds + rounds
        over = super().go_on(0)
        while not over and self.rounds < until:
            self.look()
            over = super().go_on(1)
        return over

    def look(self) -> None:
        """Take the best of some choices for the present boundary, if jobs have come or gone since the last time."""
        there = (int(np.searchsorted(self.world.jobs["arrival"], self.boundary, side="right")), self.finished)
        if there == self._seen or self._most == 1:
            return
        self._seen = there
        waiting, partition = find_waiting_jobs(self.world, self.tables)
        if len(waiting) == 0:
            return
        scene = believe_estimates(self.world, self.tables, waiting)
        choices = self._choices(waiting, partition, find_next_ends(scene)[partition])
        costs = [scene.cost(choice) for choice in choices]
        best = int(np.argmin(costs))
        if best > 0:
            choose(self.world, self.tables, waiting, choices[best])

    def _choices(self, waiting: Rows, partition: Rows, until: Rows) -> list[Choice]:
        """The present one, the rule's own where that is another, and such as move or hold back one job.

        `until`: up to when each job may be held back.
        """
        present = Choice(self.world.jobs["key"][waiting], self.world.jobs["held"][waiting])
        own, here = Choice(self._own[waiting], np.zeros_like(waiting)), self.boundary
        choices = [present]
        if (present.keys != own.keys).any() or (present.held > here).any():
            choices.append(own)
        ahead = [(at, 0) for at in find_behind_others(waiting, partition, present.keys)]
        later = [(at, until[at]) for at in range(len(waiting)) if present.held[at] <= here < until[at]]
        changes = ahead + later
        left = self._most - len(choices)
        if len(changes) > left:
            drawn = np.random.default_rng((*self._seed, here)).choice(len(changes), max(left, 0), replace=False)
            changes = [changes[one] for one in np.sort(drawn)]
        return choices + [_change_choice(present, at, held) for at, held in changes]


def _change_choice(choice: Choice, at: int, held: int) -> Choice:
    """The same, but one job moved to the head of its queue, or held back until a boundary other than 0."""
    keys, until = choice.keys.copy(), choice.held.copy()
    until[at] = held
    if held == 0:
        keys[at] = min(float(keys.min()), 0.0) - 1.0
    return Choice(keys, until)


def choose(world: World, tables: Tables, waiting: Rows, choice: Choice) -> None:
    """Do that with the jobs of these rows."""
    world.jobs["key"][waiting], world.jobs["held"][waiting] = choice
    for p, partition in enumerate(tables.partitions):
        queue = tables.queue[p, : partition["queued"]]
        queue[:] = queue[np.lexsort((queue, world.jobs["key"][queue]))]


def find_waiting_jobs(world: World, tables: Tables) -> tuple[Rows, Rows]:
    """Rows, ascending, and partitions of the jobs that wait at this boundary, with those that join the queues there."""
    waits = _mask_filled(tables.queue, tables.partitions["queued"])
    first = tables.numbers[NEXT_JOB]
    until = np.searchsorted(world.jobs["arrival"], tables.numbers[BOUNDARY], side="right")
    new = np.arange(first, max(until, first))
    new = new[world.jobs["home"][new] >= 0]
    rows = np.concatenate([tables.queue[waits], new])
    ascending = np.argsort(rows)
    return rows[ascending], np.concatenate([np.nonzero(waits)[0], world.jobs["home"][new]])[ascending]


def find_behind_others(
    waiting: Rows, partition: Rows, keys: Float32[np.ndarray, "waiting"]
) -> Int64[np.ndarray, "behind"]:
    """Places in `waiting` of the jobs that are not the first of their queues."""
    order = np.lexsort((waiting, keys, partition))
    follows = np.diff(partition[order], prepend=-1) == 0
    return np.sort(order[follows])


def _mask_filled(places: np.ndarray, count: Int64[np.ndarray, "P"]) -> Bool[np.ndarray, "P places"]:
    """Which places of the partitions' tables are taken: so many from the first on."""
    return np.arange(places.shape[1]) < count[:, None]


class BelievedState(NamedTuple):
    """The present state of a run as its policy believes it to be, with the jobs alone that run or wait."""

    world: World
    tables: Tables
    rows: Int64[np.ndarray, "there"]  # of these jobs in the run, ascending; here they are 0, 1, ...
    waiting: Rows  # here

    def cost(self, choice: Choice) -> float:
        """The sum of the finish times of all jobs, if no more came; infinite if some job would not finish."""
        world, tables = self.world._replace(jobs=self.world.jobs.copy()), copy_tables(self.tables)
        choose(world, tables, self.waiting, choice)
        play_to_end(world, tables)
        total_s = float(tables.records["finish_s"].sum())
        return np.inf if np.isnan(total_s) else total_s


def find_next_ends(scene: BelievedState) -> Int64[np.ndarray, "P"]:
    """The first boundary at which a job that runs in each partition has ended, 0 where nothing runs."""
    end_s, here = scene.tables.partitions["next_finish_s"], scene.tables.numbers[BOUNDARY]
    runs = np.isfinite(end_s)
    boundary = np.ceil(np.where(runs, end_s, 0.0) / scene.world.interval_s)
    return np.where(runs, np.maximum(boundary, here + 1), 0).astype(np.int64)


def believe_estimates(world: World, tables: Tables, waiting: Rows) -> BelievedState:
    """The present state of a run, whose run times are as the estimates have them."""
    runs = _mask_filled(tables.running, tables.partitions["running"])
    waits = _mask_filled(tables.queue, tables.partitions["queued"])
    rows = np.sort(np.concatenate([tables.running["job"][runs], waiting]))
    few = len(rows)
    alone = world._replace(jobs=world.jobs[rows], queue_slots=few, horizon=LARGEST_HORIZON)
    queue = np.zeros((len(waits), few), np.int64)
    queue[_mask_filled(queue, tables.partitions["queued"])] = np.searchsorted(rows, tables.queue[waits])
    begin = copy_tables(
        tables._replace(
            queue=queue,
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
    return BelievedState(alone, begin, rows, np.searchsorted(rows, waiting))


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
