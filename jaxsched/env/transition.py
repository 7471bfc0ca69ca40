"""How the state changes: arrivals, one round of actions, and the clock (docs/semantics.md, section 6)."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxsched.cluster.hardware import group_capacity, partition_axes
from jaxsched.dynamics.batching import only_where, with_shared
from jaxsched.dynamics.gpu_sharing import Sharers
from jaxsched.dynamics.speed import Footprint, best_hardware, footprint
from jaxsched.env import shares
from jaxsched.env.load import Load, load_of, sharers_of
from jaxsched.env.queues import feasible, movable
from jaxsched.env.reward import Flow, add_flow, flow_rate, no_flow
from jaxsched.env.state import (
    ALWAYS,
    FINISHED,
    FORWARD,
    PLACE,
    POSSIBLE,
    RUNNING,
    Action,
    EnvConfig,
    EnvParams,
    State,
    job_spec,
)
from jaxsched.pytree import Pytree
from jaxsched.semantics import WORK_TOLERANCE
from jaxsched.workload.jobs import NEVER

LONGEST_SKIP = 2**10  # intervals advanced at once: seconds are float32, 0.004 s apart at 17 hours


class Moment(Pytree):
    """What changes between two boundaries; shapes as in `State`."""

    active: Array  # bool[P, R]
    remaining_s: Array
    remaining_low_s: Array
    load: Load
    elapsed_s: Array  # float32, since the boundary
    finish_offset_s: Array  # float32[P, R], of the jobs that finished
    attained_s: Array
    attained_low_s: Array
    flow: Flow


class Still(Pytree):
    """What does not change between two boundaries."""

    duration_s: Array  # float32[P, R]
    gpus_per_worker: Array  # int32[P, R], whole ones
    of_tenant: Array  # int32[P, R, V], or float32 with shared GPUs: GPUs that the job holds, in its tenant's place
    sharers: Sharers | None  # leaves [P, R]
    queued: Array  # float32[P]
    started: Array  # bool[P, R], jobs of which the load does not know yet
    length_s: Array  # float32, how long to run


def kahan_add(high: Array, low: Array, change: Array) -> tuple[Array, Array]:
    """`high + low + change` as a new (high, low) pair; the true sum is `high + low` (Kahan, 1965)."""
    change = change + low
    total = high + change
    return total, change - (total - high)


def admit(state: State, enabled: Array | bool = True) -> State:
    """Queue every job that has arrived by the state's clock, if `enabled`; jobs that fit nowhere are rejected."""
    jobs = state.jobs
    last = jobs.arrival.shape[-1] - 1

    def due(next_job: Array) -> Array:
        return enabled & (next_job <= last) & (jobs.arrival[jnp.minimum(next_job, last)] <= state.clock)

    def admissible(carry: tuple[Array, Array]) -> Array:
        queue, next_job = carry
        home = jobs.home[jnp.minimum(next_job, last)]
        return due(next_job) & ((home < 0) | (queue[jnp.maximum(home, 0)] < 0).any())

    def admit_one(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        queue, row = carry
        home = jobs.home[row]
        slot = jnp.argmax(queue[jnp.maximum(home, 0)] < 0)
        column = jnp.where(home < 0, queue.shape[-1], slot)
        return queue.at[home, column].set(row, mode="drop"), row + 1

    queue, next_job = lax.while_loop(admissible, admit_one, (state.queue, state.next_job))
    longest = (queue >= 0).sum(-1, dtype=jnp.int32).max()
    return state.replace(
        queue=queue,
        next_job=next_job,
        backlogged=state.backlogged + due(next_job),
        peak_queue=jnp.maximum(state.peak_queue, longest),
    )


def _in_range(index: Array, size: int) -> Array:
    """bool: JAX would clamp an index out of range to a legal one."""
    return (index >= 0) & (index < size)


def _start(config: EnvConfig, params: EnvParams, state: State, action: Action) -> tuple[State, Array]:
    """Start the gangs that `action` places; also bool[P], which placements were legal."""
    cluster, running, records = params.cluster, state.running, state.records
    p = jnp.arange(cluster.group_gpus.shape[0])
    row = state.queue[p, action.slot]
    job = job_spec(state.jobs, row)
    slot = jnp.argmax(running.job < 0, axis=-1)

    taken = action.workers * job.gpus_per_worker[:, None, None]
    gpu = None
    if state.shared is not None:
        flat = [leaf.reshape(len(p), -1, *leaf.shape[3:]) for leaf in (state.free, state.shared, action.workers)]
        gpu, fits = jax.vmap(shares.gpu_for)(*flat, job.milli)
        taken = jnp.where(gpu[:, None, None] >= 0, 0, taken)
    legal = (action.kind == PLACE) & ~state.waited & (row >= 0) & _in_range(action.slot, state.queue.shape[1])
    legal &= (running.job[p, slot] < 0) & (action.workers >= 0).all((1, 2)) & (action.ps >= 0).all((1, 2))
    legal &= (action.workers.sum((1, 2)) == job.workers) & (action.ps.sum((1, 2)) == job.ps)
    legal &= (taken <= state.free).all((1, 2)) & ((action.ps == 0) | (cluster.group_gpus > 0)).all((1, 2))

    if gpu is not None:
        legal &= fits

    best = best_hardware(cluster)
    prints = jax.vmap(footprint, in_axes=(partition_axes(cluster), None, None, 0, 0, 0))(
        cluster, best, params.profiles, job, action.workers, action.ps
    )

    r = jnp.where(legal, slot, running.job.shape[-1])
    j = jnp.where(legal, row, state.jobs.arrival.shape[-1])

    def put(old: Array, new: Array) -> Array:
        return old.at[p, r].set(new.astype(old.dtype), mode="drop")

    def note(old: Array, new: Array) -> Array:
        return old.at[j].set(new.astype(old.dtype), mode="drop")

    duration = state.jobs.duration_s[jnp.maximum(row, 0)]
    running = running.replace(
        job=put(running.job, row),
        workers=put(running.workers, action.workers),
        ps=put(running.ps, action.ps),
        gpus_per_worker=put(running.gpus_per_worker, job.gpus_per_worker),
        duration_s=put(running.duration_s, duration),
        remaining_s=put(running.remaining_s, duration),
        remaining_low_s=put(running.remaining_low_s, jnp.zeros_like(duration)),
        print=jax.tree.map(lambda old, new: old.at[p, ..., r].set(new, mode="drop"), running.print, prints),
    )
    free, shared = state.free - jnp.where(legal[:, None, None], taken, 0), state.shared
    if gpu is not None:
        running = running.replace(gpu=put(running.gpu, gpu))
        shared, whole = shares.take(shared, jnp.where(legal, gpu, -1), job.milli)
        free += whole
    records = records.replace(
        status=note(records.status, jnp.full_like(row, RUNNING)),
        partition=note(records.partition, p),
        start=note(records.start, jnp.full_like(row, state.clock)),
    )
    if config.record_placements:
        records = records.replace(
            workers=note(records.workers, action.workers.reshape(len(p), -1)),
            ps=note(records.ps, action.ps.reshape(len(p), -1)),
        )
    state = state.replace(
        free=free,
        shared=shared,
        queue=state.queue.at[p, jnp.where(legal, action.slot, state.queue.shape[-1])].set(-1, mode="drop"),
        running=running,
        records=records,
    )
    return state, legal


def _forward(params: EnvParams, state: State, action: Action, room: Array) -> tuple[State, Array]:
    """Move the forwarded jobs between queues, lower numbered schedulers first; also bool[P], which were legal.

    Args: `room: int32[P]`, free queue slots before the round.
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
    earlier = (p[:, None] > p[None, :]) & (action.target[:, None] == action.target[None, :]) & legal[None, :]
    legal &= earlier.sum(-1) < room[action.target]

    def body(carry):
        queue, left = carry
        source = jnp.argmax(left)
        target = action.target[source]
        slot = jnp.argmax(queue[target] < 0)
        queue = queue.at[target, slot].set(row[source])
        return queue, left.at[source].set(False)

    emptied = state.queue.at[p, jnp.where(legal, action.slot, slots)].set(-1, mode="drop")
    queue, _ = lax.while_loop(lambda carry: carry[1].any(), body, (emptied, legal))
    moved = jnp.where(legal, row, state.records.forwards.shape[-1])
    forwards = state.records.forwards.at[moved].add(jnp.int8(1), mode="drop")
    return state.replace(queue=queue, records=state.records.replace(forwards=forwards)), legal


def act(config: EnvConfig, params: EnvParams, state: State, action: Action) -> tuple[State, Array]:
    """One decision round: placements, then forwards; a scheduler that did neither legally has waited.

    Returns the state, whose totals and slowdowns are still those before the round, and the jobs started, `bool[P, R]`.
    """
    waiting = state.waited
    room = (state.queue < 0).sum(-1)
    running = state.running.job
    state, placed = _start(config, params, state, action)
    started = state.running.job != running
    state, forwarded = _forward(params, state, action, room)
    acted = placed | forwarded
    refused = ((action.kind == PLACE) | (action.kind == FORWARD)) & ~acted & ~waiting
    state = state.replace(
        waited=waiting | ~acted, round=state.round + 1, illegal=state.illegal + refused.sum(dtype=jnp.int32)
    )
    return state, started


def intervals_ahead(config: EnvConfig, params: EnvParams, state: State) -> Array:
    """int32: how many intervals the clock may advance at once: 1, or up to the next arrival while no job is queued.

    Where jobs are queued, but no scheduler did anything at this boundary, none of the next ones differs until a job
    arrives or ends. A policy whose choice does not depend on time need only be asked after that (`CHANGE`); one that
    would rather wait than take what there is, also while something is possible (`POSSIBLE`): some queued job could
    start, or be forwarded to where it could.
    """
    if not config.skip_idle:
        return jnp.int32(1)
    last = state.jobs.arrival.shape[-1] - 1
    following = jnp.where(state.next_job <= last, state.jobs.arrival[jnp.minimum(state.next_job, last)], NEVER)
    arrival = jnp.minimum(jnp.minimum(following, params.horizon) - state.clock, LONGEST_SKIP)
    queued = (state.queue >= 0).any()
    ahead = jnp.where(queued, 1, arrival)
    if config.asked != ALWAYS:
        same = queued & (state.round == 1) & state.waited.all()
        if config.asked == POSSIBLE:
            same = lax.cond(same, lambda: ~_something_possible(config, params, state), lambda: same)
        ahead = jnp.where(same, jnp.minimum(arrival, _intervals_to_completion(params, state)), ahead)
    return jnp.maximum(ahead, 1).astype(jnp.int32)


def _something_possible(config: EnvConfig, params: EnvParams, state: State) -> Array:
    """bool: some queued job could start, or be forwarded to where it could."""
    can_start = feasible(config, state)
    return can_start.any() | movable(config, state, params, can_start).any()


def _intervals_to_completion(params: EnvParams, state: State) -> Array:
    """int32: whole intervals before the next completion, rather one too few than one too many, at most LONGEST_SKIP."""
    running = state.running
    left = (running.remaining_s + running.remaining_low_s) * running.slowdown
    first = jnp.where(running.job >= 0, left, jnp.inf).min()
    return jnp.floor(jnp.minimum(first / params.interval_s * (1.0 - 1e-6), LONGEST_SKIP)).astype(jnp.int32)


def advance(config: EnvConfig, params: EnvParams, state: State, started: Array, intervals: Array) -> tuple[State, Flow]:
    """Run the cluster for `intervals: int32` intervals (0: no time passes), completion by completion.

    Args: `started: bool[P, R]`, jobs that have started since totals and slowdowns were computed.
    Returns the state at the new boundary, with totals and slowdowns current, and what flowed on the way.
    """
    running = state.running
    row = jnp.maximum(running.job, 0)
    held, tenant = state.jobs.workers[row] * running.gpus_per_worker, state.jobs.tenant[row]
    sharers, gpus_per_worker = None, running.gpus_per_worker
    if state.shared is not None:
        held, sharers = shares.gpus_of(state.jobs, row), sharers_of(params, state)
        gpus_per_worker = jnp.where(sharers.gpu >= 0, 0, gpus_per_worker)
    queued = (state.queue >= 0).sum(-1).astype(jnp.float32)
    start = Moment(
        active=running.job >= 0,
        remaining_s=running.remaining_s,
        remaining_low_s=running.remaining_low_s,
        load=Load(own=state.own, total=state.total, slowdown=running.slowdown, stretch=running.stretch),
        elapsed_s=jnp.float32(0.0),
        finish_offset_s=jnp.zeros_like(running.remaining_s),
        attained_s=state.attained_s,
        attained_low_s=state.attained_low_s,
        flow=no_flow(queued),
    )
    still = Still(
        duration_s=running.duration_s,
        gpus_per_worker=gpus_per_worker,
        sharers=sharers,
        of_tenant=jnp.where(tenant[..., None] == jnp.arange(config.tenants), held[..., None], 0),
        queued=queued,
        started=started,
        length_s=intervals.astype(jnp.float32) * params.interval_s,
    )
    end, freed = with_shared(functools.partial(_run, config))((running.print, running.workers), params, start, still)

    finished = (running.job >= 0) & ~end.active
    shared = state.shared
    if shared is not None:
        shared, whole = shares.take(shared, jnp.where(finished, running.gpu, -1), -state.jobs.milli[row])
        freed += whole
    row = jnp.where(finished, running.job, state.jobs.arrival.shape[-1])
    records = state.records.replace(
        status=state.records.status.at[row].set(jnp.int8(FINISHED), mode="drop"),
        finish=state.records.finish.at[row].set(state.clock, mode="drop"),
        finish_offset_s=state.records.finish_offset_s.at[row].set(end.finish_offset_s, mode="drop"),
    )
    state = state.replace(
        clock=state.clock + intervals,
        free=state.free + freed,
        shared=shared,
        running=running.replace(
            job=jnp.where(finished, -1, running.job),
            remaining_s=end.remaining_s,
            remaining_low_s=end.remaining_low_s,
            slowdown=end.load.slowdown,
            stretch=end.load.stretch,
        ),
        attained_s=end.attained_s,
        attained_low_s=end.attained_low_s,
        own=end.load.own,
        total=end.load.total,
        records=records,
    )
    return state, end.flow


def refresh(config: EnvConfig, params: EnvParams, state: State) -> State:
    """The state with its load computed anew, whatever it was."""
    return advance(config, params, state, jnp.ones_like(state.running.job, bool), jnp.int32(0))[0]


def _run(
    config: EnvConfig,
    placed_at: Callable[[Array], tuple[Footprint, Array]],
    params: EnvParams,
    start: Moment,
    still: Still,
) -> tuple[Moment, Array]:
    """The moment after `still.length_s`, from one whose load does not know of the jobs just placed.

    Also the GPUs that became free, `int32[P, N, K]`. `placed_at`: from a partition to the footprints in its running
    slots, slots last, and to their workers, `int8[R, N, K]`.
    """
    length = still.length_s
    load_when = functools.partial(load_of, config, params, lambda p: placed_at(p)[0])

    # The loop carries only what changes between completions: under vmap every carried leaf is copied in every turn.
    def unfinished(moment: Moment) -> Array:
        return (moment.elapsed_s < length) & moment.active.any()

    def until_next_completion(moment: Moment) -> Moment:
        slow = moment.load.slowdown
        left = (moment.remaining_s + moment.remaining_low_s) * slow
        step = jnp.minimum(jnp.where(moment.active, left, jnp.inf).min(), length - moment.elapsed_s)
        elapsed = jnp.where(step >= length - moment.elapsed_s, length, moment.elapsed_s + step)
        rate = flow_rate(moment.active, slow, still.duration_s, still.queued, params.reward.interference)
        high, low = kahan_add(moment.remaining_s, moment.remaining_low_s, -step / slow)
        finished = moment.active & (high + low <= WORK_TOLERANCE * still.duration_s)
        active = moment.active & ~finished
        holding = jnp.where(moment.active[..., None], still.of_tenant, 0).sum((0, 1))
        attained, attained_low = kahan_add(moment.attained_s, moment.attained_low_s, step * holding)
        return Moment(
            active=active,
            remaining_s=high,
            remaining_low_s=low,
            load=load_when(active, finished, moment.load, still.sharers),
            elapsed_s=elapsed,
            finish_offset_s=jnp.where(finished, elapsed, moment.finish_offset_s),
            attained_s=attained,
            attained_low_s=attained_low,
            flow=add_flow(moment.flow, rate, step, params.interval_s),
        )

    start = start.replace(load=load_when(start.active, still.started, start.load, still.sharers))
    end = lax.while_loop(unfinished, until_next_completion, start)
    rest = length - end.elapsed_s  # nothing runs any more, but jobs may be queued
    idle = flow_rate(jnp.zeros_like(end.active), end.load.slowdown, still.duration_s, still.queued, True)
    finished = start.active & ~end.active

    def freed_in(p: Array) -> Array:
        gpus = jnp.where(finished[p], still.gpus_per_worker[p], 0)
        return jnp.einsum("r,rnk->nk", gpus, placed_at(p)[1].astype(jnp.int32))

    none = jnp.zeros(params.cluster.shape[1:], jnp.int32)
    freed = only_where(finished.any(-1), freed_in, lambda p: none)
    return end.replace(flow=add_flow(end.flow, idle, rest, params.interval_s)), freed
