"""Which jobs wait for faster GPUs where a cluster's GPUs differ (docs/semantics.md, section 7, "GPU types")."""

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float32, Int32

from jaxsched.cluster.hardware import Cluster, workers_within
from jaxsched.dynamics.footprint import relative_speed
from jaxsched.env.extensions.gpu_sets import asks_of, of_each_job, spare
from jaxsched.env.extensions.sharing import fits_gpus, is_fraction, room_of
from jaxsched.env.knowledge import estimated_left_s
from jaxsched.env.state import EnvParams, State
from jaxsched.semantics import SAME_RATIO
from jaxsched.workload.jobs import WHOLE, look_up


def tiers(cluster: Cluster, count: int) -> tuple[Float32[Array, "C"], Int32[Array, "C"]]:
    """The `count` different speeds of GPUs, fastest first, and the lowest GPU type of each; 0 where there are fewer."""
    real = cluster.group_gpus > 0
    speeds, kinds, below = [], [], jnp.float32(jnp.inf)
    for _ in range(count):
        below = jnp.where(real & (cluster.group_speed < below), cluster.group_speed, 0.0).max()
        kind = jnp.where(real & (cluster.group_speed == below), cluster.group_gpu_type, jnp.iinfo(jnp.int32).max).min()
        speeds.append(below)
        kinds.append(kind)
    return jnp.stack(speeds), jnp.stack(kinds)


def suits(params: EnvParams, state: State, keys: Float32[Array, "P Q"]) -> Bool[Array, "P Q P"]:
    """Whether a queued job would take the GPUs that it can get now in a partition, rather than wait for faster ones."""
    return of_each_job(
        state,
        params.cluster,
        jnp.maximum(state.queue, 0),
        lambda state, cluster: _suits(params.replace(cluster=cluster), state, keys),
    )


def _suits(params: EnvParams, state: State, keys: Float32[Array, "P Q"]) -> Bool[Array, "P Q P"]:
    """`suits` of jobs that may use all GPUs that there are."""
    row, jobs = jnp.maximum(state.queue, 0), state.jobs
    speed, _ = tiers(params.cluster, state.gpu_speeds)
    estimate, need = jobs.estimate_s[row], look_up(jobs.workers, row) * look_up(jobs.gpus_per_worker, row)
    pace = 1.0 / speeds_at(params, state, row)
    runs_s, turn, end_s = pace * estimate[..., None], _turns(keys, state), _ends(state)
    free, room = state.free, room_of(state.free, state.shared)

    def of_partition(p: Array) -> Array:
        at_tier = params.cluster.group_speed[p] >= speed[:, None, None]
        everything = jnp.where(at_tier, params.cluster.group_gpus[p], 0)
        could = _fits(state, row, everything, jnp.where(everything > 0, WHOLE, 0), params.cluster.reservable[p])
        tier = tier_in(params, state, p, row, free[p], room[p])
        wait_s = jax.vmap(_wait, in_axes=(None, 0, 0, None), out_axes=-1)(
            end_s[p],
            _held(state, p, at_tier & (params.cluster.group_gpus[p] > 0) if state.binds else at_tier),
            jnp.where(at_tier, free[p], 0).sum((1, 2)),
            need,
        )
        faster = could & (jnp.arange(len(speed)) < tier[..., None])
        here_s = jnp.take_along_axis(runs_s, tier[..., None], -1)
        return ~(faster & (here_s >= (turn[..., None] * wait_s + runs_s) * SAME_RATIO)).any(-1)

    return jax.vmap(of_partition, out_axes=-1)(jnp.arange(state.queue.shape[0]))


def speeds_at(params: EnvParams, state: State, row: Int32[Array, "*jobs"]) -> Float32[Array, "*jobs C"]:
    """How fast the models of jobs run on the GPUs of each tier."""
    speed, kind = tiers(params.cluster, state.gpu_speeds)
    model, reference = look_up(state.jobs.model, row)[..., None], params.cluster.reference
    return relative_speed(params.profiles, model, kind, jnp.maximum(speed, 1e-9), reference)


def speeds_in(params: EnvParams, state: State, row: Int32[Array, "jobs"]) -> Float32[Array, "jobs P"]:
    """How fast the models of jobs would run in each partition, on the fastest GPUs that they fit there now."""

    def find(state: State, cluster: Cluster) -> Array:
        seen = params.replace(cluster=cluster)
        free, room, speed = state.free, room_of(state.free, state.shared), speeds_at(seen, state, row)
        of_partition = lambda p: tier_in(seen, state, p, row, free[p], room[p])
        tier = jax.vmap(of_partition, out_axes=-1)(jnp.arange(free.shape[0]))
        return jnp.take_along_axis(speed, tier, -1)

    return of_each_job(state, params.cluster, row, find)


def tier_in(
    params: EnvParams,
    state: State,
    p: Int32[Array, ""],
    row: Int32[Array, "*jobs"],
    free: Int32[Array, "N K"],
    room: Int32[Array, "N K"],
) -> Int32[Array, "*jobs"]:
    """The highest tier at which gangs fit the free GPUs of a partition; 0 for those that fit at none.

    Args: `room`: see `env.extensions.sharing.room_of`.
    """
    speed, _ = tiers(params.cluster, state.gpu_speeds)
    at_tier = params.cluster.group_speed[p] >= speed[:, None, None]
    left = spare(state, params.cluster) if state.asks else params.cluster.reservable
    fits = _fits(state, row, jnp.where(at_tier, free, 0), room * at_tier, left[p])
    return jnp.argmax(fits, -1).astype(jnp.int32)


def _turns(keys: Float32[Array, "P Q"], state: State) -> Float32[Array, "P Q"]:
    """Each queued job's place in its queue by (key, row), from 1 on."""
    p, places = jnp.arange(keys.shape[0])[:, None], jnp.broadcast_to(jnp.arange(keys.shape[1]), keys.shape)
    empty = state.queue < 0
    rows = jnp.where(empty, jnp.iinfo(jnp.int32).max, state.queue)
    _, _, order = lax.sort((jnp.where(empty, jnp.inf, keys), rows, places), num_keys=2)
    return jnp.zeros(keys.shape, jnp.float32).at[p, order].set(places + 1.0)


def _ends(state: State) -> Float32[Array, "P R"]:
    """Seconds until each running job ends by the estimates, infinite in free slots."""
    end_s = estimated_left_s(state) * state.running.slowdown
    return jnp.where(state.running.job >= 0, end_s, jnp.inf)


def _held(state: State, p: Int32[Array, ""], at_tier: Bool[Array, "C N K"]) -> Int32[Array, "C R"]:
    """GPUs of each tier that each running job of a partition has; 0 for a fraction, since others may share its GPU."""
    running = state.running
    gpus = running.workers[p].astype(jnp.int32) * running.gpus_per_worker[p][:, None, None]
    whole = (running.job[p] >= 0) & ~is_fraction(state, jnp.maximum(running.job[p], 0))
    return jnp.where(whole, jnp.einsum("cnk,rnk->cr", at_tier.astype(jnp.int32), gpus), 0)


def _wait(
    end_s: Float32[Array, "R"], held: Int32[Array, "R"], free: Int32[Array, ""], need: Int32[Array, "P Q"]
) -> Float32[Array, "P Q"]:
    """Seconds until `need` GPUs of a tier are free, at the end of a job that has some; infinite = never."""
    in_turn, freed = lax.sort((jnp.where(held > 0, end_s, jnp.inf), held), num_keys=1)
    place = jnp.searchsorted(jnp.cumsum(freed), need - free)
    return jnp.concatenate([in_turn, jnp.full(1, jnp.inf)])[place]


def _fits(
    state: State,
    row: Int32[Array, "*jobs"],
    gpus: Int32[Array, "C N K"],
    room: Int32[Array, "C N K"],
    left: Int32[Array, "N 2"],
) -> Bool[Array, "*jobs C"]:
    """Whether the gang fits so many GPUs of each group, at each tier; a fraction, whether some `room` takes it.

    Args: `left`, of what jobs reserve.
    """
    if state.asks:
        of_server = (gpus[..., None] // jnp.arange(1, state.largest_worker + 1)).sum(2)
        of_server = jnp.moveaxis(of_server, -1, 0)[look_up(state.jobs.gpus_per_worker, row) - 1]
        within = workers_within(left, asks_of(state, row)[..., None, None, :])
        rooms = jnp.where(within > 0, room.max(2), 0).max(-1)
        return fits_gpus(state, row[..., None], jnp.minimum(of_server, within).sum(-1), rooms)
    workers = (gpus[..., None] // jnp.arange(1, state.largest_worker + 1)).sum((1, 2))
    workers = jnp.moveaxis(workers[:, look_up(state.jobs.gpus_per_worker, row) - 1], 0, -1)
    return fits_gpus(state, row[..., None], workers, room.max((1, 2)))
