"""Jobs of a trace's past, or of training worlds, drawn again within a program at the load that is asked for."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float32, Int32, PRNGKeyArray

from jaxsched.cluster.hardware import Cluster, total_gpus
from jaxsched.dynamics.reference import on_reference, profiles_on
from jaxsched.errors import UserError
from jaxsched.pytree import Pytree, on_device
from jaxsched.simulation.settings import fits_somewhere
from jaxsched.workload.jobs import WHOLE, JobList, JobTable, ask_for_more, take
from jaxsched.workload.load import SYNTHETIC, WorkloadOptions, get_workload
from jaxsched.workload.models import CATALOGUE

FEWEST_JOBS = 20
LATEST = 2**30  # boundary


class Past(Pytree):
    """The jobs, in order of submission."""

    gap_s: Float32[Array, "J"]  # since the job before; of the first one the mean
    duration_s: Float32[Array, "J"]  # on the reference type of the cluster
    workers: Int32[Array, "J"]
    gpus_per_worker: Int32[Array, "J"]
    ps: Int32[Array, "J"]
    model: Int32[Array, "J"]
    tenant: Int32[Array, "J"]
    home: Int32[Array, "J"]


def read_past(trace: str, until: float, trace_gpu: str, cluster: Cluster) -> Past:
    """The jobs of the trace before `until` that fit the cluster, see the options of a run's workload.

    UserError on any mistake, and on too few of them.
    """
    where = f"workload: trace: {trace}"
    if trace in SYNTHETIC:
        raise UserError(f"{where}: is synthetic; leave it out, jobs are drawn by the other options of the workload")
    options = WorkloadOptions(until=None if until == 1.0 else until, total_gpus=total_gpus(cluster))
    jobs, _ = get_workload(trace, dataclasses.replace(options, schedulers=cluster.shape[0]))
    jobs = on_reference(cluster, profiles_on(cluster, CATALOGUE), jobs, trace_gpu or None)
    if (jobs.milli < WHOLE).any():
        raise UserError(f"{where}: has jobs that share a GPU, which training does not know; take them out")
    if (jobs.allowed != "").any():
        raise UserError(f"{where}: has jobs for some GPU types only, which training does not know; take them out")
    if ask_for_more([jobs]):
        raise UserError(f"{where}: has jobs that reserve CPUs or memory, unknown in training; take the columns out")
    jobs = take(jobs, np.flatnonzero(fits_somewhere(cluster, jobs)))
    if len(jobs) < FEWEST_JOBS or jobs.submit_s[-1] == jobs.submit_s[0]:
        raise UserError(f"{where}: {len(jobs)} jobs fit the cluster, should be {FEWEST_JOBS} or more over some time")
    return past_of(jobs)


def past_of(jobs: JobList) -> Past:
    """The jobs as arrays; their run times are on the cluster's reference type."""
    gaps = np.diff(jobs.submit_s)
    whole = lambda column: on_device(column, np.int32)
    return Past(
        gap_s=on_device(np.concatenate([[gaps.mean()], gaps]), np.float32),
        duration_s=on_device(jobs.duration_s, np.float32),
        workers=whole(jobs.workers),
        gpus_per_worker=whole(jobs.gpus_per_worker),
        ps=whole(jobs.ps),
        model=whole(jobs.model),
        tenant=whole(jobs.tenant),
        home=whole(np.maximum(jobs.home, 0)),
    )


def draw_past(
    key: PRNGKeyArray,
    past: Past,
    count: int,
    busy: Float32[Array, ""],
    pace: Float32[Array, ""],
    interval_s: Float32[Array, ""],
    homes: int,
    tenants: int,
    alone: bool = False,
) -> JobTable:
    """`count` jobs that came one after the other, from a random one on; after the last the first one comes again.

    Args:
        busy: how many GPUs they keep busy, offered load times those that there are: gaps are scaled to it, run times
            are not.
        pace: factor of all times.
        interval_s: of this world, its pace included.
        alone: each job is drawn by itself, with replacement, where jobs do not depend on each other.
    """
    size = past.gap_s.shape[0]
    first = jax.random.randint(key, (count,) if alone else (), 0, size)
    row = first if alone else (first + jnp.arange(count)) % size
    gpus = (past.workers * past.gpus_per_worker)[row].astype(jnp.float32)
    needed_s = (gpus * past.duration_s[row]).sum() / busy
    gap_s = past.gap_s[row]
    time_s = jnp.cumsum(gap_s) * (needed_s / jnp.maximum(gap_s.sum(), 1e-6)) * pace
    boundary = jnp.minimum(jnp.ceil(time_s / interval_s), LATEST)
    duration_s = past.duration_s[row] * pace
    return JobTable(
        arrival=boundary.astype(jnp.int32),
        lead_s=jnp.clip(boundary * interval_s - time_s, 0.0, interval_s * (1 - 1e-6)),
        duration_s=duration_s,
        estimate_s=duration_s,
        workers=past.workers[row],
        gpus_per_worker=past.gpus_per_worker[row],
        ps=past.ps[row],
        model=past.model[row],
        tenant=past.tenant[row] % tenants,
        home=past.home[row] % homes,
        milli=jnp.full(count, WHOLE, jnp.int32),
    )
