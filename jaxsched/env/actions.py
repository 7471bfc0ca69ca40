"""How a state changes at a boundary: arrivals, and one round of actions (docs/semantics.md, section 6)."""

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Int

from jaxsched.cluster.hardware import group_capacity, partition_axes
from jaxsched.dynamics.batching import on_cpu
from jaxsched.dynamics.footprint import best_hardware, footprint
from jaxsched.env import sharing
from jaxsched.env.preemption import stop
from jaxsched.env.starts import logged
from jaxsched.env.state import (
    FORWARD,
    PLACE,
    RUNNING,
    STOP,
    Action,
    EnvParams,
    State,
    job_spec,
    queue_room,
)

ADMITTED = 16  # jobs that one turn of `admit_some` queues, at most


def admit(state: State, enabled: Bool[Array, ""] | bool = True) -> State:
    """Queue every job that has arrived by the state's clock, if `enabled`; jobs that fit nowhere are rejected."""

    def has_room(queue: Array, home: Array) -> Array:
        if state.faults is None:
            return (queue[home] < 0).any()
        return queue_room(state.replace(queue=queue))[home] > 0

    def admissible(carry: tuple[Array, Array]) -> Array:
        queue, next_job = carry
        home = state.jobs.home[jnp.minimum(next_job, state.jobs.arrival.shape[-1] - 1)]
        return enabled & _due(state, next_job) & ((home < 0) | has_room(queue, jnp.maximum(home, 0)))

    def admit_one(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        queue, row = carry
        home = state.jobs.home[row]
        slot = jnp.argmax(queue[jnp.maximum(home, 0)] < 0)
        column = jnp.where(home < 0, queue.shape[-1], slot)
        return queue.at[home, column].set(row, mode="drop"), row + 1

    queue, next_job = lax.while_loop(admissible, admit_one, (state.queue, state.next_job))
    return _admitted(state, queue, next_job, enabled & _due(state, next_job))


def admit_some(state: State, enabled: Bool[Array, ""]) -> tuple[State, Bool[Array, ""]]:
    """As `admit`, but of up to `ADMITTED` jobs; also whether there may be more to admit."""
    last = state.jobs.arrival.shape[-1] - 1
    rows = state.next_job + jnp.arange(ADMITTED)
    home = state.jobs.home[jnp.minimum(rows, last)]
    kept = home >= 0
    place = _rank(home, kept)
    home = jnp.maximum(home, 0)
    admitted = jnp.cumprod(enabled & _due(state, rows) & (~kept | (place < queue_room(state)[home]))) > 0
    queue = _queued(state.queue, rows, home, place, admitted & kept)
    next_job = state.next_job + admitted.sum(dtype=jnp.int32)
    more = admitted.all() & _due(state, next_job)
    return _admitted(state, queue, next_job, enabled & ~more & _due(state, next_job)), more


def _due(state: State, row: Int[Array, "*jobs"]) -> Bool[Array, "*jobs"]:
    """Whether the jobs have arrived; False beyond the table."""
    last = state.jobs.arrival.shape[-1] - 1
    return (row <= last) & (state.jobs.arrival[jnp.minimum(row, last)] <= state.clock)


def _admitted(state: State, queue: Int[Array, "P Q"], next_job: Int[Array, ""], held: Bool[Array, ""]) -> State:
    """The state with these queues; `held`: a full one holds arrivals back."""
    longest = (queue >= 0).sum(-1, dtype=jnp.int32).max()
    return state.replace(
        queue=queue,
        next_job=next_job,
        backlogged=state.backlogged + held,
        peak_queue=jnp.maximum(state.peak_queue, longest),
    )


def _rank(target: Int[Array, "n"], real: Bool[Array, "n"]) -> Int[Array, "n"]:
    """How many `real` ones before each go to the same target."""
    index = jnp.arange(target.shape[0])
    return ((target[:, None] == target) & (index < index[:, None]) & real).sum(-1, dtype=jnp.int32)


def _queued(
    queue: Int[Array, "P Q"],
    row: Int[Array, "n"],
    target: Int[Array, "n"],
    rank: Int[Array, "n"],
    real: Bool[Array, "n"],
) -> Int[Array, "P Q"]:
    """The queues with the jobs that are `real`: each in the free slot number `rank` of its queue `target`."""
    if on_cpu():  # most often there is none

        def next_one(carry: tuple[Array, Array]) -> tuple[Array, Array]:
            queue, left = carry
            one = jnp.argmax(left)
            slot = jnp.argmax(queue[target[one]] < 0)
            return queue.at[target[one], slot].set(row[one]), left.at[one].set(False)

        return lax.while_loop(lambda carry: carry[1].any(), next_one, (queue, real))[0]
    empty = queue[target] < 0
    slot = jnp.argmax(empty & (jnp.cumsum(empty, -1) == rank[:, None] + 1), -1)
    return queue.at[target, jnp.where(real, slot, queue.shape[-1])].set(row, mode="drop")


def _in_range(index: Int[Array, "P"], size: int) -> Bool[Array, "P"]:
    """JAX would clamp an index out of range to a legal one."""
    return (index >= 0) & (index < size)


def _start(params: EnvParams, state: State, action: Action) -> tuple[State, Bool[Array, "P"]]:
    """Start the gangs that `action` places; also which placements were legal."""
    cluster, running, records = params.cluster, state.running, state.records
    p = jnp.arange(cluster.group_gpus.shape[0])
    row = state.queue[p, action.slot]
    job = job_spec(state.jobs, row)
    slot = jnp.argmax(running.job < 0, axis=-1)

    taken = action.workers * job.gpus_per_worker[:, None, None]
    gpu, shared = None, state.shared
    if shared is not None:
        assert job.milli is not None
        free, used, workers = (x.reshape(len(p), -1, *x.shape[3:]) for x in (state.free, shared, action.workers))
        in_axes = (0, 0, 0, 0, None if action.gpu is None else 0)
        gpu, fits = jax.vmap(sharing.gpu_for, in_axes)(free, used, workers, job.milli, action.gpu)
        taken = jnp.where(gpu[:, None, None] >= 0, 0, taken)
    legal = (action.kind == PLACE) & ~state.waited & (row >= 0) & _in_range(action.slot, state.queue.shape[1])
    legal &= (running.job[p, slot] < 0) & (action.workers >= 0).all((1, 2)) & (action.ps >= 0).all((1, 2))
    legal &= (action.workers.sum((1, 2)) == job.workers) & (action.ps.sum((1, 2)) == job.ps)
    legal &= (taken <= state.free).all((1, 2)) & ((action.ps == 0) | (cluster.group_gpus > 0)).all((1, 2))
    if state.faults is not None:
        legal &= ((action.ps == 0) | ~state.faults.out[..., None]).all((1, 2))

    if gpu is not None:
        legal &= fits

    best = best_hardware(cluster)
    footprints = jax.vmap(footprint, in_axes=(partition_axes(cluster), None, None, 0, 0, 0))(
        cluster, best, params.profiles, job, action.workers, action.ps
    )

    r = jnp.where(legal, slot, running.job.shape[-1])
    j = jnp.where(legal, row, state.jobs.arrival.shape[-1])

    def put(old: Array, new: Array) -> Array:
        return old.at[p, r].set(new.astype(old.dtype), mode="drop")

    def note(old: Array, new: Array) -> Array:
        return old.at[j].set(new.astype(old.dtype), mode="drop")

    duration = state.jobs.duration_s[jnp.maximum(row, 0)]
    left, left_low, service = duration, jnp.zeros_like(duration), state.service
    if service is not None:
        assert params.preemption is not None and running.restart_s is not None
        at = jnp.maximum(row, 0)
        left, left_low = service.left_s[at], service.left_low_s[at]
        restart = jnp.where(_started_before(state, at), params.preemption.restart_s, 0.0)
        running = running.replace(restart_s=put(running.restart_s, restart))
        service = service.replace(
            since=note(service.since, jnp.full_like(row, state.clock)),
            restarting_s=service.restarting_s.at[j].add(restart, mode="drop"),
        )
    running = running.replace(
        job=put(running.job, row),
        workers=put(running.workers, action.workers),
        ps=put(running.ps, action.ps),
        gpus_per_worker=put(running.gpus_per_worker, job.gpus_per_worker),
        duration_s=put(running.duration_s, duration),
        remaining_s=put(running.remaining_s, left),
        remaining_low_s=put(running.remaining_low_s, left_low),
        footprint=jax.tree.map(lambda old, new: old.at[p, ..., r].set(new, mode="drop"), running.footprint, footprints),
    )
    free = state.free - jnp.where(legal[:, None, None], taken, 0)
    if shared is not None:
        assert gpu is not None and running.gpu is not None and job.milli is not None
        running = running.replace(gpu=put(running.gpu, gpu))
        shared, whole = sharing.take(shared, jnp.where(legal, gpu, -1), job.milli)
        free += whole
    records = records.replace(
        status=note(records.status, jnp.full_like(row, RUNNING)),
        partition=note(records.partition, p),
        start=note(records.start, _first_start(state, row)),
    )
    if records.workers is not None:
        assert records.ps is not None
        records = records.replace(
            workers=note(records.workers, action.workers.reshape(len(p), -1)),
            ps=note(records.ps, action.ps.reshape(len(p), -1)),
            gpu=None if records.gpu is None or gpu is None else note(records.gpu, gpu),
        )
    state = state.replace(
        free=free,
        shared=shared,
        queue=state.queue.at[p, jnp.where(legal, action.slot, state.queue.shape[-1])].set(-1, mode="drop"),
        running=running,
        records=records,
        service=service,
    )
    return state, legal


def _with_starts(state: State, placed: Bool[Array, "P"], row: Int[Array, "P"], action: Action) -> State:
    """The state with the jobs in its log that have just been `placed`."""
    assert state.starts is not None and state.service is not None
    at, partitions = jnp.maximum(row, 0), len(row)
    columns = {
        "job": at,
        "partition": jnp.arange(partitions),
        "boundary": jnp.full_like(at, state.clock),
        "ran": state.service.ran[at],
        "stops": state.service.stops[at],
        "falls": jnp.zeros_like(at) if state.faults is None else state.faults.count[at],
        "workers": action.workers.reshape(partitions, -1),
        "ps": action.ps.reshape(partitions, -1),
    }
    if state.records.gpu is not None:
        columns["gpu"] = state.records.gpu[at]
    return state.replace(starts=logged(state.starts, placed, **columns))


def _first_start(state: State, row: Int[Array, "P"]) -> Int[Array, "P"]:
    """Boundary at which each job started first, if it starts now."""
    if state.service is None:
        return jnp.full_like(row, state.clock)
    at = jnp.maximum(row, 0)
    return jnp.where(_started_before(state, at), state.records.start[at], state.clock)


def _started_before(state: State, at: Int[Array, "P"]) -> Bool[Array, "P"]:
    """Whether the jobs in these rows have been stopped, by a scheduler or by a failure."""
    assert state.service is not None
    stops = state.service.stops[at]
    return (stops if state.faults is None else stops + state.faults.count[at]) > 0


def _forward(params: EnvParams, state: State, action: Action, room: Int[Array, "P"]) -> tuple[State, Bool[Array, "P"]]:
    """Move the forwarded jobs between queues, lower numbered schedulers first; also which were legal.

    Args: `room`, free queue slots before the round.
    """
    partitions, slots = state.queue.shape
    p = jnp.arange(partitions)
    row = state.queue[p, action.slot]
    job = job_spec(state.jobs, row)
    capacity = group_capacity(params.cluster.group_gpus[action.target], job.gpus_per_worker[:, None, None])
    fits = capacity.sum((1, 2)) >= job.workers
    legal = (action.kind == FORWARD) & ~state.waited & (row >= 0) & (action.target != p) & fits
    legal &= _in_range(action.slot, slots) & _in_range(action.target, partitions)
    legal &= state.records.forwards[jnp.maximum(row, 0)] < params.max_forwards
    rank = _rank(action.target, legal)
    legal &= rank < room[action.target]
    emptied = state.queue.at[p, jnp.where(legal, action.slot, slots)].set(-1, mode="drop")
    queue = _queued(emptied, row, jnp.clip(action.target, 0, partitions - 1), rank, legal)
    moved = jnp.where(legal, row, state.records.forwards.shape[-1])
    forwards = state.records.forwards.at[moved].add(jnp.int8(1), mode="drop")
    return state.replace(queue=queue, records=state.records.replace(forwards=forwards)), legal


def apply_actions(params: EnvParams, state: State, action: Action) -> tuple[State, Bool[Array, "P R"]]:
    """One decision round: stops, placements, then forwards; a scheduler that did none legally has waited.

    Returns the state, whose totals and slowdowns are still those before the round, and the running slots whose jobs
    have come or gone.
    """
    waiting = state.waited
    running = state.running.job
    stopped = jnp.zeros_like(waiting)
    if action.stop is not None and params.preemption is not None:
        state, stopped = stop(params, state, action)
    room = queue_room(state)
    row = state.queue[jnp.arange(len(waiting)), action.slot]
    state, placed = _start(params, state, action)
    if state.starts is not None:
        state = _with_starts(state, placed, row, action)
    changed = state.running.job != running
    state, forwarded = _forward(params, state, action, room)
    acted = stopped | placed | forwarded
    tried = (action.kind == PLACE) | (action.kind == FORWARD)
    if action.stop is not None and params.preemption is not None:
        tried |= action.kind == STOP
    refused = tried & ~acted & ~waiting
    state = state.replace(
        waited=waiting | ~acted, round=state.round + 1, illegal=state.illegal + refused.sum(dtype=jnp.int32)
    )
    return state, changed
