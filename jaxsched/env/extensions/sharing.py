"""GPUs that several jobs share: what fits, which GPU a job gets, and when a GPU is whole again (docs/semantics.md, 2).

`shared` holds thousandths in use, `S` GPUs per group; an entry of 0 is no shared GPU. Where `S` is 0 every job has
whole GPUs.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Int16, Int32, Num

from jaxsched.dynamics.footprint import JobSpec
from jaxsched.dynamics.gpu_sharing import Sharers
from jaxsched.env.extensions.starts import Placed
from jaxsched.env.state import Action, EnvParams, State
from jaxsched.workload.jobs import MILLI, WHOLE, JobTable, look_up

_NEVER = 2 * WHOLE  # more than any GPU has left


def with_fractions(shared_gpus: int, jobs: JobTable) -> JobTable:
    """`jobs` with fractions of GPUs exactly where so many GPUs of a group may be shared."""
    if not shared_gpus:
        return jobs.replace(milli=jnp.zeros((*jobs.milli.shape[:-1], 0), jnp.int32))
    return jobs if jobs.milli.shape[-1] else jobs.replace(milli=jnp.full_like(jobs.workers, WHOLE, jnp.int32))


def choose_gpus(
    state: State, action: Action, job: JobSpec
) -> tuple[Int32[Array, "P"], Int32[Array, "P N K"], Bool[Array, "P"]]:
    """The shared GPU that each placed job would lie on (-1: whole ones), the whole GPUs it would take, and if it fits.

    Args: `job`: leaves [P].
    """
    taken, p = action.workers * job.gpus_per_worker[:, None, None], action.kind.shape[0]
    if not state.shares:
        return jnp.full(p, -1), taken, jnp.ones(p, bool)
    assert job.milli is not None
    free, used, workers = (x.reshape(p, -1, *x.shape[3:]) for x in (state.free, state.shared, action.workers))
    in_axes = (0, 0, 0, 0, None if action.gpu is None else 0)
    gpu, fits = jax.vmap(gpu_for, in_axes)(free, used, workers, job.milli, action.gpu)
    return gpu, jnp.where(gpu[:, None, None] >= 0, 0, taken), fits


def on_start(params: EnvParams, state: State, placed: Placed) -> State:
    """The state in which fractions take their parts of GPUs."""
    if not state.shares:
        return state
    milli = state.jobs.milli[placed.row]
    shared, whole = take(state.shared, jnp.where(placed.legal, placed.gpu, -1), milli)
    running = state.running.replace(gpu=placed.in_slots(state.running.gpu, placed.gpu))
    return state.replace(shared=shared, free=state.free + whole, running=running)


def on_stop(
    state: State, p: Int32[Array, ""], gone: Bool[Array, "R"], free: Int32[Array, "N K"]
) -> tuple[Int32[Array, "N K"], Int16[Array, "N K S"]]:
    """`free` and `shared` of partition `p` once the fractions in the running slots `gone` have left their GPUs."""
    shared = state.shared[p]
    if not state.shares:
        return free, shared
    milli = state.jobs.milli[jnp.maximum(state.running.job[p], 0)]
    after, whole = take(shared[None], jnp.where(gone, state.running.gpu[p], -1)[None], -milli[None])
    return free + whole[0], after[0]


def on_interval(params: EnvParams, state: State, finished: Bool[Array, "P R"]) -> State:
    """The state once the fractions that have `finished` have left their GPUs."""
    if not state.shares:
        return state
    milli = state.jobs.milli[jnp.maximum(state.running.job, 0)]
    shared, whole = take(state.shared, jnp.where(finished, state.running.gpu, -1), -milli)
    return state.replace(shared=shared, free=state.free + whole)


def sharers_of(params: EnvParams, state: State) -> Sharers:
    """The jobs in the running slots, as those on the same GPU see them; leaves [P, R], or [P, 0] if nobody shares."""
    gpu = state.running.gpu
    if not state.shares:
        return Sharers(gpu=gpu, model=gpu, gpu_type=gpu)
    kinds = params.cluster.group_gpu_type.reshape(gpu.shape[0], -1)
    group = jnp.maximum(gpu, 0) // state.shared.shape[-1]
    model = look_up(state.jobs.model, jnp.maximum(state.running.job, 0))
    return Sharers(gpu=gpu, model=model, gpu_type=jnp.take_along_axis(kinds, group, -1))


def fits_gpus(
    state: State, row: Int32[Array, "*#jobs"], workers: Int32[Array, "*#jobs"], room: Int32[Array, "*#jobs"]
) -> Bool[Array, "*#jobs"]:
    """Whether the jobs in these rows fit: where as many `workers` fit as a gang has, or the `room` takes a fraction."""
    fits = workers >= look_up(state.jobs.workers, row)
    if not state.shares:
        return fits
    milli = state.jobs.milli[row]
    return jnp.where(milli < WHOLE, room >= milli, fits)


def is_fraction(state: State, row: Int32[Array, "*jobs"]) -> Bool[Array, "*jobs"]:
    """Whether the jobs in these rows want a fraction of a GPU."""
    return state.jobs.milli[row] < WHOLE if state.shares else jnp.zeros(row.shape, bool)


def room_of(free: Int32[Array, "*groups"], shared: Int16[Array, "*groups S"]) -> Int32[Array, "*groups"]:
    """The largest fraction of a GPU, in thousandths, that still fits each group; `free`: whole GPUs."""
    left = jnp.where(shared > 0, WHOLE - shared.astype(jnp.int32), 0).max(-1, initial=0)
    return jnp.where((free > 0) & (shared == 0).any(-1), WHOLE, left)


def capacity(
    free: Int32[Array, "*#groups"],
    room: Int32[Array, "*#groups"],
    gpus_per_worker: Int32[Array, "*#groups"],
    milli: Int32[Array, "*#groups"] | None,
) -> Int32[Array, "*#groups"]:
    """Workers of a job that fit each group; one at most where it wants a fraction of a GPU.

    Args: `free` and `room`, see `room_of`; the job's `gpus_per_worker` and `milli` broadcast against them.
    """
    whole = free // gpus_per_worker
    if milli is None:
        return whole
    return jnp.where(milli < WHOLE, (room >= milli).astype(whole.dtype), whole)


def best_gpu(
    free: Int32[Array, "*groups"], shared: Int16[Array, "*groups S"], milli: Int32[Array, "*groups"]
) -> tuple[Int32[Array, "*groups"], Bool[Array, "*groups"]]:
    """Which shared GPU of a group takes a fraction, and whether one does.

    The one in use that has the least room and still enough; else a whole one is opened. Ties: lowest index.
    """
    left = WHOLE - shared.astype(jnp.int32)
    opened = jnp.where(free[..., None] > 0, WHOLE, _NEVER)
    score = jnp.where(shared > 0, jnp.where(left >= milli[..., None], left, _NEVER), opened)
    return jnp.argmin(score, -1).astype(jnp.int32), score.min(-1) < _NEVER


def group_of(workers: Int32[Array, "*jobs NK"]) -> Int32[Array, "*jobs"]:
    """The only group with workers."""
    return jnp.argmax(workers > 0, -1).astype(jnp.int32)


def gpu_for(
    free: Int32[Array, "NK"],
    shared: Int16[Array, "NK S"],
    workers: Int32[Array, "NK"],
    milli: Int32[Array, ""],
    chosen: Int32[Array, ""] | None = None,
) -> tuple[Int32[Array, ""], Bool[Array, ""]]:
    """The shared GPU of a partition that a fraction would lie on, -1 for whole GPUs, and whether it fits.

    `chosen` is the index in its group of the GPU that is wanted, -1 or None for that of `best_gpu`.
    """
    group = group_of(workers)
    slot, fits = best_gpu(free[group], shared[group], milli)
    if chosen is not None:
        index = jnp.clip(chosen, 0, shared.shape[-1] - 1)
        used = shared[group, index]
        enough = jnp.where(used > 0, used + milli <= WHOLE, free[group] > 0) & (chosen < shared.shape[-1])
        slot, fits = jnp.where(chosen >= 0, index, slot), jnp.where(chosen >= 0, enough, fits)
    whole = milli >= WHOLE
    return jnp.where(whole, -1, group * shared.shape[-1] + slot), whole | fits


def take(
    shared: Int16[Array, "P N K S"], gpu: Int32[Array, "P *jobs"], milli: Int32[Array, "P *jobs"]
) -> tuple[Int16[Array, "P N K S"], Int32[Array, "P N K"]]:
    """`shared` with `milli` more (or less) in use on each `gpu`, -1 = none.

    Also how many GPUs of each group became whole again, less those that no longer are.
    """
    partitions = shared.shape[0]
    flat = shared.reshape(partitions, -1)
    rows = jnp.arange(partitions).reshape((partitions,) + (1,) * (gpu.ndim - 1))
    index = jnp.where(gpu >= 0, gpu, flat.shape[1])
    after = flat.at[rows, index].add(milli.astype(flat.dtype), mode="drop").reshape(shared.shape)
    return after, (after == 0).sum(-1, dtype=jnp.int32) - (shared == 0).sum(-1, dtype=jnp.int32)


def gpus_of(jobs: JobTable, row: Int32[Array, "*jobs"]) -> Num[Array, "*jobs"]:
    """GPUs that the jobs in `row` reserve: int32, or float32 where there are fractions."""
    gpus = look_up(jobs.workers, row) * look_up(jobs.gpus_per_worker, row)
    return gpus * (jobs.milli[row] * MILLI) if jobs.milli.shape[-1] else gpus
