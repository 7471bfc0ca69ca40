"""How a state changes at a boundary: arrivals, and one round of actions (docs/semantics.md, section 6)."""

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float32, Int, Int32

from jaxsched.cluster.hardware import group_capacity, one_partition, workers_within
from jaxsched.dynamics.batching import MANY, on_cpu, only_where, write_where
from jaxsched.dynamics.footprint import JobSpec, best_hardware, footprint
from jaxsched.dynamics.occupants import Entry, entry_of, has_room, put_entry
from jaxsched.env.extensions import preemption, sharing, starts
from jaxsched.env.extensions.failures import allows
from jaxsched.env.extensions.gpu_sets import asks_of, spare, usable_by
from jaxsched.env.extensions.preemption import left_at_start, started_before, stop
from jaxsched.env.extensions.sharing import choose_gpus
from jaxsched.env.extensions.starts import Placed
from jaxsched.env.queues import may_be_forwarded
from jaxsched.env.state import (
    FORWARD,
    PLACE,
    RUNNING,
    STOP,
    Action,
    EnvParams,
    Overtaken,
    Records,
    Running,
    State,
    job_spec,
    queue_room,
)
from jaxsched.pytree import Pytree
from jaxsched.workload.jobs import look_up

# What each extension does when jobs start, in this order: `(params, state, placed) -> state`.
# When jobs leave early, only some parts of the state go through a `lax.cond`: see `stop`.
ON_START = (sharing.on_start, preemption.on_start, starts.on_start)
ADMITTED = 16  # jobs that one turn of `admit_some` queues, at most


def admit(state: State, enabled: Bool[Array, ""] | bool = True) -> State:
    """Queue every job that has arrived by the state's clock, if `enabled`; jobs that fit nowhere are rejected."""

    def has_room(queue: Array, home: Array) -> Array:
        if not state.faults.there:
            return (queue[home] < 0).any()
        return queue_room(state.replace(queue=queue))[home] > 0

    def admissible(carry: tuple[Array, Array]) -> Array:
        queue, next_job = carry
        home = look_up(state.jobs.home, jnp.minimum(next_job, state.jobs.arrival.shape[-1] - 1))
        return enabled & _due(state, next_job) & ((home < 0) | has_room(queue, jnp.maximum(home, 0)))

    def admit_one(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        queue, row = carry
        home = look_up(state.jobs.home, row)
        slot = jnp.argmax(queue[jnp.maximum(home, 0)] < 0)
        column = jnp.where(home < 0, queue.shape[-1], slot)
        return queue.at[home, column].set(row, mode="drop"), row + 1

    queue, next_job = lax.while_loop(admissible, admit_one, (state.queue, state.next_job))
    return _note_queues(state, queue, next_job, enabled & _due(state, next_job))


def admit_some(state: State, enabled: Bool[Array, ""]) -> tuple[State, Bool[Array, ""]]:
    """As `admit`, but of up to `ADMITTED` jobs; also whether there may be more to admit."""
    last = state.jobs.arrival.shape[-1] - 1
    rows = state.next_job + jnp.arange(ADMITTED)
    home = look_up(state.jobs.home, jnp.minimum(rows, last))
    kept = home >= 0
    place = _rank(home, kept)
    home = jnp.maximum(home, 0)
    admitted = jnp.cumprod(enabled & _due(state, rows) & (~kept | (place < queue_room(state)[home]))) > 0
    queue = _enqueue(state.queue, rows, home, place, admitted & kept)
    next_job = state.next_job + admitted.sum(dtype=jnp.int32)
    more = admitted.all() & _due(state, next_job)
    return _note_queues(state, queue, next_job, enabled & ~more & _due(state, next_job)), more


def _due(state: State, row: Int[Array, "*jobs"]) -> Bool[Array, "*jobs"]:
    """Whether the jobs have arrived; False beyond the table."""
    last = state.jobs.arrival.shape[-1] - 1
    return (row <= last) & (state.jobs.arrival[jnp.minimum(row, last)] <= state.clock)


def _note_queues(state: State, queue: Int[Array, "P Q"], next_job: Int[Array, ""], held: Bool[Array, ""]) -> State:
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


def _enqueue(
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
    p = jnp.arange(state.queue.shape[0])
    row, slot = state.queue[p, action.slot], jnp.argmax(state.running.job < 0, axis=-1)
    job = job_spec(state.jobs, row)
    gpu, taken, fits = choose_gpus(state, action, job)
    legal = (action.kind == PLACE) & ~state.waited & (row >= 0) & _in_range(action.slot, state.queue.shape[1])
    legal &= state.running.job[p, slot] < 0
    legal &= _is_whole(params, state, action, row) & (taken <= state.free).all((1, 2)) & fits & allows(state, action)
    legal &= _have_room(state, action)
    placed = Placed(legal=legal, row=jnp.maximum(row, 0), slot=slot, workers=action.workers, ps=action.ps, gpu=gpu)
    queue = state.queue.at[p, jnp.where(legal, action.slot, state.queue.shape[-1])].set(-1, mode="drop")
    state = state.replace(
        free=state.free - jnp.where(legal[:, None, None], taken, 0),
        queue=queue,
        owed_s=_owe(state.owed_s, queue, legal, action.overtaken),
        running=_run(params, state, placed, job),
        records=_record(state, placed),
    )
    for on_start in ON_START:
        state = on_start(params, state, placed)
    return state, legal


def _is_whole(params: EnvParams, state: State, action: Action, row: Int[Array, "P"]) -> Bool[Array, "P"]:
    """Whether each scheduler places as many workers and parameter servers as its job has, and where it may be."""
    row, job = jnp.maximum(row, 0), job_spec(state.jobs, row)
    whole = (action.workers >= 0).all((1, 2)) & (action.ps >= 0).all((1, 2))
    whole &= (action.workers.sum((1, 2)) == job.workers) & (action.ps.sum((1, 2)) == job.ps)
    if state.asks:
        within = workers_within(spare(state, params.cluster), asks_of(state, row)[:, None])
        whole &= (action.workers.sum(-1) <= within).all(-1)
    if not state.binds:
        return whole & ((action.ps == 0) | (params.cluster.group_gpus > 0)).all((1, 2))
    return whole & ((action.workers + action.ps == 0) | usable_by(state, row)).all((1, 2))


class Starting(Pytree):
    """A job that starts in a partition."""

    partition: Int32[Array, ""]
    slot: Int32[Array, ""]
    row: Int32[Array, ""]
    workers: Int32[Array, "N K"]
    ps: Int32[Array, "N K"]
    job: JobSpec
    duration_s: Float32[Array, ""]
    left_s: tuple[Float32[Array, ""], Float32[Array, ""]]  # of its work, and what float32 cannot hold of it
    active: Bool[Array, "R"]  # running slots with jobs there: read from what is written, they would be copied each time
    places: Int[Array, "N K G"]  # whose the places are there; likewise


def _run(params: EnvParams, state: State, placed: Placed, job: JobSpec) -> Running:
    """The running jobs with those that are `placed`."""
    cluster, best, profiles = params.cluster, best_hardware(params.cluster), params.profiles
    partitions, slots = state.running.job.shape
    starting = Starting(
        partition=jnp.arange(partitions),
        slot=jnp.where(placed.legal, placed.slot, slots),  # of the others nothing is written
        row=placed.row,
        workers=placed.workers,
        ps=placed.ps,
        job=job,
        duration_s=state.jobs.duration_s[placed.row],
        left_s=left_at_start(state, placed.row),
        active=state.running.job >= 0,
        places=state.running.occupants.slot,
    )

    def entry(one: Starting) -> Entry:
        here, slot = one_partition(cluster, one.partition), one.slot
        asks = footprint(here, best, profiles, one.job, one.workers, one.ps)
        return entry_of(one.places, one.active, slot, asks, one.workers, one.ps)

    return write_where(placed.legal, entry, _put_job, state.running, starting, least=MANY)


def _put_job(running: Running, at: tuple[Int32[Array, "*jobs"], ...], one: Starting, entry: Entry) -> Running:
    """The running jobs with one that starts, or one in each of the partitions `at`; `()`: they are of one partition."""
    there = (*at, one.slot)
    return running.replace(
        job=running.job.at[there].set(one.row, mode="drop"),
        gpus_per_worker=running.gpus_per_worker.at[there].set(one.job.gpus_per_worker, mode="drop"),
        gpus=running.gpus.at[there].set(one.job.workers * one.job.gpus_per_worker, mode="drop"),
        duration_s=running.duration_s.at[there].set(one.duration_s, mode="drop"),
        remaining_s=running.remaining_s.at[there].set(one.left_s[0], mode="drop"),
        remaining_low_s=running.remaining_low_s.at[there].set(one.left_s[1], mode="drop"),
        occupants=put_entry(running.occupants, at, entry),
    )


def _have_room(state: State, action: Action) -> Bool[Array, "P"]:
    """Whether parameter servers without workers beside them find places, see `has_room`."""
    running, free = state.running, state.free
    alone = ((action.ps > 0) & (action.workers == 0)).any((1, 2))

    def in_partition(p: Array) -> Array:
        jobs = jax.tree.map(lambda leaf: leaf[p], running.occupants)
        return has_room(jobs, running.job[p] >= 0, free[p], action.workers[p], action.ps[p])

    return only_where(alone, in_partition, lambda p: jnp.array(True))


def _owe(
    owed_s: Float32[Array, "P Q"], queue: Int32[Array, "P Q"], placed: Bool[Array, "P"], overtaken: Overtaken | None
) -> Float32[Array, "P Q"]:
    """What is owed to queued jobs, once some are `placed` that have overtaken others; nothing to empty slots."""
    if not overtaken:
        return owed_s
    passed = placed[:, None] & (queue == overtaken.row[:, None])
    return jnp.where(queue < 0, 0.0, owed_s + jnp.where(passed, overtaken.cost_s[:, None], 0.0))


def _record(state: State, placed: Placed) -> Records:
    """The records with the jobs that are `placed`; they keep a job's first start."""
    records, row = state.records, placed.row
    again = started_before(state, row)
    return records.replace(
        status=placed.in_rows(records.status, jnp.full_like(row, RUNNING)),
        partition=placed.in_rows(records.partition, jnp.arange(len(row))),
        start=placed.in_rows(records.start, jnp.where(again, records.start[row], state.clock)),
    )


def _forward(params: EnvParams, state: State, action: Action, room: Int[Array, "P"]) -> tuple[State, Bool[Array, "P"]]:
    """Move the forwarded jobs between queues, lower numbered schedulers first; also which were legal.

    Args: `room`, free queue slots before the round.
    """
    partitions, slots = state.queue.shape
    p = jnp.arange(partitions)
    row = state.queue[p, action.slot]
    job = job_spec(state.jobs, row)
    gpus = params.cluster.group_gpus[action.target]
    if state.binds:
        gpus = jnp.where(state.usable[state.jobs.allowed[jnp.maximum(row, 0)], action.target], gpus, 0)
    capacity = group_capacity(gpus, job.gpus_per_worker[:, None, None]).sum(-1)
    if state.asks:
        asks = asks_of(state, jnp.maximum(row, 0))[:, None]
        capacity = jnp.minimum(capacity, workers_within(params.cluster.reservable[action.target], asks))
    fits = capacity.sum(-1) >= job.workers
    legal = (action.kind == FORWARD) & ~state.waited & (row >= 0) & (action.target != p) & fits
    legal &= _in_range(action.slot, slots) & _in_range(action.target, partitions)
    legal &= may_be_forwarded(params, state, jnp.maximum(row, 0))
    rank = _rank(action.target, legal)
    legal &= rank < room[action.target]
    emptied = state.queue.at[p, jnp.where(legal, action.slot, slots)].set(-1, mode="drop")
    queue = _enqueue(emptied, row, jnp.clip(action.target, 0, partitions - 1), rank, legal)
    moved = jnp.where(legal, row, state.records.forwards.shape[-1])
    records = state.records.replace(forwards=state.records.forwards.at[moved].add(jnp.int8(1), mode="drop"))
    owed_s = jnp.where(emptied < 0, 0.0, state.owed_s) if action.overtaken else state.owed_s
    return state.replace(queue=queue, owed_s=owed_s, records=records), legal


def apply_actions(params: EnvParams, state: State, action: Action) -> tuple[State, Bool[Array, "P R"]]:
    """One decision round: stops, placements, then forwards; a scheduler that did none legally has waited.

    Returns the state, whose totals and slowdowns are still those before the round, and the running slots whose jobs
    have come or gone.
    """
    waiting = state.waited
    running = state.running.job
    state, stopped = stop(params, state, action)
    room = queue_room(state)
    state, placed = _start(params, state, action)
    changed = state.running.job != running
    state, forwarded = _forward(params, state, action, room)
    acted = stopped | placed | forwarded
    tried = (action.kind == PLACE) | (action.kind == FORWARD)
    if action.stop is not None and state.service.there:
        tried |= action.kind == STOP
    refused = tried & ~acted & ~waiting
    state = state.replace(
        waited=waiting | ~acted, round=state.round + 1, illegal=state.illegal + refused.sum(dtype=jnp.int32)
    )
    return state, changed
