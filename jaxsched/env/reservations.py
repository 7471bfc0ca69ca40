"""GPUs that a partition keeps for its first blocked gang, so that wide gangs start (docs/semantics.md, section 7)."""

import chex
import jax.numpy as jnp
from jax import Array, lax

from jaxsched.dynamics.lanes import only_where
from jaxsched.env.estimates import estimated_left_s
from jaxsched.env.queues import feasible, first, movable
from jaxsched.env.shares import gpus_of
from jaxsched.env.state import EnvConfig, EnvParams, State
from jaxsched.workload.jobs import WHOLE

_SAME_TIME = 1.000877  # ratios below are 1 on the grid on which policies compare numbers


@chex.dataclass(frozen=True)
class Reservation:
    """What every partition keeps; leading axis P."""

    some: Array  # bool[P], for somebody
    area: Array  # float32[P], GPU-seconds of the gang it is kept for, as estimated
    wait_s: Array  # float32[P], seconds until enough GPUs for the gang will be free; infinite if they never are
    spare: Array  # int32[P], GPUs that will be free then beside those of the gang


def openings(config: EnvConfig, params: EnvParams, state: State, keys: Array, reserve: bool) -> tuple[Array, Array]:
    """Where queued jobs may start now: in their own partition, `bool[P, Q]`, or only in others, `bool[P, Q, P]`.

    With `reserve`, not where a partition keeps its free GPUs for its first blocked gang in ascending order of
    `keys: float32[P, Q]`.
    """
    can_start = feasible(config, state)
    if not reserve:
        return can_start, movable(config, state, params, can_start)
    p = jnp.arange(state.queue.shape[0])
    allowed = respecting(state, reservations(state, keys, can_start))
    can_start &= allowed[p, :, p]
    return can_start, movable(config, state, params, can_start) & allowed


def reservations(state: State, keys: Array, can_start: Array) -> Reservation:
    """For the first gang of each queue that cannot start there.

    Args: `keys: float32[P, Q]` of the order, `can_start: bool[P, Q]`.
    """
    p = jnp.arange(state.queue.shape[0])
    row = jnp.maximum(state.queue, 0)
    slot, some = first(keys, state.queue, (state.queue >= 0) & ~can_start & (_gpus(state, row) > 1))
    row = row[p, slot]
    free, need = state.free.sum((1, 2)), _gpus(state, row)

    def of_partition(p: Array) -> tuple[Array, Array]:
        running = state.running.job[p]
        held = jnp.where(running >= 0, _held(state, jnp.maximum(running, 0)), 0)
        end_s = jnp.where(held > 0, left[p] * state.running.slowdown[p], jnp.inf)
        in_turn, freed = lax.sort((end_s, held), num_keys=1)
        enough = free[p] + jnp.cumsum(freed) >= need[p]
        wait_s = jnp.where(enough.any(), in_turn[jnp.argmax(enough)], jnp.inf)
        return wait_s, free[p] + jnp.where(end_s < wait_s * _SAME_TIME, held, 0).sum() - need[p]

    left = estimated_left_s(state)
    wait_s, spare = only_where(some, of_partition, lambda p: (jnp.float32(0.0), jnp.int32(0)))
    area = gpus_of(state.jobs, row) * state.jobs.estimate_s[row]
    return Reservation(some=some, area=area, wait_s=wait_s, spare=spare)


def respecting(state: State, kept: Reservation) -> Array:
    """bool[P, Q, P]: the queued job may start in this partition for all that is kept there.

    It may if its area is no larger than that of the gang, if it would be done before the gang can start, or if it would
    leave enough for the gang.
    """
    row = jnp.maximum(state.queue, 0)[..., None]
    estimate = state.jobs.estimate_s[row]
    smaller = gpus_of(state.jobs, row) * estimate <= kept.area
    brief = estimate < kept.wait_s * _SAME_TIME
    return ~kept.some | smaller | brief | (_gpus(state, row) <= kept.spare)


def _gpus(state: State, row: Array) -> Array:
    """int32: GPUs that the jobs take, 1 for a fraction."""
    return state.jobs.workers[row] * state.jobs.gpus_per_worker[row]


def _held(state: State, row: Array) -> Array:
    """int32: GPUs that are free when the jobs end; of one that is shared that is not known."""
    gpus = _gpus(state, row)
    return gpus if state.jobs.milli is None else jnp.where(state.jobs.milli[row] < WHOLE, 0, gpus)
