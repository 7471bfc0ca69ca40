"""GPUs that several jobs share: what fits, which GPU a job gets, and when a GPU is whole again (docs/semantics.md, 2).

`shared` holds thousandths in use, `S` GPUs per group; an entry of 0 is no shared GPU. Whoever sees no `shared` and no
`room` (both None) has a cluster in which every job has whole GPUs.
"""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Int16, Int32, Num

from jaxsched.workload.jobs import MILLI, WHOLE, JobTable

_NEVER = 2 * WHOLE  # more than any GPU has left


def room_of(free: Int32[Array, "*groups"], shared: Int16[Array, "*groups S"] | None) -> Int32[Array, "*groups"] | None:
    """The largest fraction of a GPU, in thousandths, that still fits each group; `free`: whole GPUs."""
    if shared is None:
        return None
    left = jnp.where(shared > 0, WHOLE - shared.astype(jnp.int32), 0).max(-1)
    return jnp.where((free > 0) & (shared == 0).any(-1), WHOLE, left)


def capacity(
    free: Int32[Array, "*#groups"],
    room: Int32[Array, "*#groups"] | None,
    gpus_per_worker: Int32[Array, "*#groups"],
    milli: Int32[Array, "*#groups"] | None,
) -> Int32[Array, "*#groups"]:
    """Workers of a job that fit each group; one at most where it wants a fraction of a GPU.

    Args: `free` and `room`, see `room_of`; the job's `gpus_per_worker` and `milli` broadcast against them.
    """
    whole = free // gpus_per_worker
    if room is None or milli is None:
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
    gpus = (jobs.workers * jobs.gpus_per_worker)[row]
    return gpus if jobs.milli is None else gpus * (jobs.milli[row] * MILLI)
