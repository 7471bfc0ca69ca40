"""Futures of pools, under one policy: from their nodes, gangs and running parts to starts.

Pools are sets of nodes whose gangs compete for them alone, so that each can be simulated by itself. The simulator
knows GPUs and their types, and no node rights. Gangs that may use the same nodes share a pool; pools that overlap are
one, and then some of its gangs may use a part of it only. If that is all nodes with some GPU types, they are bound to
these. Else they are simulated as if they could use all of it, for the sake of the others, and nothing is said of
themselves.

Gangs that may come later are rows at the end of the job table, others in every draw. Run times are log-normal around
what is stated, given how long a gang has run already.
"""

import dataclasses
import math
import statistics
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float64, Int8, Int32, Int64

from jaxsched.cluster.hardware import Cluster
from jaxsched.env.queues import forward_freely
from jaxsched.env.state import EnvConfig, make_params
from jaxsched.errors import UserError
from jaxsched.event_loop import Futures, RunningJob, numba_missing
from jaxsched.kube.capacity.free_capacity import FreeCapacity
from jaxsched.kube.capacity.ledger import RunningPart
from jaxsched.kube.plan.rounds import home_partition, tenants_of
from jaxsched.kube.policy import LEAST_LEFT, blank_jobs, take_rows
from jaxsched.kube.read.gangs import Gang
from jaxsched.kube.read.settings import PlanSettings
from jaxsched.kube.whatif.recorded import History
from jaxsched.policies.policy import Policy
from jaxsched.pytree import on_device
from jaxsched.workload.jobs import JobTable, join_types


@dataclasses.dataclass(frozen=True, eq=False)
class Pool:
    """Some nodes, the gangs that wait for them, and what runs there."""

    gangs: tuple[Gang, ...]  # higher priority first, then the oldest
    restricted: frozenset[str]  # keys of those that may use a part of the nodes only, which no GPU types tell
    allowed: Mapping[str, str]  # of the others, and of later gangs, that may use some GPU types only: key -> those
    cluster: Cluster  # nodes of other pools have no GPUs here
    merged: bool  # the GPU groups of a node count as one
    parts: tuple[RunningPart, ...]  # whose workers of other pools are left out; in the view of `cluster`
    later: History | None = None  # what may come for these nodes; None: nobody

    @property
    def gpu_sets(self) -> tuple[str, ...]:
        """As of `EnvConfig`."""
        return ("", *sorted(set(self.allowed.values()))) if self.allowed else ()

    def sets_of(self, gangs: Sequence[Gang]) -> Int32[np.ndarray, "gangs"]:
        """`JobTable.allowed` of some gangs."""
        places = [self.gpu_sets.index(self.allowed.get(gang.key, "")) for gang in gangs] if self.allowed else []
        return np.array(places, np.int32)


def pools_of(
    capacity: FreeCapacity, gangs: Sequence[Gang], running: Sequence[RunningPart], history: History | None = None
) -> list[Pool]:
    """The pools of gangs of which each may use some node.

    A gang of the history belongs to the pool of which it may use most nodes. GPUs are left out beside which pods
    without GPUs, which never end here, leave too little of other resources for all gangs of the pool.
    """
    found: list[tuple[np.ndarray, list[Gang]]] = []  # which nodes, and who waits for them
    legal = {gang.key: _legal(capacity, gang) for gang in gangs}
    for gang in gangs:
        nodes, alike = legal[gang.key], [gang]
        apart = []
        for others, members in found:
            if (others & nodes).any():
                nodes, alike = nodes | others, members + alike
            else:
                apart.append((others, members))
        found = [*apart, (nodes, alike)]
    later = _by_pool(capacity, [nodes for nodes, _ in found], history)
    return [_pool(capacity, members, nodes, running, come) for (nodes, members), come in zip(found, later)]


def _bound(
    capacity: FreeCapacity, gangs: Iterable[Gang], nodes: Bool[np.ndarray, "S"]
) -> tuple[dict[str, str], set[str]]:
    """Of gangs that may use only some of the nodes: the GPU types that these have, and the gangs that none tell."""
    fleet = capacity.fleet
    kind = np.asarray(fleet.split.group_gpu_type)[fleet.place[:, 0], fleet.place[:, 1], 0]
    allowed: dict[str, str] = {}
    others: set[str] = set()
    for gang in gangs:
        own = _legal(capacity, gang) & nodes
        kinds = np.unique(kind[own])
        if (own == nodes).all():
            continue
        if (own == (nodes & np.isin(kind, kinds))).all():
            allowed[gang.key] = join_types(fleet.split.gpu_types[one] for one in kinds.tolist())
        else:
            others.add(gang.key)
    return allowed, others


def _by_pool(
    capacity: FreeCapacity, pools: Sequence[Bool[np.ndarray, "S"]], history: History | None
) -> list[History | None]:
    if history is None or not pools:
        return [None] * len(pools)
    legal = np.array([_legal(capacity, gang) for gang in history.gangs])
    common = np.array([(legal & nodes).sum(1) for nodes in pools])
    own = np.where(common.max(0) > 0, common.argmax(0), -1)
    return [history.only(own == number) for number in range(len(pools))]


def _legal(capacity: FreeCapacity, gang: Gang) -> Bool[np.ndarray, "S"]:
    return capacity.allowed(gang.workers[0])[: len(capacity.fleet.nodes)]


def _pool(
    capacity: FreeCapacity,
    gangs: Sequence[Gang],
    nodes: Bool[np.ndarray, "S"],
    running: Sequence[RunningPart],
    later: History | None,
) -> Pool:
    ledger = capacity.ledger_without_gpu_pods
    come = () if later is None else later.gangs
    fleet, merged = capacity.fleet, any(capacity.merged(gang) for gang in (*gangs, *come))
    inside = fleet.by_slot(np.broadcast_to(nodes[:, None], (len(nodes), fleet.shape.groups)).astype(int))
    cluster = fleet.merged if merged else fleet.split
    most = np.zeros(inside.shape, np.int64)
    for gang in (*gangs, *come):
        need = ledger.vector(gang.workers)
        usable = ledger.usable_groups(need, capacity.allowed(gang.workers[0]), merged)[: len(fleet.nodes)]
        most = np.maximum(most, fleet.by_slot(usable))
    parts = []
    for part in running:
        workers = np.where(inside[part.partition] > 0, part.merged_workers() if merged else part.workers, 0)
        if workers.any():
            parts.append(dataclasses.replace(part, workers=workers, gpus=int(workers.sum())))
    for part in parts:  # what runs there has room there
        most[part.partition] = np.maximum(most[part.partition], part.workers)
    gpus = np.where(inside > 0, np.minimum(np.asarray(cluster.group_gpus), most), 0)
    allowed, restricted = _bound(capacity, (*gangs, *come), nodes)
    return Pool(
        gangs=tuple(sorted(gangs, key=lambda gang: (-gang.priority, gang.submit_s, gang.key))),
        restricted=frozenset(restricted),
        allowed=allowed,
        cluster=cluster.replace(group_gpus=on_device(gpus, np.int32)),
        merged=merged,
        parts=tuple(parts),
        later=later,
    )


LOW, HIGH = 0.05, 0.95  # the ends of the interval that is told: shares of the draws
SHORTEST_S = 1e-3
_LEAST = 1e-300  # of a probability; one that is 0 has no quantile
_NORMAL = statistics.NormalDist()


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


def draw_durations(
    key: str, stated_s: float, done_s: float, error: float, draws: int, seed: int
) -> Float64[np.ndarray, "draws"]:
    """Draw durations `stated_s * exp(error * z)`, z standard normal, given that `done_s` of them did not suffice.

    Args:
        key: The gang's. Its draws depend on that and the seed alone: they are the same beside other gangs and under all
            policies.
        stated_s: What its annotation says, seconds.
        done_s: Seconds of work that it has done.
        error: Standard deviation of the logarithm. With 0 a gang that has run for longer than stated has `LEAST_LEFT`
            of that left.
        draws: How many.
        seed: From 0.

    Returns:
        Seconds, each more than `done_s`.
    """
    if error == 0.0:
        return np.full(draws, max(stated_s, done_s + LEAST_LEFT * stated_s if done_s >= stated_s else 0.0))
    rank = np.random.default_rng([seed, zlib.crc32(key.encode())]).uniform(1e-9, 1.0 - 1e-9, draws)
    over = math.erfc(math.log(done_s / stated_s) / error / math.sqrt(2.0)) / 2.0 if done_s > 0.0 else 1.0
    z = [-_NORMAL.inv_cdf(max(share, _LEAST)) for share in rank * over]  # of the upper end, where it is exact
    return np.maximum(stated_s * np.exp(error * np.array(z)), done_s + SHORTEST_S)


FIRST_STRETCH_S, LONGER = 4 * 3600.0, 4.0  # of the future with later gangs, and how much longer the next one is
FEW_JOBS = 1500  # in all draws together: so many are played in Python sooner than machine code is loaded
RUN_TIMES, HOMES = 1, 2  # streams of random numbers


class LaterRows(NamedTuple):
    """The last rows of the job table in one draw; those that nobody fills never arrive."""

    jobs: JobTable
    priority: Int64[np.ndarray, "rows"]


class LaterJobs:
    """`rows` of the job table; none if nobody comes."""

    def __init__(self, pool: Pool, question: Question, tenants: dict[str, int], now_s: float) -> None:
        self.pool, self.question = pool, question
        self.gangs = () if pool.later is None else pool.later.gangs
        self.shapes = blank_jobs(len(self.gangs)).replace(allowed=pool.sets_of(self.gangs))
        for row, gang in enumerate(self.gangs):
            jobs = self.shapes
            jobs.workers[row], jobs.gpus_per_worker[row] = len(gang.workers), gang.gpus_per_worker
            jobs.ps[row], jobs.model[row] = len(gang.ps), gang.model
            jobs.tenant[row], jobs.estimate_s[row] = tenants[gang.namespace], gang.duration_s
        self.priority = np.array([gang.priority for gang in self.gangs], np.int64)
        self.futures: list[tuple[list[int], list[float]]] = []
        if pool.later is not None:
            ends_s = question.horizon_s
            self.futures = [pool.later.draw(now_s, ends_s, (question.seed, draw)) for draw in range(question.draws)]
        self._distinct = _one_of_each(self.shapes)
        self.rows = max([len(self._distinct), *(len(come) for come, _ in self.futures)])

    def largest(self) -> JobTable:
        """As many rows, with every size that occurs: so much room must there be."""
        which = np.resize(self._distinct, self.rows) if self.rows else np.zeros(0, np.int64)
        return take_rows(self.shapes, which)

    def draw(self, draw: int) -> LaterRows:
        """The rows of one draw, in order of arrival."""
        come, at_s = self.futures[draw] if self.futures else ([], [])
        which = np.array([*come, *[0] * (self.rows - len(come))], np.int64)
        jobs, own = take_rows(self.shapes, which), slice(len(come))
        z = np.random.default_rng([self.question.seed, draw, RUN_TIMES]).standard_normal(len(come))
        partitions = len(self.pool.cluster.group_gpus)
        homes = np.random.default_rng([self.question.seed, draw, HOMES]).integers(0, partitions, len(come))
        jobs.arrival[own] = np.ceil(np.array(at_s) / self.question.interval_s)
        jobs.duration_s[:] = jobs.estimate_s
        jobs.duration_s[own] *= np.exp(self.question.error * z)
        jobs.home[own] = homes
        return LaterRows(jobs, self.priority[which])


def concat_tables(first: JobTable, last: JobTable) -> JobTable:
    """The rows of both."""
    return jax.tree.map(lambda *pair: np.concatenate(pair), first, last)


def has_queue_key(policy: Policy) -> bool:
    """Its queues go by a key of the job, so that priorities can be put into it."""
    return policy.spec is not None and policy.spec.queue.order != "tenants"


def _one_of_each(jobs: JobTable) -> Int64[np.ndarray, "sizes"]:
    sizes = np.stack([jobs.workers, jobs.gpus_per_worker], 1)
    return np.unique(sizes, axis=0, return_index=True)[1] if len(sizes) else np.zeros(0, np.int64)


class Starts(NamedTuple):
    """Of the pool's gangs, in all draws."""

    possible: Bool[np.ndarray, "J"]  # some partition holds it when it is empty
    start_s: Float64[np.ndarray, "D J"]  # from now, inf: not before the horizon, or in a few draws not in the stretch
    partition: Int64[np.ndarray, "D J"]  # -1: not started
    workers: Int8[np.ndarray, "D J NK"]


def play_futures(policy: Policy, pool: Pool, settings: PlanSettings, question: Question, now_s: float = 0.0) -> Starts:
    """Plays all draws. The same draws, whatever the policy.

    With later gangs a stretch of the future is played, and a longer one while more than 1 - `HIGH` of the draws of some
    gang have no start in it.
    """
    until_s = question.horizon_s if pool.later is None else min(FIRST_STRETCH_S, question.horizon_s)
    while True:
        starts = _play(policy, pool, settings, dataclasses.replace(question, horizon_s=until_s), now_s)
        started = np.isfinite(starts.start_s[:, starts.possible]).mean(0)
        if until_s >= question.horizon_s or (started >= HIGH - 1e-9).all():
            return starts
        until_s = min(until_s * LONGER, question.horizon_s)


def _play(policy: Policy, pool: Pool, settings: PlanSettings, question: Question, now_s: float) -> Starts:
    seated, known = len(pool.parts), len(pool.parts) + len(pool.gangs)
    tenants = _tenants(pool, settings)
    attained_s = np.zeros(settings.tenants)
    for part in pool.parts:
        attained_s[tenants[part.namespace]] += part.gpus * part.elapsed_s
    params = make_params(
        pool.cluster, interval_s=question.interval_s, horizon=int(np.ceil(question.horizon_s / question.interval_s))
    )
    later = LaterJobs(pool, question, tenants, now_s)
    compiled = numba_missing() is None and question.draws * (known + later.rows) > FEW_JOBS
    running = [
        RunningJob(row, part.partition, part.workers.reshape(-1), part.duration_s)
        for row, part in enumerate(pool.parts)
    ]
    player = Futures(
        _config(pool, settings, len(pool.gangs) + later.rows),
        forward_freely(params),  # every plan of a live cluster begins to count anew
        concat_tables(_table(pool, tenants), later.largest()),
        policy,
        interval_s=question.interval_s,
        running=running,
        attained_s=attained_s.tolist(),
        compiled=compiled,
    )
    drawn, done_s = _drawn(pool, question, player.slowdowns[:known])
    start, partition, workers = [], [], []
    priority = np.array([0] * seated + [gang.priority for gang in pool.gangs], np.int64)
    for draw, durations in enumerate(drawn.T):
        last = later.draw(draw)
        durations = np.concatenate([durations, last.jobs.duration_s])
        left_s = durations - np.concatenate([done_s, np.zeros(later.rows)])
        ranks = np.concatenate([priority, last.priority]) if has_queue_key(policy) else None
        played = player.play(durations, left_s, later=last.jobs, priority=ranks)
        at = played.start[seated:known]
        start.append(np.where(at < 0, np.inf, at * question.interval_s))
        partition.append(played.partition[seated:known])
        workers.append(played.workers[seated:known])
    return Starts(player.possible[seated:known], np.array(start), np.array(partition), np.array(workers))


def _tenants(pool: Pool, settings: PlanSettings) -> dict[str, int]:
    come = () if pool.later is None else pool.later.gangs
    return tenants_of([one.namespace for one in (*pool.parts, *pool.gangs, *come)], settings.tenants)


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
        draw_durations(key, duration_s, float(done), question.error, question.draws, question.seed)
        for (key, duration_s, _), done in zip(stated, done_s)
    ]
    return np.array(drawn), done_s


def _config(pool: Pool, settings: PlanSettings, waiting: int) -> EnvConfig:
    at_once = int(np.bincount([part.partition for part in pool.parts], minlength=1).max())
    gpus = int(np.asarray(pool.cluster.group_gpus).sum((1, 2)).max())  # a job has at least one
    return EnvConfig(
        running_slots=max(min(at_once + waiting, gpus), at_once, 1),
        queue_slots=max(waiting, 1),
        rounds=settings.max_decisions,
        tenants=settings.tenants,
        record_placements=True,
        gpu_sets=pool.gpu_sets,
    )


def _table(pool: Pool, tenants: dict[str, int]) -> JobTable:
    """The running parts, a worker for each GPU, then the gangs; all are there from the beginning."""
    jobs, seated = blank_jobs(len(pool.parts) + len(pool.gangs)), len(pool.parts)
    if pool.allowed:
        jobs = jobs.replace(allowed=np.concatenate([np.zeros(seated, np.int32), pool.sets_of(pool.gangs)]))
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
