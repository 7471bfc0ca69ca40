"""GPUs that several jobs share: what fits, which GPU a job gets, and when a GPU is whole again (docs/semantics.md, 2).

`shared` holds thousandths in use, `S` GPUs per group; an entry of 0 is no shared GPU. Whoever sees no `shared` and no
`room` (both None) has a cluster in which every job has whole GPUs.
"""

import jax.numpy as jnp
from jax import Array

from jaxsched.workload.jobs import MILLI, WHOLE, JobTable

_NEVER = 2 * WHOLE  # more than any GPU has left


def room_of(free: Array, shared: Array | None) -> Array | None:
    """int32[...]: the largest fraction of a GPU, in thousandths, that still fits each group.

    Args: `free: int32[...]` whole GPUs, `shared: int16[..., S]`.
    """
    if shared is None:
        return None
    left = jnp.where(shared > 0, WHOLE - shared.astype(jnp.int32), 0).max(-1)
    return jnp.where((free > 0) & (shared == 0).any(-1), WHOLE, left)


def capacity(free: Array, room: Array | None, gpus_per_worker: Array, milli: Array | None) -> Array:
    """int32[...]: workers of a job that fit each group; one at most where it wants a fraction of a GPU.

    Args: `free` and `room` int32[...], see `room_of`; the job's `gpus_per_worker` and `milli` broadcast against them.
    """
    whole = free // gpus_per_worker
    if room is None or milli is None:
        return whole
    return jnp.where(milli < WHOLE, (room >= milli).astype(whole.dtype), whole)


def best_gpu(free: Array, shared: Array, milli: Array) -> tuple[Array, Array]:
    """Which shared GPU of a group takes a fraction: `int32[...]`, and whether one does, `bool[...]`.

    The one in use that has the least room and still enough; else a whole one is opened. Ties: lowest index.
    Args: `free: int32[...]`, `shared: int16[..., S]`, `milli: int32[...]`.
    """
    left = WHOLE - shared.astype(jnp.int32)
    opened = jnp.where(free[..., None] > 0, WHOLE, _NEVER)
    score = jnp.where(shared > 0, jnp.where(left >= milli[..., None], left, _NEVER), opened)
    return jnp.argmin(score, -1).astype(jnp.int32), score.min(-1) < _NEVER


def group_of(workers: Array) -> Array:
    """int32[...]: the only group with workers, of `workers: int32[..., NK]`."""
    return jnp.argmax(workers > 0, -1).astype(jnp.int32)


def gpu_for(free: Array, shared: Array, workers: Array, milli: Array) -> tuple[Array, Array]:
    """The shared GPU of a partition that a fraction would lie on, `int32[]`, -1 for whole GPUs, and whether it fits.

    Args: `free: int32[NK]`, `shared: int16[NK, S]`, `workers: int32[NK]`, `milli: int32[]`.
    """
    group = group_of(workers)
    slot, fits = best_gpu(free[group], shared[group], milli)
    whole = milli >= WHOLE
    return jnp.where(whole, -1, group * shared.shape[-1] + slot), whole | fits


def take(shared: Array, gpu: Array, milli: Array) -> tuple[Array, Array]:
    """`shared: int16[P, N, K, S]` with `milli: int32[P, ...]` more (or less) in use on `gpu: int32[P, ...]`, -1 = none.

    Also `int32[P, N, K]`, how many GPUs of each group became whole again, less those that no longer are.
    """
    partitions = shared.shape[0]
    flat = shared.reshape(partitions, -1)
    rows = jnp.arange(partitions).reshape((partitions,) + (1,) * (gpu.ndim - 1))
    index = jnp.where(gpu >= 0, gpu, flat.shape[1])
    after = flat.at[rows, index].add(milli.astype(flat.dtype), mode="drop").reshape(shared.shape)
    return after, (after == 0).sum(-1, dtype=jnp.int32) - (shared == 0).sum(-1, dtype=jnp.int32)


def gpus_of(jobs: JobTable, row: Array) -> Array:
    """GPUs that the jobs `row: int32[...]` reserve: int32[...], or float32[...] where there are fractions."""
    gpus = (jobs.workers * jobs.gpus_per_worker)[row]
    return gpus if jobs.milli is None else gpus * (jobs.milli[row] * MILLI)
