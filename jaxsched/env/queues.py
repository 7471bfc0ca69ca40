"""Queues: which job comes first, and which jobs could start now (docs/semantics.md, section 7)."""

import jax.numpy as jnp
from jax import Array

from jaxsched.env.shares import capacity, gpus_of, room_of
from jaxsched.env.state import EnvConfig, State
from jaxsched.workload.jobs import WHOLE

ORDERS = ("fifo", "sjf", "area", "las")


def order_keys(order: str, state: State) -> Array:
    """float32[P, Q]: the job with the lowest key comes first; infinite in empty slots."""
    row = jnp.maximum(state.queue, 0)
    jobs = state.jobs
    match order:
        case "fifo":
            key = row.astype(jnp.float32)
        case "sjf":
            key = jobs.estimate_s[row]
        case "area":
            key = gpus_of(jobs, row) * jobs.estimate_s[row]
        case "las":
            key = state.attained_s[jobs.tenant[row]]
        case _:
            raise ValueError(f"unknown queue order {order!r}: one of {', '.join(ORDERS)}")
    return jnp.where(state.queue >= 0, key, jnp.inf)


def first(keys: Array, rows: Array, mask: Array) -> tuple[Array, Array]:
    """Slot of the first job under `mask` by (key, row of the table), `int32[P]`, and whether there is one, `bool[P]`.

    Args: `keys: float32[P, Q]`, `rows: int32[P, Q]`, `mask: bool[P, Q]`.
    """
    lowest = jnp.where(mask, keys, jnp.inf).min(-1, keepdims=True)
    tied = mask & (keys == lowest)
    slot = jnp.argmin(jnp.where(tied, rows, jnp.iinfo(jnp.int32).max), -1)
    return slot.astype(jnp.int32), mask.any(-1)


def feasible(config: EnvConfig, state: State) -> Array:
    """bool[P, Q]: the queued job's gang fits the free GPUs of its partition, and a running slot is free."""
    sizes = jnp.arange(1, config.largest_worker + 1)
    workers = (state.free[..., None] // sizes).sum((1, 2))
    row = jnp.maximum(state.queue, 0)
    fits = jnp.take_along_axis(workers, state.jobs.gpus_per_worker[row] - 1, -1) >= state.jobs.workers[row]
    room = room_of(state.free, state.shared)
    if room is not None:
        milli = state.jobs.milli[row]
        fits = jnp.where(milli < WHOLE, room.max((1, 2))[:, None] >= milli, fits)
    slot_free = (state.running.job < 0).any(-1, keepdims=True)
    return fits & slot_free & (state.queue >= 0)


def feasible_elsewhere(config: EnvConfig, state: State, row: Array) -> Array:
    """bool[..., P]: the job `row: int32[...]` would fit the free GPUs of each partition now."""
    size = state.jobs.gpus_per_worker[row][..., None, None, None]
    milli = None if state.shared is None else state.jobs.milli[row][..., None, None, None]
    workers = capacity(state.free, room_of(state.free, state.shared), size, milli).sum((-1, -2))
    slot_free = (state.running.job < 0).any(-1)
    return (workers >= state.jobs.workers[row][..., None]) & slot_free
