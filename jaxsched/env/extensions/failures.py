"""Servers go out and come back, and what becomes of the jobs on them (docs/semantics.md, section 11)."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Bool, Int16, Int32, Int64

from jaxsched.cluster.hardware import Cluster
from jaxsched.cluster.outages import Outages
from jaxsched.dynamics.occupants import Occupants, by_slots
from jaxsched.env.extensions.parts import Failures, Faults, Service, no_failures
from jaxsched.env.extensions.preemption import (
    Occupancy,
    left_at_checkpoint,
    note_stop,
    occupancy_of,
    released,
    requeue,
    with_occupancy,
)
from jaxsched.env.state import Action, EnvParams, State
from jaxsched.pytree import on_device
from jaxsched.workload.jobs import NEVER, first_boundary


def failures_of(cluster: Cluster, outages: Outages, interval_s: float, horizon: int = int(NEVER)) -> Failures:
    """The boundaries at which servers of a concrete cluster go out and come back, before the `horizon`."""
    down = np.minimum(first_boundary(outages.from_s, interval_s), NEVER).astype(np.int64)
    up = np.minimum(np.maximum(first_boundary(outages.to_s, interval_s), down + 1), NEVER).astype(np.int64)
    places = np.asarray(cluster.server_id)
    found = {row: _merged(down[outages.server == row], up[outages.server == row]) for row in set(outages.server)}
    found = {row: [boundary for boundary in changes if boundary < horizon] for row, changes in found.items()}
    changes = np.full((*places.shape, 1 + max(map(len, found.values()), default=0)), NEVER, np.int32)
    for row, boundaries in found.items():
        changes[places == row, : len(boundaries)] = boundaries
    return Failures(changes=on_device(changes, np.int32))


def _merged(down: Int64[np.ndarray, "O"], up: Int64[np.ndarray, "O"]) -> list[int]:
    """Where a server's outages begin and end, in turn, those that meet or overlap as one."""
    changes: list[int] = []
    for first, last in sorted(zip(down.tolist(), up.tolist())):
        if changes and first <= changes[-1]:
            changes[-1] = max(changes[-1], last)
        else:
            changes += [first, last]
    return changes


def no_faults(params: EnvParams, jobs: int) -> Faults:
    """All servers are there, and none of so many `jobs` has been stopped; of size 0 where servers do not fail."""
    partitions, servers, _ = params.failures.changes.shape
    servers, jobs = (servers, jobs) if params.failures.there else (0, 0)
    return Faults(
        passed=jnp.zeros((partitions, servers), jnp.int32),
        count=jnp.zeros(jobs, jnp.int32),
        lost_s=jnp.zeros(jobs, jnp.float32),
    )


def allows(state: State, action: Action) -> Bool[Array, "P"]:
    """Whether each scheduler's parameter servers go only where servers are there."""
    if not state.faults.there:
        return jnp.ones_like(state.waited)
    return ((action.ps == 0) | ~state.faults.out[..., None]).all((1, 2))


def intervals_to_change(params: EnvParams, state: State, ahead: Int32[Array, ""]) -> Int32[Array, ""]:
    """So many intervals `ahead`, or fewer if a server goes out or comes back before."""
    if not state.faults.there:
        return ahead
    return jnp.minimum(ahead, next_changes(params.failures, state.faults).min() - state.clock)


def hide_failures(params: EnvParams) -> EnvParams:
    """The parameters as policies see them: nobody knows what will fail."""
    return params.replace(failures=no_failures(params.cluster))


def next_changes(failures: Failures, faults: Faults) -> Int32[Array, "P N"]:
    """The boundary at which each server goes out or comes back next."""
    return jnp.take_along_axis(failures.changes, faults.passed[..., None], -1)[..., 0]


def change_servers(params: EnvParams, state: State) -> tuple[State, Bool[Array, "P R"]]:
    """Servers go out and come back that are due at this boundary; the jobs on those that go are queued again.

    Returns the state, whose totals and slowdowns are still those before, and the running slots whose jobs have gone.
    """
    failures, faults = params.failures, state.faults
    nobody = jnp.zeros_like(state.running.job, bool)
    if not faults.there:
        return state, nobody
    due = next_changes(failures, faults) <= state.clock

    def some() -> tuple[Occupancy, Faults, Array]:
        passed = faults.passed + due
        out = passed % 2 == 1
        hit = _on(state, due & out)
        row = jnp.where(hit, state.running.job, state.jobs.arrival.shape[-1])
        free, shared = _free_gpus(params, state, hit, due, out)
        kept, felt = _fall_back(params, state, faults.replace(passed=passed), row)
        return requeue(state, hit, row, free, shared, kept), felt, hit

    left, felt, hit = lax.cond(due.any(), some, lambda: (occupancy_of(state), faults, nobody))
    return with_occupancy(state, left).replace(faults=felt), hit


def _on(state: State, gone: Bool[Array, "P N"]) -> Bool[Array, "P R"]:
    """Running jobs with a task on one of these servers."""

    def in_partition(jobs: Occupants, gone: Array) -> Array:
        return by_slots(jobs, jnp.broadcast_to(gone[:, None, None], jobs.slot.shape)).any((-1, -2))

    return (state.running.job >= 0) & jax.vmap(in_partition)(state.running.occupants, gone)


def _free_gpus(
    params: EnvParams, state: State, hit: Bool[Array, "P R"], due: Bool[Array, "P N"], out: Bool[Array, "P N"]
) -> tuple[Int32[Array, "P N K"], Int16[Array, "P N K S"]]:
    """`free` and `shared` without the jobs `hit`; servers that are out have none, those that are back have all."""
    free, shared = jax.vmap(released, (None, 0, 0))(state, jnp.arange(len(hit)), hit)
    free = jnp.where((due & ~out)[..., None], params.cluster.group_gpus, free)
    return jnp.where(out[..., None], 0, free), shared


def _fall_back(params: EnvParams, state: State, faults: Faults, row: Int32[Array, "P R"]) -> tuple[Service, Faults]:
    """What jobs have had and lost that fall back to their last checkpoints; `row` out of range where none does."""
    running, service, at = state.running, state.service, jnp.maximum(state.running.job, 0)
    left, saved = left_at_checkpoint(params, state)
    left = jnp.where(saved, left, service.left_s[at])
    low = jnp.where(saved, 0.0, service.left_low_s[at])
    lost = (left - running.remaining_s) + (low - running.remaining_low_s)
    faults = faults.replace(
        count=faults.count.at[row].add(1, mode="drop"), lost_s=faults.lost_s.at[row].add(lost, mode="drop")
    )
    return note_stop(state, row, left, low), faults
