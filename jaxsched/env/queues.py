"""Queues: which job comes first, and which jobs could start now (docs/semantics.md, section 7)."""

import jax.numpy as jnp
from jax import Array

from jaxsched.env.shares import gpus_of, room_of
from jaxsched.env.state import EnvConfig, EnvParams, State
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
    row = jnp.maximum(state.queue, 0)
    workers = jnp.take_along_axis(_workers_that_fit(config, state), state.jobs.gpus_per_worker[row] - 1, -1)
    room = room_of(state.free, state.shared)
    fits = _fits(state, row, workers, None if room is None else room.max((1, 2))[:, None])
    return fits & (state.running.job < 0).any(-1, keepdims=True) & (state.queue >= 0)


def feasible_at(config: EnvConfig, state: State, row: Array) -> Array:
    """bool[..., P]: the gang of job `row: int32[...]` fits the free GPUs of each partition, a running slot is free."""
    workers = _workers_that_fit(config, state).T[state.jobs.gpus_per_worker[row] - 1]
    room = room_of(state.free, state.shared)
    fits = _fits(state, row[..., None], workers, None if room is None else room.max((1, 2)))
    return fits & (state.running.job < 0).any(-1)


def movable(config: EnvConfig, state: State, params: EnvParams, can_start: Array) -> Array:
    """bool[P, Q, P]: the queued job could start at this other partition now, but not here (`can_start: bool[P, Q]`).

    It has forwards left, and the other's queue has a free slot.
    """
    row = jnp.maximum(state.queue, 0)
    blocked = (state.queue >= 0) & ~can_start & (state.records.forwards[row] < params.max_forwards)
    open_to = feasible_at(config, state, row) & (state.queue < 0).any(-1)
    elsewhere = ~jnp.eye(state.queue.shape[0], dtype=bool)[:, None]
    return open_to & elsewhere & blocked[..., None]


def _workers_that_fit(config: EnvConfig, state: State) -> Array:
    """int32[P, S]: workers of 1, 2, ... GPUs that fit the free GPUs of each partition."""
    return (state.free[..., None] // jnp.arange(1, config.largest_worker + 1)).sum((1, 2))


def _fits(state: State, row: Array, workers: Array, room: Array | None) -> Array:
    """bool: as many workers fit as the job `row` has, or, of a job that shares a GPU, the room is enough."""
    fits = workers >= state.jobs.workers[row]
    if room is None:
        return fits
    milli = state.jobs.milli[row]
    return jnp.where(milli < WHOLE, room >= milli, fits)
