"""Jobs are sent where they had better wait or start, by an index of partitions (docs/semantics.md, "Seeking")."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float32, Int32, PRNGKeyArray, PyTree

from jaxsched.env.knowledge import outlived
from jaxsched.env.queues import Discipline, feasible, order_keys
from jaxsched.env.reservations import freed_in_turn, gang_gpus, held_gpus, may_start_at
from jaxsched.env.state import FINISHED, FORWARD, PLACE, WAIT, Action, EnvParams, State, could_hold, queue_room
from jaxsched.policies.base import Act
from jaxsched.semantics import (
    GRID,
    GRID_OFFSET,
    SEEK_DOUBT,
    SEEK_JOBS,
    SEEK_LAST,
    SEEK_LONGEST_S,
    SEEK_MOST,
    SEEK_MOST_DOUBT,
    SEEK_S,
)


def seeking(act: Act, queue: Discipline) -> Act:
    """What acts as `act`, with jobs sent to other partitions by an index whose numbers are its weights.

    Args: `queue`: of `act`. The weights are `float32[4]`, see `policies.spec.SeekWeights`.
    """

    def sought(key: PRNGKeyArray, state: State, params: EnvParams, weights: PyTree) -> Action:
        action = act(key, state, params, weights)
        starts = (action.kind == PLACE) & ~state.waited
        waits = (action.kind == WAIT) & ~state.waited & (state.queue >= 0).any(-1) & news(params, state)
        slot, target, sent = lax.cond(
            (starts | waits).any(),
            lambda: _sent(params, state, _looked_at(queue, params, state, starts, waits, action), jnp.asarray(weights)),
            lambda: _nobody(state),
        )
        return action.replace(
            kind=jnp.where(sent, FORWARD, action.kind),
            slot=jnp.where(sent, slot, action.slot),
            target=jnp.where(sent, target, action.target),
        )

    return sought


class Looked(NamedTuple):
    """Jobs for which partitions are compared."""

    keys: Float32[Array, "P Q"]  # of the order
    slots: Int32[Array, "P S"]  # of the queue
    wanted: Bool[Array, "P S"]  # the others do not count
    starts: Bool[Array, "P"]  # the first would be placed
    may_start: Bool[Array, "P S P"]  # now, in each partition


def _looked_at(
    queue: Discipline,
    params: EnvParams,
    state: State,
    starts: Bool[Array, "P"],
    waits: Bool[Array, "P"],
    action: Action,
) -> Looked:
    """Of schedulers that would place a job that job, of those that wait the first of their queues."""
    keys, p = order_keys(queue, state, params), jnp.arange(state.queue.shape[0])
    in_order = jnp.lexsort((state.queue, keys), axis=-1)[:, :SEEK_JOBS].astype(jnp.int32)
    slots = in_order.at[:, 0].set(jnp.where(starts, action.slot, in_order[:, 0]))
    row = state.queue[p[:, None], slots]
    can_start = feasible(state, params.cluster if queue.consolidate else None)[p[:, None], slots]
    first = jnp.arange(slots.shape[1]) == 0
    wanted = jnp.where(starts[:, None], first, waits[:, None] & ~can_start)
    wanted &= (row >= 0) & (_forwards_left(params, state, row) > 0)
    return Looked(keys, slots, wanted, starts, may_start_at(queue, params, state, keys, slots))


def news(params: EnvParams, state: State) -> Bool[Array, ""]:
    """Whether jobs have been submitted for this boundary, or have ended since the one before."""
    came = (state.jobs.arrival == state.clock) & (state.jobs.home >= 0)
    records = state.records  # several intervals may have been passed at once
    before_s = (state.clock - 1 - records.finish) * params.interval_s
    ended = (records.status == FINISHED) & (records.finish_offset_s > before_s)
    return (came | ended).any()


def _sent(
    params: EnvParams, state: State, looked: Looked, weights: Float32[Array, "numbers"]
) -> tuple[Int32[Array, "P"], Int32[Array, "P"], Bool[Array, "P"]]:
    """The queue slot of the job that each scheduler sends away, where to, and whether there is one."""
    p = jnp.arange(state.queue.shape[0])
    row = jnp.maximum(state.queue[p[:, None], looked.slots], 0)
    index = jnp.matmul(_inputs(params, state, looked), weights, precision=lax.Precision.HIGHEST)
    index = jnp.floor(GRID * index + GRID_OFFSET).astype(jnp.int32)
    takes = (queue_room(state) > 0) & (p != p[:, None])[:, None]
    takes &= could_hold(params.cluster, state.jobs.workers[row], state.jobs.gpus_per_worker[row])
    takes &= looked.may_start | ~looked.starts[:, None, None]
    here = index[p, :, p]
    there = jnp.where(takes, index, jnp.iinfo(jnp.int32).min)
    better = looked.wanted & (there.max(-1) > here)
    chosen = jnp.argmax(better, -1)
    target = jnp.argmax(there[p, chosen], -1).astype(jnp.int32)
    return looked.slots[p, chosen], target, better.any(-1)


def _nobody(state: State) -> tuple[Int32[Array, "P"], Int32[Array, "P"], Bool[Array, "P"]]:
    nothing = jnp.zeros(state.queue.shape[0], jnp.int32)
    return nothing, nothing, nothing > 0


def _inputs(params: EnvParams, state: State, looked: Looked) -> Float32[Array, "P S P inputs"]:
    """What the index is of, for every job that is looked at and every partition."""
    p = jnp.arange(state.queue.shape[0])
    waiting = jnp.where(state.queue >= 0, gang_gpus(state, jnp.maximum(state.queue, 0)), 0)
    doubt = _doubt(state)
    end_s, freed = freed_in_turn(state)
    total = params.cluster.group_gpus.sum((1, 2))

    def of_partition(here: Array) -> Array:
        row, key = state.queue[here, looked.slots[here]], looked.keys[here, looked.slots[here]]
        job, key = row[:, None, None], key[:, None, None]
        gpus = gang_gpus(state, jnp.maximum(row, 0))[:, None]
        estimate_s = state.jobs.estimate_s[jnp.maximum(row, 0)][:, None] + SEEK_S
        before = (looked.keys < key) | ((looked.keys == key) & (state.queue < job))
        ahead = jnp.where(before, waiting, 0).sum(-1)
        queued = jnp.where(state.queue != job, waiting, 0).sum(-1)
        short = (freed < jnp.minimum(gpus + ahead, total)[..., None]).sum(-1, keepdims=True)  # ends that are too early
        latest = freed.shape[-1] - 1
        wait_s = jnp.take_along_axis(jnp.broadcast_to(end_s, (len(row), *end_s.shape)), jnp.minimum(short, latest), -1)
        wait_s = jnp.where(short <= latest, jnp.minimum(wait_s, SEEK_LONGEST_S), SEEK_LONGEST_S)[..., 0]
        wait_s = jnp.where(looked.may_start[here], 0.0, wait_s)
        left = _forwards_left(params, state, row)[:, None]
        last = (p == here) & (left <= SEEK_LAST)
        inputs = (
            jnp.log((wait_s + SEEK_S) / estimate_s),
            jnp.minimum(queued / total, SEEK_MOST),
            p == here,
            jnp.where(last, doubt / jnp.maximum(left, 1), 0.0),
        )
        return jnp.stack([jnp.broadcast_to(one, ahead.shape).astype(jnp.float32) for one in inputs], -1)

    return lax.map(of_partition, p)


def _doubt(state: State) -> Float32[Array, ""]:
    """How little the estimates are to be trusted."""
    if state.history.there:
        return jnp.float32(SEEK_MOST_DOUBT)
    held = held_gpus(state)
    late = jnp.where(outlived(state), held, 0).sum() / jnp.maximum(held.sum(), 1)
    return jnp.minimum(SEEK_DOUBT * late, SEEK_MOST_DOUBT)


def _forwards_left(params: EnvParams, state: State, row: Int32[Array, "*jobs"]) -> Int32[Array, "*jobs"]:
    return params.max_forwards - state.records.forwards[jnp.maximum(row, 0)]
