"""From pods and nodes to the simulator's arrays: pending gangs become queues, running pods the Running state.

So the same observation is made of a live cluster as of a simulated one, and any registered policy acts on it.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Bool, Float32, Int8, Int32, Int64, PyTree

from jaxsched.cluster.hardware import partition_axes
from jaxsched.dynamics.footprint import Footprint, JobSpec, best_hardware, footprint
from jaxsched.dynamics.occupants import Occupants, with_job
from jaxsched.env.clock import refresh
from jaxsched.env.environment import initial_state
from jaxsched.env.state import EnvConfig, EnvParams, State
from jaxsched.kube.capacity.fleet import Fleet
from jaxsched.kube.capacity.running import RunningPart
from jaxsched.kube.read.gangs import Gang
from jaxsched.kube.read.settings import PlanSettings
from jaxsched.pytree import Pytree
from jaxsched.workload.jobs import NEVER, JobTable

LEAST_LEFT = 0.05  # of a running gang's stated duration that is taken to be left once it has run longer than that
RESERVED = 4  # one running slot in so many is kept for gangs that a plan starts


class StateArrays(Pytree):
    """Host arrays for `to_state`; Q and R as in the environment, J = P (Q + R) rows: pending gangs, then running."""

    jobs: JobTable
    queue: Int32[np.ndarray, "P Q"]
    running_row: Int32[np.ndarray, "P R"]  # -1 = free slot
    running_workers: Int8[np.ndarray, "P R N K"]
    remaining_s: Float32[np.ndarray, "P R"]
    attained_s: Float32[np.ndarray, "V"]


def build_arrays(
    fleet: Fleet,
    settings: PlanSettings,
    queues: Sequence[Sequence[Gang]],
    running: Sequence[RunningPart],
    tenants: dict[str, int],
    merged: bool,
    now_s: float,
) -> tuple[StateArrays, list[Gang]]:
    """Show a live cluster as the simulator's arrays.

    Args:
        fleet: The GPU nodes.
        settings: Sizes of the arrays.
        queues: Pending gangs of each partition, at most `queue_slots`.
        running: What runs; the smallest parts beyond `running_slots` are seen as taken GPUs only.
        tenants: Index of each namespace, 0..V-1.
        merged: The GPU groups of a node count as one.
        now_s: Seconds since 1970.

    Returns:
        The arrays, and the gangs of the first rows of the job table.
    """
    p, q, r = fleet.shape.partitions, settings.queue_slots, settings.running_slots
    gangs = sorted((gang for queue in queues for gang in queue), key=lambda gang: (gang.submit_s, gang.key))
    jobs = blank_jobs(p * (q + r))
    for row, gang in enumerate(gangs):
        _fill_times(jobs, row, max(now_s - gang.submit_s, 0.0), gang.duration_s, settings.interval_s)
        jobs.workers[row], jobs.gpus_per_worker[row] = len(gang.workers), gang.gpus_per_worker
        jobs.ps[row], jobs.model[row], jobs.tenant[row] = len(gang.ps), gang.model, tenants[gang.namespace]
    row_of = {gang.key: row for row, gang in enumerate(gangs)}
    arrays = StateArrays(
        jobs=jobs,
        queue=np.full((p, q), -1, np.int32),
        running_row=np.full((p, r), -1, np.int32),
        running_workers=np.zeros((p, r, fleet.shape.servers, fleet.shape.groups), np.int8),
        remaining_s=np.zeros((p, r), np.float32),
        attained_s=np.zeros(settings.tenants, np.float32),
    )
    for partition, queue in enumerate(queues):
        arrays.queue[partition, : len(queue)] = [row_of[gang.key] for gang in queue]
    _fill_running(arrays, running, tenants, merged, settings.interval_s)
    return arrays, gangs


def blank_state(config: EnvConfig, params: EnvParams, settings: PlanSettings) -> State:
    """An empty cluster with a job table of P (Q + R) rows that never arrive."""
    size = params.cluster.group_gpus.shape[0] * (settings.queue_slots + settings.running_slots)
    return initial_state(config, params, jax.tree.map(jnp.asarray, blank_jobs(size)))


def to_state(params: EnvParams, blank: State, arrays: StateArrays) -> State:
    """The environment's state of a live cluster; jit-able. GPUs (`free`) are put in with every decision."""
    jobs = jax.tree.map(jnp.asarray, arrays.jobs)
    row = jnp.maximum(arrays.running_row, 0)
    spec = JobSpec(
        workers=jobs.workers[row],
        gpus_per_worker=jobs.gpus_per_worker[row],
        ps=jnp.zeros_like(row),
        model=jobs.model[row],
    )
    workers = jnp.asarray(arrays.running_workers)
    best = best_hardware(params.cluster)
    of_partition = jax.vmap(footprint, in_axes=(None, None, None, 0, 0, 0))
    prints = jax.vmap(of_partition, in_axes=(partition_axes(params.cluster), None, None, 0, 0, 0))(
        params.cluster, best, params.profiles, spec, workers.astype(jnp.int32), jnp.zeros(workers.shape, jnp.int32)
    )
    running = blank.running.replace(
        job=jnp.asarray(arrays.running_row),
        gpus_per_worker=spec.gpus_per_worker,
        duration_s=jobs.duration_s[row],
        remaining_s=jnp.asarray(arrays.remaining_s),
        occupants=jax.vmap(_seat)(blank.running.occupants, jnp.asarray(arrays.running_row) >= 0, prints, workers),
    )
    state = blank.replace(
        jobs=jobs, queue=jnp.asarray(arrays.queue), running=running, attained_s=jnp.asarray(arrays.attained_s)
    )
    return refresh(params, state)


def _seat(occupants: Occupants, there: Bool[Array, "R"], jobs: Footprint, workers: Int8[Array, "R N K"]) -> Occupants:
    """The occupants of an empty partition with the jobs that are `there`, leading axis R, one after the other."""
    slots = jnp.where(there, jnp.arange(len(there)), len(there))

    def seat(occupants: Occupants, one: tuple[Array, Footprint, Array]) -> tuple[Occupants, None]:
        slot, job, workers = one
        return with_job(occupants, there, slot, job, workers, jnp.zeros_like(workers)), None

    return lax.scan(seat, occupants, (slots, jobs, workers))[0]


def all_finite(tree: PyTree) -> Bool[Array, ""]:
    """No floating leaf holds NaN or an infinity."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return jnp.stack([jnp.isfinite(leaf).all() for leaf in leaves]).all()


def blank_jobs(size: int) -> JobTable:
    """Rows that never arrive, on the host. Estimates are the durations: nothing else is known of a live cluster."""
    columns: dict[str, Any] = {name: np.zeros(size, np.int32) for name in ("ps", "model", "tenant", "home")}
    columns |= {name: np.ones(size, np.int32) for name in ("workers", "gpus_per_worker")}
    columns["arrival"], columns["milli"] = np.full(size, NEVER, np.int32), np.zeros(0, np.int32)
    columns["allowed"] = np.zeros(0, np.int32)
    columns["lead_s"] = np.zeros(size, np.float32)
    columns["duration_s"] = columns["estimate_s"] = np.ones(size, np.float32)
    return JobTable(**columns)


def take_rows(jobs: JobTable, rows: Int64[np.ndarray, "rows"]) -> JobTable:
    """Some rows of a table on the host; what no job has (columns of size 0) stays so."""
    return jax.tree.map(lambda column: column[rows] if len(column) else column, jobs)


def _fill_times(jobs: JobTable, row: int, age_s: float, duration_s: float, interval_s: float) -> None:
    """A job that was submitted, or began, `age_s` ago."""
    intervals = int(min(age_s / interval_s, 2**30))
    jobs.arrival[row] = -intervals
    jobs.lead_s[row] = min(max(age_s - intervals * interval_s, 0.0), interval_s * 0.999)
    jobs.duration_s[row] = duration_s


def _fill_running(
    arrays: StateArrays, running: Sequence[RunningPart], tenants: dict[str, int], merged: bool, interval_s: float
) -> None:
    """Running slots and the last rows of the job table, larger gangs first."""
    jobs, (p, r) = arrays.jobs, arrays.running_row.shape
    filled, row = [0] * p, arrays.queue.size
    for part in sorted(running, key=lambda part: -part.gpus):
        arrays.attained_s[tenants[part.namespace]] += part.gpus * part.elapsed_s
        slot = part.partition, filled[part.partition]
        if slot[1] >= r - max(1, r // RESERVED):
            continue  # the smallest ones are seen as taken GPUs only
        _fill_times(jobs, row, part.elapsed_s, part.duration_s, interval_s)
        jobs.workers[row], jobs.model[row], jobs.tenant[row] = part.gpus, part.model, tenants[part.namespace]
        arrays.running_row[slot] = row
        arrays.running_workers[slot] = part.merged_workers() if merged else part.workers
        arrays.remaining_s[slot] = max(part.duration_s - part.elapsed_s, LEAST_LEFT * part.duration_s)
        filled[part.partition] += 1
        row += 1
