"""Runs of job lists: from files and a policy to completion times."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int

from jaxsched.adaptive.contention import NO_NETWORK
from jaxsched.adaptive.knowing import make_own
from jaxsched.adaptive.profiles import Application
from jaxsched.adaptive.rounds import play
from jaxsched.adaptive.state import AdaptiveJobs, AdaptiveWorld, Network, State
from jaxsched.adaptive.tables import Tables, make_tables, shapes_of, widths
from jaxsched.adaptive.view import AllocationPolicy, whole_nodes
from jaxsched.adaptive.workload import RESTART_S, Job, plan_of, to_arrays
from jaxsched.cluster.outages import Outages
from jaxsched.errors import UserError
from jaxsched.semantics import HISTORY

LATEST_END = 20_000  # rounds after the last submission, in which all jobs have to end
MOST_ROUNDS = 1_000_000  # in all
NO_OUTAGES = Outages(np.zeros(0, np.int64), np.zeros(0), np.zeros(0))


@dataclasses.dataclass(frozen=True)
class Nodes:
    """Equal nodes of a cluster."""

    count: int
    gpus: int
    kind: str = ""  # the GPU type, as profiles have it

    def __post_init__(self) -> None:
        if min(self.count, self.gpus) < 1:
            raise UserError(f"nodes: {self.count} of {self.gpus} GPUs, should be 1 of 1 GPU at least")


@dataclasses.dataclass(frozen=True)
class Rules:
    """How a world plays.

    Attributes:
        period_s: seconds between decisions.
        restart_s: seconds that a job loses when its GPUs change, by application or for all.
        interference: share of its goodput that a job on several nodes loses while it shares a node with another one.
        outages: of nodes, by their place among all.
        fits: jobs know only the step times that they have seen, and predict others; else all know the truth.
        network: what jobs contend for.
        owner: the scheduler of every node, where lists are those of the schedulers of one cluster, one after the
            other; empty: every list has a cluster of its own.
    """

    period_s: float = 60.0
    restart_s: Mapping[str, float] | float = RESTART_S
    interference: float = 0.0
    outages: Outages = NO_OUTAGES
    fits: bool = False
    network: Network = NO_NETWORK
    owner: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        given = self.restart_s.values() if isinstance(self.restart_s, Mapping) else [self.restart_s]
        if not all(0.0 <= value < np.inf for value in given):
            raise UserError(f"restart_s: {self.restart_s} should be seconds of at least 0")
        if not 0.0 <= self.interference < 1.0:
            raise UserError(f"interference: {self.interference} should be a share from 0 to below 1")


class Result(NamedTuple):
    """What became of a list of jobs, in the order of submission."""

    jobs: Sequence[Job]
    start_s: np.ndarray
    finish_s: np.ndarray
    gpu_s: np.ndarray  # GPU-seconds held
    restarts: np.ndarray

    @property
    def jct_s(self) -> np.ndarray:
        """Seconds from submission to the end."""
        return self.finish_s - np.array([job.submit_s for job in self.jobs])


PUBLISHED_NODES = (Nodes(16, 4),)


def simulate(
    policy: AllocationPolicy,
    apps: Mapping[str, Application],
    lists: Sequence[Sequence[Job]],
    nodes: Sequence[Nodes] = PUBLISHED_NODES,
    rules: Rules = Rules(),
) -> list[Result]:
    """Plays every list on a cluster of its own, or with its scheduler's nodes of the cluster that all share.

    One program for all: lists are padded to the longest.

    Raises:
        UserError: no profile covers what jobs want, a job can never end, or rules, nodes or lists make no sense.
    """
    most_rounds = rounds_of(lists, rules.period_s)
    with jax.enable_x64(True):
        world, jobs = build(policy, apps, lists, nodes, rules)
        states = jax.device_get(play(policy, world, jobs, most_rounds))
    return [_result(of_list, states, i, rules.period_s) for i, of_list in enumerate(lists)]


def rounds_of(lists: Sequence[Sequence[Job]], period_s: float) -> int:
    """How many rounds are played at most. UserError if those up to the last submission are too many."""
    if not 0.0 < period_s < np.inf:
        raise UserError(f"period_s: {period_s} should be a number of seconds above 0")
    if not any(lists):
        raise UserError("lists: have no jobs, should have one at least")
    last = max((job for jobs in lists for job in jobs), key=lambda job: job.submit_s)
    rounds = int(np.ceil((last.submit_s - begin_of(lists, period_s)) / period_s)) + LATEST_END
    if rounds > MOST_ROUNDS:
        text = (
            f"at most {(MOST_ROUNDS - LATEST_END) * period_s:,.0f} s after the first job, {MOST_ROUNDS - LATEST_END:,}"
        )
        raise last.row.fail("time", f"{text} rounds of {period_s:g} s; take longer ones, or cut the list")
    return rounds


def begin_of(lists: Sequence[Sequence[Job]], period_s: float) -> float:
    """Seconds at which the first round begins: a whole number of rounds, not after any submission."""
    return float(np.floor(min(job.submit_s for jobs in lists for job in jobs) / period_s) * period_s)


def build(
    policy: AllocationPolicy,
    apps: Mapping[str, Application],
    lists: Sequence[Sequence[Job]],
    nodes: Sequence[Nodes],
    rules: Rules,
) -> tuple[AdaptiveWorld, AdaptiveJobs]:
    """The world, and the lists as arrays with a leading axis."""
    if not nodes:
        raise UserError("nodes: there are none, should be one at least")
    whole, fits = policy.placing is whole_nodes, rules.fits
    if fits and not (policy.from_goodput and len(nodes) == 1):
        raise UserError(f"--knows {HISTORY}: {policy.name} cannot go by what jobs predict; pollux can, on one GPU type")
    kinds = [kind.kind for kind in nodes]
    total = sum(kind.count * kind.gpus for kind in nodes)
    plans = sorted({plan_of(job, apps, policy.own_batch) for jobs in lists for job in jobs}, key=str)
    most = min(total, max(apps[plan.application].most_gpus(plan.batch) for plan in plans))
    most_nodes = min(max(kind.count for kind in nodes), most)
    shapes = shapes_of([kind.gpus for kind in nodes], most_nodes, most, whole=whole)
    tables = make_tables(apps, plans, kinds, [kind.gpus for kind in nodes], shapes)
    world = AdaptiveWorld(
        tables=tables,
        own=make_own(apps, plans if fits else [], kinds[0], nodes[0].gpus, most if fits else 0),
        network=jax.tree.map(jnp.asarray, rules.network),
        owner=jnp.asarray(rules.owner, jnp.int32),
        node_gpus=jnp.asarray(np.repeat([kind.gpus for kind in nodes], [kind.count for kind in nodes]), jnp.int32),
        node_type=jnp.asarray(np.repeat(np.arange(len(nodes)), [kind.count for kind in nodes]), jnp.int32),
        begin_s=jnp.asarray(begin_of(lists, rules.period_s)),
        period_s=jnp.asarray(float(rules.period_s)),
        interference=jnp.asarray(float(rules.interference)),
        out_node=jnp.asarray(rules.outages.server, jnp.int32),
        out_from_s=jnp.asarray(rules.outages.from_s),
        out_to_s=jnp.asarray(rules.outages.to_s),
        widths=tuple(kind.gpus for kind in nodes),
        spread=not whole,
        fits=fits,
    )
    size, row = max(map(len, lists)), {plan: i for i, plan in enumerate(plans)}
    ranges = []
    for p, jobs in enumerate(lists):
        numbers = numbers_of(tables, _nodes_of(p, nodes, rules.owner), whole=whole)
        can = [np.flatnonzero(numbers[row[plan_of(job, apps, policy.own_batch)]]) for job in jobs]
        ranges.append([_range(job, of_job, policy) for job, of_job in zip(jobs, can, strict=True)])
    made = [
        to_arrays(jobs, plans, of_jobs, apps, policy.own_batch, size, rules.restart_s)
        for jobs, of_jobs in zip(lists, ranges, strict=True)
    ]
    return world, jax.tree.map(lambda *leaves: jnp.stack(leaves), *made)


def _nodes_of(scheduler: int, nodes: Sequence[Nodes], owner: Sequence[int]) -> list[Nodes]:
    """What it has of each type."""
    if not len(owner):
        return list(nodes)
    parts = np.split(np.asarray(owner) == scheduler, np.cumsum([kind.count for kind in nodes])[:-1])
    return [dataclasses.replace(kind, count=int(mine.sum())) for kind, mine in zip(nodes, parts, strict=True)]


def numbers_of(tables: Tables, nodes: Sequence[Nodes], *, whole: bool) -> Bool[np.ndarray, "M R1"]:
    """Whether a plan may have so many GPUs, on some type: its profile covers them, and they can be placed."""
    found = np.zeros((tables.goodput.shape[0], tables.goodput.shape[-1]), bool)
    for t, of_type in enumerate(nodes):
        most = min(of_type.count * of_type.gpus, found.shape[1] - 1)
        can = widths(of_type.gpus, most) if whole else np.arange(1, most + 1)
        found[:, can] |= np.asarray(tables.goodput)[:, 0, t, can] > 0
    return found


def _range(job: Job, can: Int[np.ndarray, "K"], policy: AllocationPolicy) -> tuple[int, int]:
    """The fewest and the most GPUs of a job, of the numbers that it can have. UserError if it could never run."""
    where = f"what the profile of {job.application} covers on this cluster"
    if not len(can):
        raise job.row.fail("application", f"one with a number of GPUs that {policy.name} can give: {where}")
    if job.least > can[-1]:
        raise job.row.fail("min_replicas", f"at most {can[-1]}, {where}")
    own = can[(can >= job.least) & (can <= job.most)]
    if not len(own):
        first = can[can >= job.least][0]
        raise job.row.fail("max_replicas", f"at least {first}, the next number of GPUs that {policy.name} can give")
    if policy.tuned_gpus and job.gpus not in own:
        raise job.row.fail("num_replicas", f"{own[0]} to {own[-1]}, {where}: {policy.name} changes it for no job")
    return int(own[0]), int(own[-1])


def _result(jobs: Sequence[Job], states: State, row: int, period_s: float) -> Result:
    leaves = (states.start_s, states.finish_s, states.service, states.restarts)
    start_s, finish_s, gpu_s, restarts = (np.asarray(leaf)[row, : len(jobs)] for leaf in leaves)
    for job, end in zip(jobs, finish_s, strict=True):
        if end == np.inf:
            raise UserError(
                f"{job.row.path}, line {job.row.line}: {job.name} is not done {LATEST_END:,} rounds of {period_s:g} s "
                "after the last submission: the policy gives it no GPUs, no number or type in its range, no profile "
                "covers its placement, or rounds are too short"
            )
    return Result(jobs, start_s, finish_s, gpu_s, restarts)
