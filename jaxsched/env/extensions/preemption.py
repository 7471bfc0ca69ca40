"""Running jobs that schedulers stop, and what these jobs keep (docs/semantics.md, section 8)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float32, Int8, Int16, Int32

from jaxsched.dynamics.occupants import in_groups
from jaxsched.env.extensions import sharing
from jaxsched.env.extensions.parts import Service
from jaxsched.env.extensions.starts import Placed
from jaxsched.env.state import STOP, WAITING, Action, EnvParams, State
from jaxsched.semantics import CHECKPOINT_TOLERANCE, LEAST_GAIN_S, STOP_TOLERANCE
from jaxsched.workload.jobs import JobTable


def no_service(params: EnvParams, jobs: JobTable) -> Service:
    """What jobs have had that have not run; of size 0 where nobody stops jobs."""
    count = jobs.arrival.shape[0] if params.stops else 0
    floats, ints = jnp.zeros(count, jnp.float32), jnp.zeros(count, jnp.int32)
    left = jobs.duration_s[:count]
    return Service(left_s=left, left_low_s=floats, since=ints, ran=ints, stops=ints, restarting_s=floats, lost_s=floats)


def on_start(params: EnvParams, state: State, placed: Placed) -> State:
    """The state in which jobs that have run before restart."""
    service, running, row = state.service, state.running, placed.row
    if not service.there:
        return state
    entry = jnp.where(placed.legal, row, service.ran.shape[0])
    restart = jnp.where(started_before(state, row), params.preemption.restart_s, 0.0)
    service = service.replace(
        since=placed.in_rows(service.since, jnp.full_like(row, state.clock)),
        restarting_s=service.restarting_s.at[entry].add(restart, mode="drop"),
    )
    running = running.replace(restart_s=placed.in_slots(running.restart_s, restart))
    return state.replace(service=service, running=running)


def left_at_start(state: State, row: Int32[Array, "*jobs"]) -> tuple[Float32[Array, "*jobs"], Float32[Array, "*jobs"]]:
    """Ideal seconds of work that queued jobs have left, and the part of it that float32 cannot hold."""
    if not state.service.there:
        duration = state.jobs.duration_s[row]
        return duration, jnp.zeros_like(duration)
    return state.service.left_s[row], state.service.left_low_s[row]


def started_before(state: State, row: Int32[Array, "*jobs"]) -> Bool[Array, "*jobs"]:
    """Whether jobs that do not run have been stopped, by a scheduler or by a failure."""
    if not state.service.there:
        return jnp.zeros(row.shape, bool)
    stops = state.service.stops[row]
    return (stops + state.faults.count[row] if state.faults.there else stops) > 0


def add_restart(left_s: Float32[Array, "P R"], restart_s: Float32[Array, "P Rp"]) -> Float32[Array, "P R"]:
    """Seconds until running jobs complete, with what is left of their restarts."""
    return left_s + restart_s if restart_s.size else left_s


def pass_restart(
    restart_s: Float32[Array, "P Rp"], step_s: Float32[Array, ""], slowdown: Float32[Array, "P R"]
) -> tuple[Float32[Array, "P Rp"], Float32[Array, "*work"], Float32[Array, "P R"]]:
    """What is left of restarts after a step of time, its seconds of work, and the step over those, slowed down."""
    if not restart_s.size:
        return restart_s, step_s, slowdown
    restarting = jnp.minimum(restart_s, step_s)
    worked = step_s - restarting
    return restart_s - restarting, worked, jnp.where(worked > 0, slowdown * step_s / worked, jnp.inf)


def may_stop(params: EnvParams, state: State) -> Bool[Array, "P R"]:
    """Which running jobs have run for long enough to be stopped, and would keep some of the work done since."""
    running, service = state.running, state.service
    if not (service.there and params.schedulers_stop):
        return jnp.zeros_like(running.job, bool)
    at = jnp.maximum(running.job, 0)
    enough = state.clock - service.since[at] >= params.preemption.min_run_s / params.interval_s - STOP_TOLERANCE
    gained = service.left_s[at] - _left_if_stopped(params, state)[0]
    return (running.job >= 0) & enough & (gained > LEAST_GAIN_S)


def stop(params: EnvParams, state: State, action: Action) -> tuple[State, Bool[Array, "P"]]:
    """Stop the jobs that `action` names, which go back to their queues; also for which schedulers that was legal."""
    asked = action.stop
    if asked is None or not state.service.there:
        return state, jnp.zeros_like(state.waited)
    legal = (action.kind == STOP) & ~state.waited & asked.any(-1) & (~asked | may_stop(params, state)).all(-1)
    legal &= asked.sum(-1) <= (state.queue < 0).sum(-1)
    stopped = asked & legal[:, None]

    def some() -> Occupancy:
        free, shared = jax.vmap(released, (None, 0, 0))(state, jnp.arange(len(stopped)), stopped)
        row = jnp.where(stopped, state.running.job, state.jobs.arrival.shape[-1])
        return requeue(state, stopped, row, free, shared, _note_stops(params, state, row))

    return with_occupancy(state, lax.cond(stopped.any(), some, lambda: occupancy_of(state))), legal


class Occupancy(NamedTuple):
    """The parts of a state that are others once jobs have left their GPUs: all that a `lax.cond` has to carry."""

    free: Int32[Array, "P N K"]
    shared: Int16[Array, "P N K S"]
    queue: Int32[Array, "P Q"]
    job: Int32[Array, "P R"]  # of the running slots
    service: Service
    status: Int8[Array, "J"]


def occupancy_of(state: State) -> Occupancy:
    """Those parts of a state as it is."""
    return Occupancy(state.free, state.shared, state.queue, state.running.job, state.service, state.records.status)


def with_occupancy(state: State, left: Occupancy) -> State:
    """A state with these parts."""
    return state.replace(
        free=left.free,
        shared=left.shared,
        queue=left.queue,
        running=state.running.replace(job=left.job),
        service=left.service,
        records=state.records.replace(status=left.status),
    )


def requeue(
    state: State,
    gone: Bool[Array, "P R"],
    row: Int32[Array, "P R"],
    free: Int32[Array, "P N K"],
    shared: Int16[Array, "P N K S"],
    service: Service,
) -> Occupancy:
    """Jobs in the running slots `gone` back in their queues; `row` of the job table, out of range elsewhere."""
    return Occupancy(
        free,
        shared,
        _enqueue_again(state.queue, state.running.job, gone),
        jnp.where(gone, -1, state.running.job),
        service,
        state.records.status.at[row].set(jnp.int8(WAITING), mode="drop"),
    )


def released(
    state: State, p: Int32[Array, ""], gone: Bool[Array, "R"]
) -> tuple[Int32[Array, "N K"], Int16[Array, "N K S"]]:
    """`free` and `shared` of partition `p` without the jobs in these running slots."""
    gpus = jnp.where(gone, state.running.whole_gpus[p], 0)
    free = state.free[p] + in_groups(jax.tree.map(lambda leaf: leaf[p], state.running.occupants), gpus)
    return sharing.on_stop(state, p, gone, free)


def _enqueue_again(
    queue: Int32[Array, "P Q"], job: Int32[Array, "P R"], stopped: Bool[Array, "P R"]
) -> Int32[Array, "P Q"]:
    """The queues with the stopped jobs in their first free slots, of which there are enough."""
    p = jnp.arange(queue.shape[0])[:, None]
    turn = jnp.cumsum(stopped, -1, dtype=jnp.int32)
    slot = jax.vmap(jnp.searchsorted)(jnp.cumsum(queue < 0, -1, dtype=jnp.int32), turn)
    return queue.at[p, jnp.where(stopped, slot, queue.shape[1])].set(job, mode="drop")


def _note_stops(params: EnvParams, state: State, row: Int32[Array, "P R"]) -> Service:
    """What the stopped jobs have had; `row` of the job table, out of range where none is stopped."""
    running, service = state.running, state.service
    left, low = _left_if_stopped(params, state)
    lost = (left - running.remaining_s) + (low - running.remaining_low_s)
    return note_stop(state, row, left, low).replace(
        stops=service.stops.at[row].add(1, mode="drop"), lost_s=service.lost_s.at[row].add(lost, mode="drop")
    )


def note_stop(
    state: State, row: Int32[Array, "P R"], left_s: Float32[Array, "P R"], left_low_s: Float32[Array, "P R"]
) -> Service:
    """What jobs that leave their GPUs have had and have left, whoever stopped them; `row` as of `_note_stops`."""
    running, service, at = state.running, state.service, jnp.maximum(state.running.job, 0)

    def note(old: Array, new: Array) -> Array:
        return old.at[row].set(new.astype(old.dtype), mode="drop")

    return service.replace(
        left_s=note(service.left_s, left_s),
        left_low_s=note(service.left_low_s, left_low_s),
        ran=note(service.ran, service.ran[at] + state.clock - service.since[at]),
        restarting_s=service.restarting_s.at[row].add(-running.restart_s, mode="drop"),
    )


def _left_if_stopped(params: EnvParams, state: State) -> tuple[Float32[Array, "P R"], Float32[Array, "P R"]]:
    """Ideal seconds that running jobs have left if they are stopped, and what float32 cannot hold of them."""
    left, saved = left_at_checkpoint(params, state)
    running = state.running
    return jnp.where(saved, left, running.remaining_s), jnp.where(saved, 0.0, running.remaining_low_s)


def left_at_checkpoint(params: EnvParams, state: State) -> tuple[Float32[Array, "P R"], Bool[Array, ""]]:
    """Ideal seconds that running jobs have left at their last checkpoint, and whether there are any checkpoints."""
    running, every = state.running, params.preemption.checkpoint_interval_s
    done = running.duration_s - running.remaining_s - running.remaining_low_s
    last = every * jnp.floor(done / jnp.maximum(every, 1e-9) + CHECKPOINT_TOLERANCE)
    had = running.duration_s - state.service.left_s[jnp.maximum(running.job, 0)]
    return running.duration_s - jnp.maximum(had, jnp.minimum(done, last)), every > 0
