"""Who is stopped for whom, and how long nobody will be (docs/semantics.md, section 8, "Preemptive policies")."""

import functools
from collections.abc import Callable

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float32, Int32

from jaxsched.dynamics.batching import only_where
from jaxsched.env import levels
from jaxsched.env.extensions import sharing
from jaxsched.env.extensions.history import BIN_EDGES, bin_of
from jaxsched.env.extensions.preemption import may_stop, released, until_stoppable_s
from jaxsched.env.extensions.sharing import gpus_of, is_fraction
from jaxsched.env.knowledge import estimated_left_s
from jaxsched.env.levels import LevelTable, run_bin, run_limits_s
from jaxsched.env.queues import Discipline, first, fits_fewest, on_roomiest
from jaxsched.env.state import EnvParams, State
from jaxsched.semantics import OUTLIVED
from jaxsched.workload.jobs import NEVER


def displaced(
    queue: Discipline, params: EnvParams, state: State, keys: Float32[Array, "P Q"], wanted: Bool[Array, "P"]
) -> Bool[Array, "P R"]:
    """Running jobs that each scheduler under `wanted` stops so that one of its queued jobs can start.

    Args: `keys`: levels of the queued jobs.
    """
    order = _ranking(queue)
    running = levels.of_running(order, queue.quantum, params, state)
    stoppable = may_stop(params, state)
    tried = state.queue >= 0
    if not queue.backfill:
        slot, some = first(keys, state.queue, tried)
        tried &= (jnp.arange(tried.shape[1]) == slot[:, None]) & some[:, None]
    beyond = levels.margin(order, queue.hysteresis)
    highest = jnp.where(stoppable, running, -NEVER).max(-1)
    tried &= keys + beyond < highest[:, None]  # of the others every running job is at least as early
    nobody = jnp.zeros(running.shape[1], bool)
    feasible_without = functools.partial(_feasible_without, queue, params, state)

    def of_partition(p: Array) -> Array:
        def going(carry: tuple[Array, Array]) -> Array:
            left, taken = carry
            return left.any() & ~taken.any()

        def turn(carry: tuple[Array, Array]) -> tuple[Array, Array]:
            left, _ = carry
            slot, _ = first(keys[p][None], state.queue[p][None], left[None])
            lower = stoppable[p] & (running[p] > keys[p, slot[0]] + beyond)
            row = state.queue[p, slot[0]]
            return left.at[slot[0]].set(False), _fewest(state, feasible_without, p, row, lower, running[p])

        return lax.while_loop(going, turn, (tried[p], nobody))[1]

    taken = only_where(wanted & tried.any(-1), of_partition, lambda p: nobody)
    room = (state.queue < 0).sum(-1)
    return taken & (taken.sum(-1) <= room)[:, None]


def _fewest(
    state: State,
    feasible_without: Callable[[Array, Array, Array], Array],
    p: Int32[Array, ""],
    row: Int32[Array, ""],
    lower: Bool[Array, "R"],
    level: Int32[Array, "R"],
) -> Bool[Array, "R"]:
    """Of the jobs `lower`, those taken for job `row`: latest first until it fits, then without whom it fits anyway.

    Nobody if it does not fit without all of them. That is asked in the loop and not around it: side by side with other
    environments both branches of a condition run, and this loop would not end.
    """
    jobs = state.running.job[p]
    enough = feasible_without(p, row, lower)

    def extreme(mask: Array, sign: int) -> Array:
        """Slot of the last job under `mask` by (level, row), or with `sign` -1 of the first."""
        best = jnp.where(mask, sign * level, -NEVER)
        return jnp.argmax(jnp.where(mask & (best == best.max()), sign * jobs, -NEVER))

    def take(taken: Array) -> Array:
        return taken.at[extreme(lower & ~taken, 1)].set(True)

    taken = lax.while_loop(lambda taken: enough & ~feasible_without(p, row, taken), take, jnp.zeros_like(lower))

    def spare(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        left, taken = carry
        slot = extreme(left, -1)
        fewer = taken.at[slot].set(False)
        return left.at[slot].set(False), jnp.where(feasible_without(p, row, fewer), fewer, taken)

    return lax.while_loop(lambda carry: carry[0].any(), spare, (taken, taken))[1]


def _feasible_without(
    queue: Discipline,
    params: EnvParams,
    state: State,
    p: Int32[Array, ""],
    row: Int32[Array, ""],
    gone: Bool[Array, "R"],
) -> Bool[Array, ""]:
    """Whether the gang of job `row` would be feasible in partition `p` without some of the jobs that run there."""
    jobs = state.jobs
    free, shared = released(state, p, gone)
    milli = jobs.milli[row] if state.shares else None
    capacity = sharing.capacity(free, sharing.room_of(free, shared), jobs.gpus_per_worker[row], milli)
    fits = capacity.sum() >= jobs.workers[row]
    if queue.consolidate:
        empty = on_roomiest(params.cluster.group_gpus[p] // jobs.gpus_per_worker[row])
        together = fits_fewest(empty, on_roomiest(capacity), jobs.workers[row])
        fits &= together | is_fraction(state, row)
    return fits & ((state.running.job[p] < 0) | gone).any()


def quiet_intervals(queue: Discipline, params: EnvParams, state: State) -> Int32[Array, ""]:
    """For how many intervals a policy that has just waited everywhere waits, if no job arrives or ends.

    Levels of queued jobs stand still. So nobody is displaced before the level of a running job rises that matters, or
    before one may be stopped that might not yet. At least 1, and rather too few than too many.
    """
    order, running = _ranking(queue), state.running
    row = jnp.maximum(running.job, 0)
    level = levels.of_running(order, queue.quantum, params, state)
    waiting = state.queue >= 0
    lowest = jnp.where(waiting, levels.of_queued(order, queue.quantum, params, state), NEVER // 2).min(-1)
    target = jnp.maximum(level, lowest[:, None] + levels.margin(order, queue.hysteresis)) + 1
    if order == levels.THEMIS:  # queued jobs rise all the time
        return jnp.int32(1)
    if order in (levels.SRTF, levels.SRSF):
        seconds = _until_it_grows_s(params, state)
    elif isinstance(order, LevelTable):
        limits = jnp.asarray([*run_limits_s(), jnp.inf], jnp.float32)
        ran = levels.run_s(params, state, row, running=True)
        seconds = limits[run_bin(ran)] - ran
    elif order == levels.GITTINS:
        attained = levels.attained_s(params, state, row, running=True)
        edges = jnp.append(jnp.asarray(BIN_EDGES), jnp.inf)
        seconds = (edges[bin_of(attained)] - attained) / gpus_of(state.jobs, row)
    elif order == levels.MLFQ:
        limits = jnp.asarray([*levels.mlfq_limits_s(), jnp.inf], jnp.float32)
        ran = levels.run_s(params, state, row, running=True)
        seconds = limits[jnp.clip(target - 1, 0, len(limits) - 1)] - ran
    else:
        limit = levels.value_at(target) if order == levels.LAS else jnp.where(level > 0, jnp.inf, queue.quantum)
        attained = levels.attained_s(params, state, row, running=True)
        seconds = (limit - attained) / gpus_of(state.jobs, row)
    seconds = jnp.where(may_stop(params, state), seconds, jnp.minimum(seconds, until_stoppable_s(params, state)))
    matters = (running.job >= 0) & waiting.any(-1, keepdims=True)
    least = jnp.where(matters, seconds, jnp.inf).min() / params.interval_s
    return jnp.floor(jnp.clip(least * (1.0 - 1e-4), 1.0, float(NEVER // 2))).astype(jnp.int32)


def _ranking(queue: Discipline) -> levels.Ranking:
    assert not callable(queue.order)  # nor one without levels: `preempt` needs them
    return queue.order


def _until_it_grows_s(params: EnvParams, state: State) -> Float32[Array, "P R"]:
    """Seconds before what is left of a running job by its estimate can grow.

    That is once it has outlived the estimate, or with a history once it has run for half of it: `extensions.history`.
    """
    running = state.running
    left = estimated_left_s(state)
    estimate = state.jobs.estimate_s[jnp.maximum(running.job, 0)]
    overdue = running.remaining_s + (estimate - running.duration_s) <= 0
    seconds = jnp.where(overdue, 0.0, left * running.slowdown)
    if not state.history.there:
        return seconds
    ran_s = levels.run_s(params, state, jnp.maximum(running.job, 0), running=True)
    return jnp.minimum(seconds, estimate / OUTLIVED - ran_s)
