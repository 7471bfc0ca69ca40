"""The environment's types: static configuration, sweepable parameters, state and action.

Axes beyond those of `cluster.hardware`: `R` running slots and `Q` queue slots per partition, `J` jobs of the job table,
`M` resources, `V` tenants, `S` GPUs per group that jobs may share; `NK` all groups of a partition on one
axis.

What only some worlds have is an extension: a part of the state that is always there, of size 0 where the world does
without it. Each has a file of `env.extensions`, which says what happens to it when a job starts, leaves its GPUs, or an
interval ends. Its axes are named by what they are of: `Js` is
`J` with sharing, else 0; likewise `p` for preemption, `f` for failures and `r` for recorded placements.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.core import Tracer
from jaxtyping import Bool, Float32, Int, Int8, Int16, Int32

from jaxsched.cluster.hardware import (
    FREE,
    PARTLY,
    Cluster,
    group_capacity,
    hue,
    real_partitions,
    servers_svg,
    workers_within,
)
from jaxsched.dynamics.footprint import JobSpec
from jaxsched.dynamics.interference import Interference, default_interference
from jaxsched.dynamics.occupants import Occupants, by_slots
from jaxsched.env.extensions.parts import (
    FAILURES,
    NOBODY,
    SCHEDULERS,
    Failures,
    Faults,
    History,
    Pairs,
    Preemption,
    Service,
    Starts,
    make_preemption,
    no_failures,
)
from jaxsched.options import World
from jaxsched.pytree import Pytree, on_device, smallest_type, static
from jaxsched.semantics import RUNTIMES
from jaxsched.workload.jobs import MOST_PS, JobTable, look_up
from jaxsched.workload.models import Profiles, profiles

WAIT, PLACE, FORWARD, STOP = range(4)
ALWAYS, POSSIBLE, CHANGE = ("always", "possible", "change")  # boundaries at which a policy is asked: `intervals_ahead`
Asked = str  # one of these
WAITING, RUNNING, FINISHED = range(3)  # WAITING: not started; whether rejected is told by the job's home


@dataclasses.dataclass(frozen=True)
class EnvConfig:
    """Static shapes and switches: everything that changes the compiled program."""

    running_slots: int = 64  # R, jobs that run at once in a partition
    queue_slots: int = 64  # Q, jobs queued at once in a partition
    rounds: int = 8  # decision rounds per interval
    tenants: int = 1  # V
    largest_worker: int = 8  # most GPUs per worker of any job
    largest_group: int = 8  # most GPUs of a group: so many jobs can be there
    early_stop: bool = False  # end the rounds as soon as every scheduler has waited
    skip_idle: bool = False  # with empty queues, advance to the next arrival in one step
    record_placements: bool = False  # keep every job's placement in the state
    starts: int = 0  # rows of a log of starts; needs preemption and `record_placements`; 0: none
    gpu_speeds: int = 1  # different speeds of the cluster's GPUs, at most; 1: no job waits for faster ones
    shared_gpus: int = 0  # S, GPUs per group that may be shared; 0: all jobs have whole GPUs, fractions are rounded up
    gpu_sets: tuple[str, ...] = ()  # sets of GPU types that jobs may use, of `workload.jobs.gpu_sets`; (): any job any
    asks: bool = False  # some jobs reserve CPUs or memory
    knows: str = RUNTIMES  # what policies know of run times, one of `semantics.KNOWLEDGE`


LARGEST_HORIZON = 2**30  # intervals; clocks are int32


class RewardWeights(Pytree):
    """Weights of the reward's terms; see `env.reward`."""

    jobs: Float32[Array, ""]
    lost: Float32[Array, ""]
    progress: Float32[Array, ""]
    interference: Bool[Array, ""]  # `lost` counts what slowdowns cost


def reward_weights(
    jobs: float = 0.0, lost: float = 0.0, progress: float = 0.0, interference: bool = True
) -> RewardWeights:
    """Weights from plain numbers."""
    return RewardWeights(
        jobs=on_device(jobs, jnp.float32),
        lost=on_device(lost, jnp.float32),
        progress=on_device(progress, jnp.float32),
        interference=on_device(interference, jnp.bool_),
    )


class EnvParams(Pytree):
    """Every number a user may sweep; all leaves vmap."""

    cluster: Cluster
    profiles: Profiles
    interference: Interference
    interval_s: Float32[Array, ""]
    reward: RewardWeights
    max_forwards: Int32[Array, ""]
    horizon: Int32[Array, ""]  # intervals after which an episode is truncated
    preemption: Preemption
    failures: Failures  # what they cost, `preemption` says

    @property
    def stops(self) -> bool:
        """Jobs may start more than once."""
        return self.preemption.there

    @property
    def schedulers_stop(self) -> bool:
        """Schedulers may stop running jobs."""
        return self.preemption.voluntary


def make_params(cluster: Cluster, *, interval_s: float = 60.0, horizon: int = 2**30, **changes: Any) -> EnvParams:
    """Default parameters on `cluster`; `changes` replace fields of `EnvParams`."""
    values: dict[str, Any] = dict(
        cluster=cluster,
        profiles=profiles(cluster.gpu_types),
        interference=default_interference(),
        interval_s=on_device(interval_s, jnp.float32),
        reward=reward_weights(jobs=1.0),
        max_forwards=on_device(2, jnp.int32),
        horizon=on_device(horizon, jnp.int32),
        preemption=make_preemption(by=NOBODY),
        failures=no_failures(cluster),
    )
    return EnvParams(**(values | changes))


def params_of_world(world: World, cluster: Cluster, **changes: Any) -> EnvParams:
    """Parameters on `cluster` of all options of a world that are plain numbers; `changes` as of `make_params`."""
    by = SCHEDULERS if world.preemption else FAILURES if world.fails else NOBODY
    return make_params(
        cluster,
        interval_s=world.interval_s,
        max_forwards=on_device(world.max_forwards, jnp.int32),
        preemption=make_preemption(world.restart_s, world.checkpoint_s, world.min_run_s, by=by),
        **changes,
    )


class Running(Pytree):
    """The running jobs of every partition; a slot with `job == -1` is free and its other entries are stale."""

    job: Int32[Array, "P R"]  # row of the job table
    gpus_per_worker: Int32[Array, "P R"]
    gpus: Int32[Array, "P R"]  # of all workers, fractions rounded up
    duration_s: Float32[Array, "P R"]
    remaining_s: Float32[Array, "P R"]  # ideal seconds left
    remaining_low_s: Float32[Array, "P R"]  # the part of `remaining_s` that float32 cannot hold (Kahan)
    slowdown: Float32[Array, "P R"]  # current; 1 in free slots
    occupants: Occupants  # where they are, and what they take there
    gpu: Int32[Array, "P Rs"]  # shared GPU, group * S + s, -1 = whole ones
    stretch: Float32[Array, "P Rs"]  # how much longer it computes for its co-runners there; likewise
    restart_s: Float32[Array, "P Rp"]  # what is left of its restart

    @property
    def workers(self) -> Int32[Array, "P R N K"]:
        """Of each job in each group; stale in free slots."""
        return jax.vmap(lambda jobs: by_slots(jobs, jobs.workers.astype(jnp.int32)))(self.occupants)

    @property
    def ps(self) -> Int32[Array, "P R N K"]:
        """Likewise."""
        return jax.vmap(lambda jobs: by_slots(jobs, jobs.ps.astype(jnp.int32)))(self.occupants)

    @property
    def whole_gpus(self) -> Int32[Array, "P R"]:
        """Whole GPUs of each worker in the running slots: none where the job has a fraction of one."""
        return jnp.where(self.gpu >= 0, 0, self.gpus_per_worker) if self.gpu.size else self.gpus_per_worker


class Records(Pytree):
    """What happened to every job, per row of the job table."""

    status: Int8[Array, "J"]  # WAITING, RUNNING or FINISHED
    partition: Int[Array, "J"]  # -1 before the start
    start: Int32[Array, "J"]  # boundary of the start
    finish: Int32[Array, "J"]  # boundary before the finish
    finish_offset_s: Float32[Array, "J"]  # seconds after that boundary
    forwards: Int8[Array, "J"]
    workers: Int8[Array, "Jr NK"]  # of the last placement
    ps: Int16[Array, "Jr NK"]  # likewise
    gpu: Int32[Array, "Jrs"]  # as in `Running`; likewise


class State(Pytree):
    """One environment: cluster occupancy, queues, clock, and the jobs it is fed."""

    jobs: JobTable  # between steps of environments that start from a pool a `Listed`: its number there
    clock: Int32[Array, ""]  # boundary
    round: Int32[Array, ""]  # decision round at this boundary
    waited: Bool[Array, "P"]  # has waited at this boundary
    next_job: Int32[Array, ""]  # first job of the table that has not arrived
    free: Int32[Array, "P N K"]  # whole GPUs
    queue: Int32[Array, "P Q"]  # row of the job table, -1 = empty slot
    owed_s: Float32[Array, "P Q"]  # what those have cost the queued job that passed it, if policies note it; else 0
    running: Running
    attained_s: Float32[Array, "V"]  # GPU-seconds received per tenant
    attained_low_s: Float32[Array, "V"]  # the part of it that float32 cannot hold (Kahan)
    own: Float32[Array, "P M"]  # utilisation of every resource by the partition's jobs
    total: Float32[Array, "P M"]  # the same by all jobs, which share links
    records: Records
    backlogged: Int32[Array, ""]  # boundaries at which a full queue held arrivals back
    peak_queue: Int32[Array, ""]  # longest queue of any partition so far
    illegal: Int32[Array, ""]  # actions that were not legal and counted as waiting
    shared: Int16[Array, "P N K S"]  # thousandths in use of shared GPUs
    service: Service
    faults: Faults
    history: History
    starts: Starts  # the log of them
    pairs: Pairs
    usable: Bool[Array, "A P N K"]  # groups of each of the `EnvConfig.gpu_sets`
    largest_worker: int = static(default=8)  # most GPUs per worker of any job
    gpu_speeds: int = static(default=1)  # as in `EnvConfig`

    @property
    def shares(self) -> bool:
        """Jobs may share GPUs."""
        return self.shared.shape[-1] > 0

    @property
    def binds(self) -> bool:
        """Some jobs may use GPUs of some types only."""
        return self.jobs.allowed.shape[-1] > 0

    @property
    def asks(self) -> bool:
        """Some jobs reserve CPUs or memory of their servers."""
        return self.jobs.asks.size > 0

    @property
    def usable_by_partition(self) -> Bool[Array, "P A NK"]:
        """`usable`, by partition first."""
        sets, p, n, k = self.usable.shape
        return self.usable.swapaxes(0, 1).reshape(p, sets, n * k)

    def _repr_html_(self) -> str | None:
        """In a notebook: a square per GPU, in the colour of its job. None where it is batched or traced."""
        if self.clock.ndim or any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(self)):
            return None
        free, running = np.asarray(self.free), self.running
        job, whole = np.asarray(running.job), np.asarray(running.whole_gpus)
        held = np.asarray(running.workers, np.int64) * (whole * (job >= 0))[..., None, None]
        partly = (np.asarray(self.shared) > 0).sum(-1)

        def fill(p: int, n: int, k: int) -> list[str]:
            whole_ones = [
                hue(int(job[p, slot])) for slot in np.flatnonzero(held[p, :, n, k]) for _ in range(held[p, slot, n, k])
            ]
            return whole_ones + [PARTLY] * int(partly[p, n, k]) + [FREE] * int(free[p, n, k])

        queued = (np.asarray(self.queue) >= 0).sum(-1)
        titles = [f"scheduler {p}: {(job[p] >= 0).sum()} running, {queued[p]} queued" for p in range(len(free))]
        titles[0] = f"boundary {int(self.clock)}; {titles[0]}"
        key = {"a job": hue(0), "free": FREE} | ({"shared": PARTLY} if self.shares else {})
        return servers_svg(free + held.sum(1) + partly, fill, titles, key)


class Overtaken(Pytree):
    """The gang that each scheduler's placement passes, and the seconds that this costs it; see `State.owed_s`."""

    row: Int32[Array, "P"]  # of the job table
    cost_s: Float32[Array, "P"]


class Action(Pytree):
    """What every scheduler does in one round."""

    kind: Int32[Array, "P"]  # WAIT, PLACE, FORWARD or STOP
    slot: Int32[Array, "P"]  # queue slot of the job
    workers: Int32[Array, "P N K"]
    ps: Int32[Array, "P N K"]
    target: Int32[Array, "P"]  # partition to forward to
    stop: Bool[Array, "P R"] | None = None  # running slots whose jobs are stopped; None: nobody stops any
    gpu: Int32[Array, "P"] | None = None  # the group's GPU that a fraction gets, -1 or None: that of the rule
    overtaken: Overtaken | None = None  # None: the policy does not go by it


def wait_action(cluster: Cluster) -> Action:
    """Everybody waits."""
    p = cluster.group_gpus.shape[0]
    zero, empty = jnp.zeros(p, jnp.int32), jnp.zeros_like(cluster.group_gpus)
    return Action(kind=zero, slot=zero, workers=empty, ps=empty, target=zero)


def job_spec(jobs: JobTable, index: Int32[Array, "*jobs"]) -> JobSpec:
    """What the dynamics need to know of the jobs in rows `index` (negative indices give an arbitrary job)."""
    row = jnp.maximum(index, 0)
    return JobSpec(
        workers=look_up(jobs.workers, row),
        gpus_per_worker=look_up(jobs.gpus_per_worker, row),
        ps=look_up(jobs.ps, row),
        model=look_up(jobs.model, row),
        milli=jobs.milli[row] if jobs.milli.shape[-1] else None,
        allowed=jobs.allowed[row] if jobs.allowed.shape[-1] else None,
        asks=jnp.moveaxis(jobs.asks[:, row], 0, -1) if jobs.asks.size else None,
    )


def queue_room(state: State) -> Int32[Array, "P"]:
    """Free slots of each queue; where servers fail, less those that are kept for the jobs that run."""
    room = (state.queue < 0).sum(-1)
    return room - (state.running.job >= 0).sum(-1) if state.faults.there else room


def _could_hold(
    gpus: Int32[Array, "P N K"], largest_group: int, workers: Int[Array, "*jobs"], wide: Int[Array, "*jobs"]
) -> Bool[Array, "*jobs P"]:
    """Whether an empty partition holds the gang. By width: a number for each job and group may be hundreds of GB."""
    held = group_capacity(gpus[..., None], jnp.arange(1, largest_group + 1)).sum((1, 2)).T
    return (held[jnp.clip(wide, 1, largest_group) - 1] >= workers[..., None]) & (wide <= largest_group)[..., None]


def assign_homes(cluster: Cluster, jobs: JobTable, usable: Bool[Array, "A P N K"], largest_group: int) -> JobTable:
    """`jobs` with `home` moved to the next partition that could hold the gang, or -1 where none could."""
    # Of GPUs per worker that are constant, XLA would work out the capacities for every job while it compiles.
    wide, gpus = lax.optimization_barrier(jobs.gpus_per_worker), cluster.group_gpus

    def fits_on(gpus: Array) -> Array:
        if not jobs.asks.size:
            return _could_hold(gpus, largest_group, jobs.workers, wide)
        within = workers_within(cluster.reservable, jobs.asks.T[:, None, None])
        of_server = jnp.minimum(group_capacity(gpus, wide[:, None, None, None]).sum(-1), within)
        return of_server.sum(-1) >= jobs.workers[:, None]

    if jobs.allowed.shape[-1]:
        of_sets = jax.vmap(lambda mine: fits_on(jnp.where(mine, gpus, 0)))(usable)
        fits = of_sets[jobs.allowed, jnp.arange(wide.shape[0])]
    else:
        fits = fits_on(gpus)
    return jobs.replace(home=next_home(cluster, jobs.home, fits))


def narrowed(config: EnvConfig, cluster: Cluster, models: int, jobs: JobTable) -> JobTable:
    """`jobs` with whole numbers in the smallest types that hold them.

    Gangs that no partition could hold may be beyond these, but nobody looks at them again.
    """
    p, n, k = cluster.shape
    largest = {
        "workers": n * k * config.largest_group,
        "gpus_per_worker": config.largest_group,
        "ps": MOST_PS,
        "model": models - 1,
        "tenant": config.tenants - 1,
        "home": p - 1,
    }

    def narrow(column: Array, most: int) -> Array:
        kind = smallest_type(most)
        return jnp.minimum(column, jnp.iinfo(kind).max).astype(kind)

    return jobs.replace(**{name: narrow(getattr(jobs, name), most) for name, most in largest.items()})


def next_home(cluster: Cluster, home: Int[Array, "*jobs"], fits: Bool[Array, "*jobs P"]) -> Int32[Array, "*jobs"]:
    """The next partition from `home` on that `fits`, -1 if there is none.

    `home` counts modulo the partitions that have servers, so that padding partitions change nothing.
    """
    p = fits.shape[-1]
    distance = jnp.where(fits, (jnp.arange(p) - home[..., None] % real_partitions(cluster)) % p, p)
    return jnp.where(fits.any(-1), jnp.argmin(distance, -1), -1).astype(jnp.int32)
