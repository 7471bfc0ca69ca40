"""Random small clusters and workloads in a handful of fixed shapes, and how to run them.

A shape fixes every array size, so that hundreds of examples reuse a few compiled programs: clusters come from the real
builders and are padded to the shape, job lists are padded to `Shape.jobs`. Nothing is a round number unless it has to
be, so that completions do not fall on boundaries and scores do not tie by accident.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from jaxsched.cluster import padding
from jaxsched.cluster.build import build
from jaxsched.cluster.hardware import Cluster
from jaxsched.cluster.servers import Server
from jaxsched.cluster.topology import fat_tree, leaf_spine
from jaxsched.dynamics.interference import LAWS, Interference, Strengths
from jaxsched.env.environment import initial_state, is_finished, transition
from jaxsched.env.load import FEW
from jaxsched.env.rollout import play_while
from jaxsched.env.state import ALWAYS, Action, EnvConfig, EnvParams, State, make_params, preemption
from jaxsched.policies.registry import parse
from jaxsched.workload.estimates import with_estimates
from jaxsched.workload.jobs import JobList, JobTable, make_job_list, pad_table, to_table
from jaxsched.workload.models import MODEL_NAMES
from tests.oracle.preemption import Preemption

STATUS = ("queued", "running", "finished")  # of Records.status; queued covers backlog and not yet arrived


@dataclasses.dataclass(frozen=True)
class Shape:
    """Every array size of a compiled program."""

    partitions: int
    servers: int  # N, per partition
    groups: int  # K, per server
    jobs: int  # J
    running_slots: int
    queue_slots: int
    rounds: int
    shared: int = 0  # S

    @property
    def racks(self) -> int:
        """T: a rack per server at most."""
        return self.servers

    @property
    def links(self) -> int:
        """E: two directions for each rack and each pod, or for each of two spines."""
        return 4 * self.servers

    def config(self, **changes) -> EnvConfig:
        """The static configuration; by default rounds end early and idle boundaries are skipped."""
        values = dict(
            running_slots=self.running_slots,
            queue_slots=self.queue_slots,
            rounds=self.rounds,
            tenants=4,
            largest_worker=4,
            early_stop=True,
            skip_idle=True,
            record_placements=True,
            shared_gpus=self.shared,
            gpu_speeds=4,
        )
        return EnvConfig(**(values | changes))


# `one` has more servers than a candidate list and is short of queue slots, running slots and rounds; `two` has so many
# running slots that only jobs whose resources change are looked at (`load.FEW`); `three` has servers of up to three
# sockets; its jobs have whole GPUs.
SHAPES = {
    "one": Shape(partitions=1, servers=10, groups=2, jobs=40, running_slots=6, queue_slots=7, rounds=2, shared=8),
    "two": Shape(partitions=2, servers=4, groups=2, jobs=40, running_slots=72, queue_slots=40, rounds=8, shared=8),
    "three": Shape(partitions=3, servers=5, groups=3, jobs=32, running_slots=32, queue_slots=32, rounds=3),
}
assert SHAPES["three"].running_slots <= FEW < SHAPES["two"].running_slots


# ------------------------------------------------------------------------------------------------------------- clusters


def pad_cluster(cluster: Cluster, shape: Shape) -> Cluster:
    """`cluster` padded to the arrays of `shape`, which fixes the number of partitions."""
    sizes = padding.Shape(
        partitions=shape.partitions,
        servers=shape.servers,
        groups=shape.groups,
        racks=shape.racks,
        links=shape.links,
        all_links=shape.partitions * shape.links,
    )
    assert cluster.group_gpus.shape[0] == shape.partitions
    return padding.pad(cluster, sizes)


def random_server(rng: np.random.Generator, groups: int) -> Server:
    """A server of 1 to `groups` sockets with capacities around today's."""
    sockets = int(rng.integers(1, groups + 1))
    return Server(
        groups=tuple(int(x) for x in rng.choice([1, 2, 3, 4, 8], sockets, p=[0.1, 0.25, 0.1, 0.45, 0.1])),
        gpu_type=str(rng.choice(["V100", "A100", "P100", "T4"])),
        cores=float(rng.uniform(6, 40) * sockets),
        pcie_gbytes_s=float(rng.uniform(4, 32)),
        qpi_gbytes_s=float(rng.uniform(8, 40)),
        nic_gbits_s=float(rng.uniform(10, 100)),
    )


def random_cluster(rng: np.random.Generator, shape: Shape, homogeneous: bool, tree: bool) -> Cluster:
    """A cluster of `shape`: leaf-spine or fat-tree, like or unlike servers, the last partitions perhaps padded."""
    most = max(2, shape.servers)
    per_partition = int(rng.integers(2, most + 1))
    # Fewer than a full last partition, but no empty one.
    count = shape.partitions * per_partition - int(rng.integers(0, min(per_partition, 2)))
    if homogeneous:
        server = random_server(rng, shape.groups)
        groups = (4,) * shape.groups if rng.random() < 0.5 else server.groups
        servers = [dataclasses.replace(server, groups=groups)] * count
    else:
        servers = [random_server(rng, shape.groups) for _ in range(count)]
    per_rack = int(rng.integers(1, 4))
    nic = float(rng.uniform(10, 60))
    if tree:
        topology = fat_tree(
            count, per_rack, int(rng.integers(1, 4)), nic, float(rng.uniform(1, 4)), float(rng.uniform(1, 4))
        )
    else:
        topology = leaf_spine(count, per_rack, nic, float(rng.uniform(1, 6)), spines=int(rng.choice([0, 2])) or None)
    return pad_cluster(build(servers, topology, shape.partitions), shape)


# ------------------------------------------------------------------------------------------------------------ workloads


def random_jobs(rng: np.random.Generator, count: int, pace_s: float = 40.0) -> JobList:
    """Gangs of 1 to 16 workers, PS and all-reduce, every model; `pace_s` is the mean time between submissions."""
    workers = rng.choice([1, 2, 3, 4, 5, 8, 16], count, p=[0.3, 0.2, 0.1, 0.2, 0.05, 0.1, 0.05])
    ps = np.where(rng.random(count) < 0.5, 0, np.maximum(1, workers // rng.choice([1, 2, 3], count)))
    return make_job_list(
        submit_s=np.cumsum(rng.exponential(pace_s, count) * (rng.random(count) < 0.85)) + rng.uniform(0, 100),
        duration_s=np.exp(rng.normal(5.5, 1.2, count)),
        workers=workers,
        gpus_per_worker=rng.choice([1, 2, 4], count, p=[0.7, 0.2, 0.1]),
        ps=ps,
        model=rng.integers(0, len(MODEL_NAMES), count),
        tenant=rng.integers(0, 4, count),
        home=rng.integers(0, 8, count),
    )


def with_fractions(rng: np.random.Generator, jobs: JobList, part: float) -> JobList:
    """The same jobs, but about `part` of them want a fraction of one GPU."""
    small = rng.random(len(jobs)) < part
    sizes = rng.choice([50, 125, 230, 333, 470, 500, 625, 810], len(jobs))

    def column(fraction, whole) -> np.ndarray:
        return np.where(small, fraction, whole).astype(np.int32)

    return dataclasses.replace(
        jobs,
        workers=column(1, jobs.workers),
        gpus_per_worker=column(1, jobs.gpus_per_worker),
        ps=column(0, jobs.ps),
        milli=column(sizes, jobs.milli),
    )


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Case:
    """One cluster with one workload and the numbers that the environment takes."""

    origin: str  # the call that makes it
    shape: Shape
    cluster: Cluster
    jobs: JobList
    interval_s: float
    kappa: tuple[float, ...] = (1.0,) * 6
    max_forwards: int = 2
    law: str = "analytic"  # of interference
    preemption: Preemption | None = None

    def __repr__(self) -> str:
        """How to make it again."""
        return self.origin

    def _repr_pretty_(self, printer, cycle: bool) -> None:
        """Hypothesis would print every array."""
        printer.text(self.origin)

    @property
    def params(self) -> EnvParams:
        """As the environment takes it."""
        costs = self.preemption
        if costs is not None:
            costs = preemption(costs.restart_s, costs.checkpoint_interval_s, costs.min_run_s)
        weights = Strengths(kappa=jnp.asarray(self.kappa, jnp.float32))
        return make_params(
            self.cluster,
            interval_s=self.interval_s,
            interference=Interference(law=LAWS[self.law], weights=weights),
            max_forwards=jnp.int32(self.max_forwards),
            preemption=costs,
        )

    @property
    def table(self) -> JobTable:
        """The jobs on the device, padded."""
        return pad_table(to_table(self.jobs, self.interval_s), self.shape.jobs)


INTERVALS_S = (60.0, 7.3, 211.7, 1000.0)


def random_case(
    seed: int,
    shape: str,
    count: int = 32,
    homogeneous: bool = False,
    tree: bool = False,
    interval_s: float = 60.0,
    error: float = 0.0,
    fractions: float = 0.0,
) -> Case:
    """The case of `seed`: the same everywhere."""
    rng = np.random.default_rng(seed)
    case = Case(
        origin=f"random_case({seed}, {shape!r}, {count}, {homogeneous}, {tree}, {interval_s}, {error}, {fractions})",
        shape=SHAPES[shape],
        cluster=random_cluster(rng, SHAPES[shape], homogeneous, tree),
        jobs=with_estimates(random_jobs(rng, count, float(rng.choice([10.0, 40.0, 160.0]))), error, seed),
        interval_s=interval_s,
        kappa=tuple(float(x) for x in rng.uniform(0.2, 2.5, 5)),
        max_forwards=int(rng.integers(0, 4)),
    )
    kappa = (*case.kappa, float(rng.uniform(0.2, 2.5)))
    return dataclasses.replace(case, kappa=kappa, jobs=with_fractions(rng, case.jobs, fractions))


@st.composite
def cases(draw, shape: str, **fixed) -> Case:
    """Hypothesis: fewer jobs, like servers, leaf-spine, minutes and exact estimates are what it shrinks to."""
    values = dict(
        count=draw(st.integers(1, SHAPES[shape].jobs)),
        homogeneous=draw(st.sampled_from([True, False, False])),
        tree=draw(st.booleans()),
        interval_s=draw(st.sampled_from(INTERVALS_S)),
        error=draw(st.sampled_from([0.0, 0.0, 0.4, 1.5])),
        fractions=draw(st.sampled_from([0.0, 0.5, 0.9])) if SHAPES[shape].shared else 0.0,
    )
    return random_case(draw(st.integers(0, 2**32 - 1)), shape, **(values | fixed))


# What stopping jobs costs.
COSTS = st.builds(
    Preemption,
    restart_s=st.sampled_from([0.0, 13.7, 60.0, 900.0]),
    checkpoint_interval_s=st.sampled_from([0.0, 0.0, 41.3, 600.0]),
    min_run_s=st.sampled_from([0.0, 0.0, 120.0, 1000.0]),
)


# -------------------------------------------------------------------------------------------------------------- running


# Compiled together, one program for each row, shape and configuration, which takes most of the time of a test: those of
# other tests, too, are from here if they can be. Every rule, order and switch is in there.
SPECS = {
    "one": (
        "first-fit:tenants",
        "pack:area+backfill",
        "load-balance",
        "tetris:tenants+backfill",
        "tetris:tenants+backfill+reserve",
        "least-interference:sjf+backfill",
        "contention-aware:area",
    ),
    "two": (
        "first-fit",
        "first-fit:sjf+backfill",
        "pack",
        "pack:area+backfill+forward",
        "load-balance:tenants+backfill",
        "load-balance:area+forward",
        "tetris:sjf+spread",
        "tetris:fifo+backfill+spread+reserve",
        "tetris:area+backfill",
        "least-interference",
        "least-interference:tenants+backfill+forward",
        "contention-aware",
        "contention-aware:sjf+backfill+spread",
        "contention-aware:sjf+backfill+spread+reserve",
    ),
    "three": (
        "first-fit:area+forward",
        "pack:tenants+backfill+spread",
        "load-balance:sjf+backfill",
        "tetris",
        "least-interference:area+forward",
        "least-interference:area+backfill+forward+reserve",
        "contention-aware:tenants+backfill+forward",
    ),
}
GREEDY = {
    "one": ("greedy-wait", "greedy-wait:fifo+t1.3+p0.5"),
    "two": (
        "greedy-wait",
        "greedy-wait:sjf+stay+t1.05+p0",
        "greedy-wait:sjf+spread+lifetime",
        "greedy-wait:sjf+spread+lifetime+reserve",
    ),
    "three": (
        "greedy-wait:t1.5+p2",
        "greedy-wait:tenants+t1.2",
        "greedy-wait:sjf+spread",
        "greedy-wait:sjf+spread+reserve",
        "greedy-wait:lifetime+p2",
    ),
}
# All of these stop jobs; they are played in worlds that allow it.
PREEMPTIVE = {
    "one": (
        "pack:srtf+backfill+preempt+consolidate",
        "first-fit:las+preempt+h0.2",
        "load-balance:tiresias+backfill+preempt+q900",
        "greedy-wait:srsf+preempt+lifetime",
    ),
    "two": (
        "pack:srsf+backfill+preempt+consolidate+spread",
        "pack:las+backfill+preempt+h0.1+spread",
        "tetris:mlfq+backfill+preempt+forward",
        "greedy-wait:tiresias+preempt+q2000+spread",
        "contention-aware:srtf+preempt+h1",
    ),
    "three": (
        "first-fit:las+backfill+preempt",
        "pack:srtf+backfill+preempt+spread+h0.3",
        "pack:tiresias+backfill+preempt+q5000",
        "greedy-wait:las+preempt+h0.5+consolidate+forward",
    ),
}


def compiled_with(spec: str, shape: Shape) -> tuple[str, ...]:
    """The policies that are compiled together with `spec` for `shape`."""
    rows = [
        row for name, one in SHAPES.items() if one == shape for row in (SPECS[name], GREEDY[name], PREEMPTIVE[name])
    ]
    return next((row for row in rows if spec in row), (spec,))


MOST_ROUNDS = 200_000


@functools.cache
def jit_start(config: EnvConfig):
    """Compiled `(params, table) -> State`."""
    return jax.jit(functools.partial(initial_state, config))


@functools.cache
def jit_transition(config: EnvConfig):
    """Compiled `(params, state, action) -> (State, reward, finished)`."""

    def step(params: EnvParams, state: State, action: Action):
        state, gain = transition(config, params, state, action)
        return state, gain, is_finished(state)

    return jax.jit(step)


@functools.cache
def jit_policy(spec: str):
    """Compiled `(key, state, params) -> Action` of a hand-written policy."""
    return jax.jit(parse(spec))


@functools.cache
def jit_run(config: EnvConfig, specs: tuple[str, ...], asked: str = ALWAYS):
    """Compiled `(params, table, index, most_rounds) -> (State, rounds)`: a whole run of the policy `specs[index]`."""
    policies = [parse(spec) for spec in specs]

    def run(params: EnvParams, table: JobTable, index, most_rounds=MOST_ROUNDS):
        def play(state: State, key):
            action = jax.lax.switch(index, policies, key, state, params)
            return transition(config, params, state, action, asked)[0], None

        key_of = functools.partial(jax.random.fold_in, jax.random.key(0))
        start = initial_state(config, params, table)
        state, _, rounds = play_while(lambda state: ~is_finished(state), play, start, key_of, most_rounds)
        return state, rounds

    return jax.jit(run)


def run(case: Case, spec: str, config: EnvConfig, specs: tuple[str, ...] = (), asked: str = ALWAYS) -> State:
    """The state when all jobs of `case` are done; `specs` are compiled together with `spec`, once for all cases."""
    specs = specs or compiled_with(spec, case.shape)
    state, rounds = jit_run(config, specs, asked)(case.params, case.table, specs.index(spec))
    assert int(rounds) < MOST_ROUNDS, f"not finished: clock {state.clock}, queue {state.queue}"
    return state


def watched_run(case: Case, spec: str, config: EnvConfig, watch, most_rounds: int = 20_000) -> State:
    """As `run`, round by round: `watch(before, action, after, reward)` sees each of them."""
    params = case.params
    state = jit_start(config)(params, case.table)
    policy, step = jit_policy(spec), jit_transition(config)
    key = jax.random.key(0)
    done = bool(is_finished(state))
    for index in range(most_rounds):
        if done:
            return state
        action = policy(jax.random.fold_in(key, index), state, params)
        before = state
        state, gain, done = step(params, state, action)
        watch(before, action, state, gain)
    raise AssertionError(f"not finished after {most_rounds} rounds: clock {state.clock}, queue {state.queue}")


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of the jobs, in the terms of `oracle.Result`."""

    start_s: np.ndarray  # float64[J], nan if never started
    finish_s: np.ndarray  # float64[J]
    status: list[str]
    partition: np.ndarray
    workers: list[dict[int, int]]
    ps: list[dict[int, int]]


def outcome(case: Case, state: State) -> Outcome:
    """Read the records of a finished run."""
    count = len(case.jobs)
    records = jax.tree.map(lambda leaf: np.asarray(leaf)[:count], state.records)
    rejected = (np.asarray(state.jobs.home)[:count] < 0) & (np.arange(count) < int(state.next_job))
    never = records.start < 0
    undone = records.finish < 0

    def counts(rows) -> list[dict[int, int]]:
        return [{int(a): int(row[a]) for a in np.flatnonzero(row)} for row in rows]

    return Outcome(
        start_s=np.where(never, np.nan, records.start * case.interval_s),
        finish_s=np.where(undone, np.nan, records.finish * case.interval_s + records.finish_offset_s.astype(float)),
        status=["rejected" if bad else STATUS[x] for x, bad in zip(records.status, rejected, strict=True)],
        partition=records.partition.astype(int),
        workers=counts(records.workers),
        ps=counts(records.ps),
    )
