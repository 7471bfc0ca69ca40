"""Random small clusters and workloads in a handful of fixed shapes.

A shape fixes every array size, so that hundreds of examples reuse a few compiled programs: clusters come from the real
builders and are padded to the shape, job lists are padded to `Shape.jobs`. Nothing is a round number unless it has to
be, so that completions do not fall on boundaries and scores do not tie by accident.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np

from jaxsched.cluster.build import Shape as ClusterShape
from jaxsched.cluster.build import build, pad
from jaxsched.cluster.hardware import Cluster
from jaxsched.cluster.outages import Outages
from jaxsched.cluster.servers import Server
from jaxsched.cluster.topology import fat_tree, leaf_spine
from jaxsched.dynamics.gpu_sharing import SharingTable
from jaxsched.dynamics.interference import LAWS, Interference, Strengths
from jaxsched.env.extensions.failures import failures_of
from jaxsched.env.extensions.pairs import draw_pairs
from jaxsched.env.extensions.parts import NOBODY, Failures, Pairs, make_preemption, no_failures
from jaxsched.env.knowledge import HISTORY
from jaxsched.env.state import EnvConfig, EnvParams, make_params
from jaxsched.workload.jobs import NEVER, JobList, JobTable, make_job_list, pad_table, to_table
from jaxsched.workload.load import add_estimates
from jaxsched.workload.models import CATALOGUE, MODEL_NAMES, ModelProfile, profiles
from tests.oracle.failures import Outage
from tests.oracle.preemption import Preemption
from tests.support.sharing_laws import random_table


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


# `one` has more servers than a candidate list and is short of queue slots, running slots and rounds; `two` has many
# running slots; `three` has servers of up to three sockets; its jobs have whole GPUs.
SHAPES = {
    "one": Shape(partitions=1, servers=10, groups=2, jobs=40, running_slots=6, queue_slots=7, rounds=2, shared=8),
    "two": Shape(partitions=2, servers=4, groups=2, jobs=40, running_slots=72, queue_slots=40, rounds=8, shared=8),
    "three": Shape(partitions=3, servers=5, groups=3, jobs=32, running_slots=32, queue_slots=32, rounds=3),
}


# ------------------------------------------------------------------------------------------------------------- clusters


def pad_cluster(cluster: Cluster, shape: Shape) -> Cluster:
    """`cluster` padded to the arrays of `shape`, which fixes the number of partitions."""
    sizes = ClusterShape(
        partitions=shape.partitions,
        servers=shape.servers,
        groups=shape.groups,
        racks=shape.racks,
        domains=shape.racks if cluster.domain_block.size else 0,
        links=shape.links,
        hops=shape.links,
        uneven=cluster.uneven.shape[1],
        all_links=shape.partitions * shape.links,
    )
    assert cluster.group_gpus.shape[0] == shape.partitions
    return pad(cluster, sizes)


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
    outages: tuple[Outage, ...] | None = None  # needs `preemption`, which says what they cost
    history: bool = False  # policies know that of finished jobs, and no run times
    sharing: SharingTable | None = None  # the law of sharing a GPU
    pairs: Pairs | None = None  # factors of models that share one
    sets: tuple[str, ...] = ()  # of GPU types, if jobs are bound to some
    asks: bool = False  # jobs reserve CPUs or memory
    models: tuple[ModelProfile, ...] = CATALOGUE

    def __repr__(self) -> str:
        """How to make it again."""
        return self.origin

    def _repr_pretty_(self, printer, cycle: bool) -> None:
        """Hypothesis would print every array."""
        printer.text(self.origin)

    @property
    def params(self) -> EnvParams:
        """As the environment takes it."""
        costs = make_preemption(by=NOBODY)
        if self.preemption is not None:
            of = self.preemption
            costs = make_preemption(of.restart_s, of.checkpoint_interval_s, of.min_run_s)
        weights = Strengths(kappa=jnp.asarray(self.kappa, jnp.float32))
        return make_params(
            self.cluster,
            profiles=profiles(self.cluster.gpu_types, self.models),
            interval_s=self.interval_s,
            interference=Interference(law=LAWS[self.law], weights=weights, sharing=self.sharing),
            max_forwards=jnp.int32(self.max_forwards),
            preemption=costs,
            failures=no_failures(self.cluster) if self.outages is None else self.failures,
        )

    def config(self, **changes) -> EnvConfig:
        """The static configuration of the shape, with what policies know."""
        knows = {"knows": HISTORY} if self.history else {}
        return self.shape.config(**(knows | {"gpu_sets": self.sets, "asks": self.asks} | changes))

    @property
    def failures(self) -> Failures:
        """As the environment takes it: of one shape for all cases, so there must not be too many outages."""
        assert self.outages is not None
        rows = np.array([dataclasses.astuple(outage) for outage in self.outages]).reshape(-1, 3)
        outages = Outages(rows[:, 0].astype(np.int64), rows[:, 1], rows[:, 2])
        changes = failures_of(self.cluster, outages, self.interval_s).changes
        missing = MOST_CHANGES - changes.shape[-1]
        assert missing >= 0
        return Failures(changes=jnp.pad(changes, ((0, 0), (0, 0), (0, missing)), constant_values=NEVER))

    @property
    def table(self) -> JobTable:
        """The jobs on the device, padded."""
        return pad_table(to_table(self.jobs, self.interval_s, sets=self.sets, asks=self.asks), self.shape.jobs)


MOST_CHANGES = 17  # of servers in a case: eight outages each at most


def random_outages(rng: np.random.Generator, case: Case, mtbf_s: float, mttr_s: float) -> tuple[Outage, ...]:
    """Some outages of every server of a case from the first submission on, which may meet and overlap."""
    rows = np.asarray(case.cluster.server_id)
    found = []
    for row in rows[rows >= 0]:
        at = case.jobs.submit_s[0] + rng.uniform(-1, 1) * mttr_s
        for _ in range(int(rng.integers(0, 9))):
            at += rng.exponential(mtbf_s)
            out = rng.exponential(mttr_s) + 1.0
            found.append(Outage(int(row), max(float(at), 0.0), max(float(at), 0.0) + float(out)))
            at += out * rng.choice([0.5, 1.0, 1.0])
    return tuple(found)


# The sets of GPU types of all cases in which jobs are bound: programs know them. No server has an H100.
SETS = ("", "A100", "A100|V100", "H100", "H100|P100|T4", "T4", "V100")


def bound_case(case: Case, seed: int, part: float) -> Case:
    """The case, but about `part` of the jobs may use some GPU types only."""
    rng = np.random.default_rng([seed, 2])
    chosen = rng.choice([text for text in SETS if text and text != "H100"], len(case.jobs))
    chosen[rng.random(len(chosen)) < 0.03] = "H100"
    allowed = np.where(rng.random(len(chosen)) < part, chosen, "")
    jobs = dataclasses.replace(case.jobs, allowed=allowed)
    return dataclasses.replace(case, origin=f"bound_case({case.origin}, {seed}, {part})", jobs=jobs, sets=SETS)


def asking_case(case: Case, seed: int, part: float) -> Case:
    """The case, but about `part` of the jobs reserve CPUs, memory or both, of which servers run short."""
    rng, count = np.random.default_rng([seed, 3]), len(case.jobs)
    has = np.array(case.cluster.reservable)
    has[..., 1] = rng.integers(20_000, 200_000, has.shape[:2])
    cpu = rng.choice([0, 500, 3000, 7001, 20_000], count, p=[0.3, 0.2, 0.2, 0.2, 0.1])
    memory = rng.choice([0, 1000, 15_000, 60_001], count, p=[0.4, 0.2, 0.3, 0.1])
    some = rng.random(count) < part
    return dataclasses.replace(
        case,
        origin=f"asking_case({case.origin}, {seed}, {part})",
        cluster=case.cluster.replace(reservable=jnp.asarray(has, jnp.int32)),
        jobs=dataclasses.replace(case.jobs, cpu_milli=np.where(some, cpu, 0), memory_mib=np.where(some, memory, 0)),
        asks=True,
    )


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
        jobs=add_estimates(random_jobs(rng, count, float(rng.choice([10.0, 40.0, 160.0]))), error, seed),
        interval_s=interval_s,
        kappa=tuple(float(x) for x in rng.uniform(0.2, 2.5, 5)),
        max_forwards=int(rng.integers(0, 4)),
    )
    kappa = (*case.kappa, float(rng.uniform(0.2, 2.5)))
    return dataclasses.replace(case, kappa=kappa, jobs=with_fractions(rng, case.jobs, fractions))


def crowded_case(seed: int, shape: str, known: bool = False) -> Case:
    """Fractions of few models on few GPUs, whose pairs of models have factors: the same everywhere.

    The law of sharing covers some GPU types, or none.
    """
    rng = np.random.default_rng([seed, 1])
    case = random_case(
        seed,
        shape,
        interval_s=float(rng.choice(INTERVALS_S[:3])),
        error=float(rng.choice([0.0, 0.4])),
        fractions=float(rng.choice([0.8, 1.0])),
    )
    count, alike = case.shape.partitions * int(rng.integers(1, 3)), rng.random() < 0.4
    drawn = [random_server(rng, case.shape.groups) for _ in range(count)]
    drawn = [drawn[0]] * count if alike else drawn
    servers = [dataclasses.replace(s, groups=tuple(1 + (x > 4) for x in s.groups)) for s in drawn]
    table = random_table(rng)
    covered = table.covered & bool(rng.random() < 0.5)
    models = rng.choice(len(MODEL_NAMES), 4, replace=False)
    sigma, factors = float(rng.choice([0.7, 1.5])), int(rng.integers(1000))
    return dataclasses.replace(
        case,
        origin=f"crowded_case({seed}, {shape!r}, {known})",
        cluster=pad_cluster(build(servers, leaf_spine(count), case.shape.partitions), case.shape),
        jobs=dataclasses.replace(case.jobs, model=rng.choice(models, len(case.jobs)).astype(np.int32)),
        kappa=(*case.kappa[:5], float(rng.uniform(0.1, 1.0))),
        sharing=table.replace(covered=covered),
        pairs=draw_pairs(len(MODEL_NAMES), sigma, factors, known=known),
    )
