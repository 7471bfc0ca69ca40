"""How the state changes: arrivals, one round of actions, and the clock (docs/semantics.md, section 6)."""

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxsched.dynamics.contention import totals
from jaxsched.cluster.hardware import partition_axes
from jaxsched.dynamics.resources import layout_of
from jaxsched.dynamics.speed import best_hardware, footprint, slowdown
from jaxsched.env.reward import Flow, flow_rate, no_flow
from jaxsched.env.state import (
    FINISHED,
    FORWARD,
    PLACE,
    REJECTED,
    RUNNING,
    Action,
    EnvConfig,
    EnvParams,
    State,
    could_hold,
    job_spec,
)
from jaxsched.workload.jobs import NEVER

WORK_TOLERANCE = 1e-6  # of a job's duration; what is left below this is float noise
LONGEST_SKIP = 2**20  # intervals advanced at once; keeps clock and offsets far from int32 and float32 limits


def refresh(config: EnvConfig, params: EnvParams, state: State) -> State:
    """State with totals and slowdowns recomputed for the jobs that run now."""
    active = state.running.job >= 0
    total = totals(params.cluster, state.running.print.use, active)
    layout = layout_of(params.cluster)
    rate = slowdown(config.interference, params.interference, layout, state.running.print, total[:, None, :])
    return state.replace(total=total, running=state.running.replace(slowdown=jnp.where(active, rate, 1.0)))


def kahan_add(high: Array, low: Array, change: Array) -> tuple[Array, Array]:
    """`high + low + change` as a new (high, low) pair; the true sum is `high + low` (Kahan, 1965)."""
    change = change + low
    total = high + change
    return total, change - (total - high)


def admit(state: State, enabled: Array | bool = True) -> State:
    """Queue every job that has arrived by the state's clock, if `enabled`; jobs that fit nowhere are rejected."""
    jobs = state.jobs
    last = jobs.arrival.shape[-1] - 1

    def due(state: State) -> Array:
        row = jnp.minimum(state.next_job, last)
        return enabled & (state.next_job <= last) & (jobs.arrival[row] <= state.clock)

    def admissible(state: State) -> Array:
        home = jobs.home[jnp.minimum(state.next_job, last)]
        return due(state) & ((home < 0) | (state.queue[jnp.maximum(home, 0)] < 0).any())

    def body(state: State) -> State:
        row, home = state.next_job, jobs.home[state.next_job]
        slot = jnp.argmax(state.queue[jnp.maximum(home, 0)] < 0)
        column = jnp.where(home < 0, state.queue.shape[-1], slot)
        status = jnp.where(home < 0, REJECTED, state.records.status[row]).astype(jnp.int8)
        return state.replace(
            queue=state.queue.at[home, column].set(row, mode="drop"),
            records=state.records.replace(status=state.records.status.at[row].set(status)),
            next_job=row + 1,
        )

    state = lax.while_loop(admissible, body, state)
    longest = (state.queue >= 0).sum(-1, dtype=jnp.int32).max()
    return state.replace(
        backlogged=state.backlogged + due(state), peak_queue=jnp.maximum(state.peak_queue, longest)
    )


def _start(config: EnvConfig, params: EnvParams, state: State, action: Action) -> tuple[State, Array]:
    """Start the gangs that `action` places; also bool[P], which placements were legal."""
    cluster, running, records = params.cluster, state.running, state.records
    p = jnp.arange(cluster.group_gpus.shape[0])
    row = state.queue[p, action.slot]
    job = job_spec(state.jobs, row)
    slot = jnp.argmax(running.job < 0, axis=-1)

    taken = action.workers * job.gpus_per_worker[:, None, None]
    legal = (action.kind == PLACE) & ~state.waited & (row >= 0)
    legal &= (running.job[p, slot] < 0) & (action.workers >= 0).all((1, 2)) & (action.ps >= 0).all((1, 2))
    legal &= (action.workers.sum((1, 2)) == job.workers) & (action.ps.sum((1, 2)) == job.ps)
    legal &= (taken <= state.free).all((1, 2)) & ((action.ps == 0) | (cluster.group_gpus > 0)).all((1, 2))

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
        print=jax.tree.map(put, running.print, prints),
    )
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
    gpus = jnp.where(legal, job.workers * job.gpus_per_worker, 0)
    tenant = state.jobs.tenant[jnp.maximum(row, 0)]
    state = state.replace(
        free=state.free - jnp.where(legal[:, None, None], taken, 0),
        queue=state.queue.at[p, jnp.where(legal, action.slot, state.queue.shape[-1])].set(-1, mode="drop"),
        running=running,
        records=records,
        tenant_gpus=state.tenant_gpus.at[tenant].add(gpus, mode="drop"),
    )
    return state, legal


def _forward(params: EnvParams, state: State, action: Action) -> tuple[State, Array]:
    """Move the forwarded jobs between queues, lower numbered schedulers first; also bool[P], which were legal."""
    partitions, slots = state.queue.shape
    p = jnp.arange(partitions)
    row = state.queue[p, action.slot]
    job = job_spec(state.jobs, row)
    fits = could_hold(params.cluster, job.workers, job.gpus_per_worker)[p, action.target]
    legal = (action.kind == FORWARD) & ~state.waited & (row >= 0) & (action.target != p) & fits
    legal &= state.records.forwards[jnp.maximum(row, 0)] < params.max_forwards
    room = (state.queue < 0).sum(-1)
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


def act(config: EnvConfig, params: EnvParams, state: State, action: Action) -> State:
    """One decision round: placements, then forwards; a scheduler that did neither legally has waited."""
    waiting = state.waited
    state, placed = _start(config, params, state, action)
    state, forwarded = _forward(params, state, action)
    acted = placed | forwarded
    refused = ((action.kind == PLACE) | (action.kind == FORWARD)) & ~acted & ~waiting
    state = state.replace(
        waited=waiting | ~acted, round=state.round + 1, illegal=state.illegal + refused.sum(dtype=jnp.int32)
    )
    return refresh(config, params, state)


def intervals_ahead(config: EnvConfig, params: EnvParams, state: State) -> Array:
    """int32: how many intervals the clock may advance at once: 1, or up to the next arrival while no job is queued."""
    if not config.skip_idle:
        return jnp.int32(1)
    last = state.jobs.arrival.shape[-1] - 1
    following = jnp.where(state.next_job <= last, state.jobs.arrival[jnp.minimum(state.next_job, last)], NEVER)
    idle = jnp.minimum(jnp.minimum(following, params.horizon) - state.clock, LONGEST_SKIP)
    return jnp.where((state.queue >= 0).any(), 1, jnp.maximum(idle, 1)).astype(jnp.int32)


def advance(config: EnvConfig, params: EnvParams, state: State, intervals: Array) -> tuple[State, Flow]:
    """Run the cluster for `intervals: int32` intervals (0: nothing happens), completion by completion.

    Returns the state at the new boundary, with totals and slowdowns current, and what flowed on the way.
    """
    length = intervals.astype(jnp.float32) * params.interval_s
    tenants = jnp.arange(config.tenants)

    def unfinished(carry) -> Array:
        state, elapsed, _ = carry
        return (elapsed < length) & (state.running.job >= 0).any()

    def until_next_completion(carry):
        state, elapsed, flow = carry
        running = state.running
        active = running.job >= 0
        left = (running.remaining_s + running.remaining_low_s) * running.slowdown
        step = jnp.minimum(jnp.where(active, left, jnp.inf).min(), length - elapsed)
        last = step >= length - elapsed
        rate = flow_rate(state)
        share = step / params.interval_s
        flow = Flow(
            jobs=flow.jobs + share * rate.jobs,
            lost=flow.lost + share * rate.lost,
            progress=flow.progress + step * rate.progress,
        )

        high, low = kahan_add(running.remaining_s, running.remaining_low_s, -step / running.slowdown)
        finished = active & (high + low <= WORK_TOLERANCE * running.duration_s)
        elapsed = jnp.where(last, length, elapsed + step)

        row = jnp.where(finished, running.job, state.jobs.arrival.shape[-1])
        records = state.records
        records = records.replace(
            status=records.status.at[row].set(jnp.int8(FINISHED), mode="drop"),
            finish=records.finish.at[row].set(state.clock, mode="drop"),
            finish_offset_s=records.finish_offset_s.at[row].set(elapsed, mode="drop"),
        )
        gpus = running.workers.sum((-1, -2), dtype=jnp.int32) * running.gpus_per_worker
        tenant = state.jobs.tenant[jnp.maximum(running.job, 0)]
        freed = jnp.where(finished[..., None] & (tenant[..., None] == tenants), gpus[..., None], 0).sum((0, 1))
        attained, attained_low = kahan_add(state.attained_s, state.attained_low_s, step * state.tenant_gpus)
        state = state.replace(
            running=running.replace(
                job=jnp.where(finished, -1, running.job), remaining_s=high, remaining_low_s=low
            ),
            records=records,
            attained_s=attained,
            attained_low_s=attained_low,
            tenant_gpus=state.tenant_gpus - freed,
        )
        return refresh(config, params, state), elapsed, flow

    state, elapsed, flow = lax.while_loop(
        unfinished, until_next_completion, (state, jnp.float32(0.0), no_flow(state))
    )
    rest = (length - elapsed) / params.interval_s  # nothing runs any more, but jobs may be queued
    queued = (state.queue >= 0).sum(-1)
    flow = flow.replace(jobs=flow.jobs + rest * queued, lost=flow.lost + rest * queued)
    running = state.running
    held = jnp.where(running.job >= 0, running.gpus_per_worker, 0)
    used = jnp.einsum("pr,prnk->pnk", held, running.workers.astype(jnp.int32))
    return state.replace(
        free=params.cluster.group_gpus - used,
        clock=state.clock + intervals,
    ), flow
