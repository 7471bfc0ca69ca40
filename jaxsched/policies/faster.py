"""Jobs go where their GPUs are faster, and who is stopped (docs/semantics.md, section 8, "Faster GPUs")."""

import functools

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float32, Int32

from jaxsched.dynamics.batching import only_where
from jaxsched.env import levels
from jaxsched.env.clock import intervals_to_completion
from jaxsched.env.extensions.preemption import may_stop, released, until_stoppable_s
from jaxsched.env.extensions.sharing import room_of
from jaxsched.env.gpu_choice import speeds_at, suits, tier_in, tiers
from jaxsched.env.queues import Discipline, feasible_at
from jaxsched.env.state import FORWARD, PLACE, WAIT, Action, EnvParams, State, queue_room
from jaxsched.policies import displacement
from jaxsched.policies.base import or_stop
from jaxsched.policies.displacement import displaced
from jaxsched.policies.filling import quantise
from jaxsched.policies.spec import STAY, TO_IDLE
from jaxsched.semantics import FASTER, GRID, RESTARTS
from jaxsched.workload.jobs import NEVER


def preempting(
    queue: Discipline, forward: str, params: EnvParams, state: State, keys: Float32[Array, "P Q"], action: Action
) -> Action:
    """What a preemptive policy does where without preemption it would do `action`; `keys`: levels of queued jobs."""
    moves = queue.faster and state.gpu_speeds > 1 and params.preemption.there
    if moves:
        leaves, target = _before_start(queue, forward, params, state, keys, action)
        action = action.replace(
            kind=jnp.where(leaves, FORWARD, action.kind), target=jnp.where(leaves, target, action.target)
        )
    idle = (action.kind == WAIT) & ~state.waited
    stop = displaced(queue, params, state, keys, idle)
    if moves:
        stop |= _moved(queue, forward, params, state, idle & ~stop.any(-1))
    return or_stop(action, stop)


def quiet_intervals(queue: Discipline, forward: str, params: EnvParams, state: State) -> Int32[Array, ""]:
    """For how many intervals a policy that has just waited everywhere waits, if no job arrives or ends.

    If it moves jobs to faster GPUs that is no longer than to the next completion, by which GPUs become free.
    """
    quiet = displacement.quiet_intervals(queue, params, state)
    if not queue.faster or state.gpu_speeds == 1:
        return quiet
    gain = _largest_gains(queue, forward, params, state, jnp.ones(state.queue.shape[0], bool))
    needed_s = RESTARTS * params.preemption.restart_s * gain / jnp.maximum(gain - GRID, 1.0)
    seconds = needed_s * (1.0 - 1e-6) - levels.run_s(params, state, jnp.maximum(state.running.job, 0), running=True)
    stoppable_s = jnp.maximum(seconds, until_stoppable_s(params, state))
    seconds = jnp.where(may_stop(params, state), seconds, stoppable_s)
    least = jnp.where(gain >= FASTER, seconds, jnp.inf).min() / params.interval_s
    moved = jnp.floor(jnp.clip(least * (1.0 - 1e-4), 1.0, float(NEVER // 2))).astype(jnp.int32)
    moved = jnp.minimum(moved, jnp.maximum(intervals_to_completion(params, state), 1))
    return jnp.where(state.waited.all(), jnp.minimum(quiet, moved), 1)  # slowdowns are not current where some acted


def _before_start(
    queue: Discipline, forward: str, params: EnvParams, state: State, keys: Float32[Array, "P Q"], action: Action
) -> tuple[Bool[Array, "P"], Int32[Array, "P"]]:
    """Which of the jobs that `action` places go where they would be faster instead, and where that is."""
    p = jnp.arange(state.queue.shape[0])
    row = jnp.maximum(state.queue[p, action.slot], 0)
    open_to = feasible_at(state, row, params.cluster if queue.consolidate else None)
    open_to &= suits(params, state, keys)[p, action.slot] & _may_move(forward, params, state, row, p)
    tier, speed = _tiers_now(params, state, row), speeds_at(params, state, row)
    gain = jnp.where(open_to, _gain(speed, tier, tier[p, p]), 0)
    most = gain.max(-1, keepdims=True)
    target = jnp.argmax(jnp.where(gain == most, state.free.sum((1, 2)), -1), -1).astype(jnp.int32)
    return (action.kind == PLACE) & (most[:, 0] >= FASTER), target


def _moved(
    queue: Discipline, forward: str, params: EnvParams, state: State, wanted: Bool[Array, "P"]
) -> Bool[Array, "P R"]:
    """The running job that each scheduler under `wanted` stops so that it goes on on faster GPUs, if there is one."""
    ran_s = levels.run_s(params, state, jnp.maximum(state.running.job, 0), running=True)
    wanted &= (state.queue < 0).any(-1)
    gain = _largest_gains(queue, forward, params, state, wanted)
    needed = RESTARTS * params.preemption.restart_s * gain.astype(jnp.float32)
    makes_up = ran_s * (gain.astype(jnp.float32) - GRID) >= needed
    gain = jnp.where(may_stop(params, state) & makes_up & (gain >= FASTER), gain, 0)
    most = gain.max(-1, keepdims=True)
    row = jnp.where(gain == most, state.running.job, NEVER)
    return (row == row.min(-1, keepdims=True)) & (most > 0)


def _largest_gains(
    queue: Discipline, forward: str, params: EnvParams, state: State, wanted: Bool[Array, "P"]
) -> Int32[Array, "P R"]:
    """Of the running jobs of partitions under `wanted`, over all places where they could go on; elsewhere 0."""
    cluster = params.cluster
    fastest, _ = tiers(cluster, state.gpu_speeds)
    rows = jnp.maximum(state.running.job, 0)

    def here(p: Array) -> Array:
        """Tiers of the slowest groups."""
        slowest = jnp.where(state.running.workers[p] > 0, cluster.group_speed[p], jnp.inf).min((1, 2))
        return (fastest > slowest[:, None]).sum(-1)

    def once_left(p: Array) -> Array:
        """Tiers in the same partition."""

        def of_slot(r: Array) -> Array:
            free, shared = released(state, p, jnp.arange(rows.shape[1]) == r)
            return tier_in(params, state, p, rows[p, r], free, room_of(free, shared))

        return jax.vmap(of_slot)(jnp.arange(rows.shape[1]))

    def of_partition(p: Array) -> Array:
        row, now = rows[p], here(p)
        speed = speeds_at(params, state, row)
        elsewhere = feasible_at(state, row, cluster if queue.consolidate else None)
        elsewhere &= _may_move(forward, params, state, row, p)
        there = jnp.where(elsewhere, _gain(speed, _tiers_now(params, state, row), now), 0)
        own = _gain(speed, once_left(p)[:, None], now)
        return jnp.where(state.running.job[p] >= 0, jnp.concatenate([there, own], -1).max(-1), 0)

    return only_where(wanted, of_partition, lambda p: jnp.zeros(rows.shape[1], jnp.int32))


def _tiers_now(params: EnvParams, state: State, row: Int32[Array, "jobs"]) -> Int32[Array, "jobs P"]:
    """The tiers that jobs would get in each partition."""
    room = room_of(state.free, state.shared)
    of_partition = functools.partial(tier_in, params, state)
    axes = (0, None, 0, 0)
    return jax.vmap(of_partition, axes, -1)(jnp.arange(len(state.free)), row, state.free, room)


def _gain(
    speed: Float32[Array, "jobs C"], there: Int32[Array, "jobs places"], here: Int32[Array, "jobs"]
) -> Int32[Array, "jobs places"]:
    """How fast jobs are at tiers, in thousandths of their speed here."""
    return quantise(jnp.take_along_axis(speed, there, -1) / jnp.take_along_axis(speed, here[:, None], -1))


def _may_move(
    forward: str, params: EnvParams, state: State, row: Int32[Array, "jobs"], p: Int32[Array, "*#jobs"]
) -> Bool[Array, "jobs P"]:
    """Whether jobs of partitions `p` may be forwarded to each partition, wherever they fit."""
    takes = (queue_room(state) > 0) & (forward != STAY)
    if forward == TO_IDLE:
        takes &= (state.queue < 0).all(-1)
    elsewhere = jnp.arange(len(takes)) != jnp.broadcast_to(p, row.shape)[:, None]
    return elsewhere & takes & (state.records.forwards[row] < params.max_forwards)[:, None]
