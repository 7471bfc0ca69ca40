"""Run times on the cluster's reference GPU type, whatever type they are stated on (docs/semantics.md, section 2)."""

import dataclasses
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float32, Float64, Int

from jaxsched.cluster.gpu_types import GPU_SPEEDS
from jaxsched.cluster.hardware import Cluster, reference_type
from jaxsched.dynamics.footprint import JobSpec, best_hardware, ideal_comm_s, relative_speed
from jaxsched.errors import UserError
from jaxsched.workload.jobs import JobList
from jaxsched.workload.models import ModelProfile, Profiles, profiles


def on_reference(cluster: Cluster, models: Profiles, jobs: JobList, trace_gpu: str | None = None) -> JobList:
    """The same jobs with run times on the cluster's reference type; they name no type then.

    `trace_gpu` is the type of the jobs that name none; None: the reference. UserError on a type without a speed.
    """
    named = np.where(jobs.gpu_type == "", trace_gpu or "", jobs.gpu_type)
    duration_s = jobs.duration_s.copy()
    for name in map(str, np.unique(named[named != ""])):
        here = named == name
        try:
            slowdown = ideal_slowdown(cluster, models, jobs, name)
        except UserError as error:
            where = "--trace-gpu" if name == trace_gpu else f"job {str(jobs.job_id[here.argmax()])!r}, gpu_type"
            raise UserError(f"{where}: {error}") from None
        duration_s[here] /= slowdown[here]
    return dataclasses.replace(jobs, duration_s=duration_s, gpu_type=np.zeros(len(jobs), "<U1"))


def profiles_on(cluster: Cluster, models: Sequence[ModelProfile]) -> Profiles:
    """The models as arrays, their steps on the cluster's reference type. UserError on a GPU type without a speed."""
    plain, kinds = profiles(cluster.gpu_types, models), dict.fromkeys(model.gpu_type for model in models)
    compute_s = np.asarray(plain.compute_s).copy()
    for name in filter(None, kinds):
        mine = np.array([place for place, model in enumerate(models) if model.gpu_type == name])
        compute_s[mine] *= speeds_on(cluster, plain, mine, name)
    return plain.replace(compute_s=jnp.asarray(compute_s))


def speeds_on(
    cluster: Cluster, models: Profiles, model: Int[np.ndarray, "J"], gpu_type: str
) -> Float32[np.ndarray, "J"]:
    """Speed of models on a GPU type over that on the reference type. UserError on a type without a speed."""
    speed = speed_of_type(cluster, gpu_type)
    number = cluster.gpu_types.index(gpu_type) if gpu_type in cluster.gpu_types else -1
    kind, speeds = jnp.full(model.shape, number, jnp.int32), jnp.full(model.shape, speed, jnp.float32)
    return np.asarray(relative_speed(models, jnp.asarray(model), kind, speeds, cluster.reference))


def ideal_slowdown(cluster: Cluster, models: Profiles, jobs: JobList, gpu_type: str) -> Float64[np.ndarray, "J"]:
    """Step time of the jobs on the ideal placement with GPUs of that type, over that with the reference type's."""
    spec = JobSpec(
        workers=jnp.asarray(jobs.workers),
        gpus_per_worker=jnp.asarray(jobs.gpus_per_worker),
        ps=jnp.asarray(jobs.ps),
        model=jnp.asarray(jobs.model),
    )
    comm_s = np.asarray(ideal_comm_s(best_hardware(cluster), models, spec), np.float64)
    compute_s = np.asarray(models.compute_s, np.float64)[jobs.model]
    speed = speeds_on(cluster, models, jobs.model, gpu_type).astype(np.float64)
    return (compute_s / speed + comm_s) / (compute_s + comm_s)


def slowdown_by_type(cluster: Cluster, models: Profiles, jobs: JobList) -> dict[str, Float64[np.ndarray, "J"]]:
    """By type of the GPUs, the least slowdown that the jobs can have with one of it; 1: of the reference type."""
    kinds = np.unique(np.asarray(cluster.group_gpu_type)[np.asarray(cluster.group_gpus) > 0])
    names = {cluster.gpu_types[kind]: kind == int(cluster.reference) for kind in kinds}
    return {
        name: np.ones(len(jobs)) if reference else ideal_slowdown(cluster, models, jobs, name)
        for name, reference in names.items()
    }


def speed_of_type(cluster: Cluster, gpu_type: str) -> float:
    """Speed of a type over the reference: of the cluster's own GPUs, or by the tables. UserError on an unknown type."""
    gpus, kinds = np.asarray(cluster.group_gpus), np.asarray(cluster.group_gpu_type)
    if gpu_type in cluster.gpu_types:
        own = (kinds == cluster.gpu_types.index(gpu_type)) & (gpus > 0)
        if own.any():
            return float(np.asarray(cluster.group_speed)[own][0])
    reference = reference_type(cluster)
    speeds = {**GPU_SPEEDS, **dict(cluster.own_speeds)}
    known = dict.fromkeys((*speeds, *cluster.gpu_types))
    if gpu_type not in known:
        raise UserError(f"unknown GPU type {gpu_type!r}; known types: {', '.join(known)}")
    if gpu_type not in speeds or reference not in speeds:
        raise UserError(
            f"GPU type {gpu_type!r}: its speed over {reference!r}, the type of most GPUs, is not known; "
            "both should be in the cluster, or among the types with a speed of their own"
        )
    return speeds[gpu_type] / speeds[reference]
