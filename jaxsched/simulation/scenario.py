"""A cluster and the jobs it is to run, from names: what the shared options of the command line stand for."""

import dataclasses
import inspect
import math
from collections.abc import Collection, Iterable
from typing import Any

from jaxsched.cluster.hardware import Cluster, reference_type, total_gpus
from jaxsched.cluster.presets import get_cluster
from jaxsched.dynamics.reference import on_reference, profiles_on
from jaxsched.errors import UserError
from jaxsched.workload.catalogue import Catalogue, get_catalogue
from jaxsched.workload.jobs import JobList, offered_load, rescale_to_load
from jaxsched.workload.load import MOST_JOBS, SYNTHETIC, WorkloadOptions, get_workload, with_estimates

MOST_SEEDS = 10_000
DEFAULT_SEEDS = 5  # of a synthetic workload; a trace's jobs are always the same


@dataclasses.dataclass(frozen=True)
class Scenario:
    """Everything a comparison needs but the policies and the settings."""

    cluster: Cluster
    jobs: list[JobList]  # one per seed
    seeds: list[int]
    skipped: dict[str, int]  # rows of the trace that are no jobs, by reason
    config: dict[str, Any]  # for the report


def load_scenario(
    cluster: str = "leaf-spine-8",
    workload: str = "philly-like",
    *,
    schedulers: int | None = None,
    load: float | None = None,
    num_jobs: int | None = None,
    since: float | None = None,
    until: float | None = None,
    mean_duration_s: float | None = None,
    duration_cap_s: float | None = None,
    gpu_share: float | None = None,
    mix: str = "default",
    trace_gpu: str | None = None,
    models: str | None = None,
    duration_error: float = 0.0,
    seed: int = 0,
    seeds: int | None = None,
) -> Scenario:
    """The scenario of a cluster's and a workload's name or file.

    `load` is the offered load that submit times are rescaled to (None: a trace keeps its pace); `seeds` job lists are
    made with the seeds `seed`, `seed + 1`, ...: other jobs of a synthetic workload (default 5); of a trace (default 1)
    only other draws of what it does not say. `mean_duration_s` and `duration_cap_s` are for synthetic workloads.
    `gpu_share` is the share of a GPU that jobs of one whole GPU ask for (None: all of it).
    `since` and `until` are shares of a trace's jobs, in order of submission: only those between them are taken.
    `mix` says which models jobs have that no trace tells (`workload.mixes`).
    `models` is a file of models beside the catalogue's (`workload.catalogue`); the settings must name it, too.
    `trace_gpu` is the GPU type that run times are on where a job names none; None: the cluster's reference type.
    Policies see durations with an error of `duration_error` (`with_estimates`), drawn with the list's seed.
    UserError on any mistake.
    """
    for name, value in {"schedulers": schedulers, "seeds": seeds}.items():
        if value is not None and value < 1:
            raise UserError(f"{name}: {value} should be at least 1")
    if not 0 <= seed < 2**31:
        raise UserError(f"seed: {seed} should be at least 0 and less than 2^31")
    if (mean_duration_s is not None or duration_cap_s is not None) and workload not in SYNTHETIC:
        raise UserError("mean_duration_s, duration_cap_s: are for synthetic workloads, a trace has its own run times")
    count = (DEFAULT_SEEDS if workload in SYNTHETIC else 1) if seeds is None else seeds
    if count > MOST_SEEDS:
        raise UserError(f"seeds: {count} should be at most {MOST_SEEDS:,}")
    if num_jobs is not None and num_jobs <= MOST_JOBS < count * num_jobs:
        raise UserError(f"num_jobs: {count} seeds of {num_jobs} should be {MOST_JOBS:,} jobs at most in all")
    hardware, catalogue = get_cluster(cluster, schedulers), get_catalogue(models)
    gpus, partitions = total_gpus(hardware), hardware.shape[0]
    lists, skipped = [], {}
    for number in range(seed, seed + count):
        options = WorkloadOptions(
            num_jobs=num_jobs,
            since=0.0 if since is None else since,
            until=1.0 if until is None else until,
            load=load,
            total_gpus=gpus,
            seed=number,
            mix=mix,
            schedulers=partitions,
            mean_duration_s=mean_duration_s,
            duration_cap_s=math.inf if duration_cap_s is None else duration_cap_s,
            gpu_share=1.0 if gpu_share is None else gpu_share,
            catalogue=catalogue,
        )
        jobs, skipped = get_workload(workload, options)
        jobs = _converted(hardware, jobs, catalogue, trace_gpu, load)
        lists.append(with_estimates(jobs, duration_error, number))
    config = {
        "cluster": cluster,
        "gpus": gpus,
        "schedulers": partitions,
        "workload": workload,
        "jobs_per_seed": len(lists[0]),
        "seeds": list(range(seed, seed + count)),
        "load": load,
        "since": since,
        "until": until,
        "mean_duration_s": mean_duration_s,
        "duration_cap_s": duration_cap_s,
        "gpu_share": gpu_share,
        "mix": mix,
        "run_times_on": trace_gpu or reference_type(hardware),
        "reference_gpu": reference_type(hardware),
        "duration_error": duration_error,
        "offered_load": _offered(lists[0], gpus),
        "skipped_rows": skipped,
    }
    return Scenario(hardware, lists, config["seeds"], skipped, config)


def check_options(who: str, given: Iterable[str], further: Iterable[str] = (), but: Collection[str] = ()) -> None:
    """UserError on a name that is no option of `load_scenario`, unless it is `but`, and none of the `further` ones."""
    ours = list(inspect.signature(load_scenario).parameters)[2:]
    known = [name for name in dict.fromkeys([*ours, *further]) if name not in but]
    for name in given:
        if name not in known:
            raise UserError(f"{who}: unknown option {name!r}; known ones: {', '.join(known)}")


def _converted(
    cluster: Cluster, jobs: JobList, catalogue: Catalogue, trace_gpu: str | None, load: float | None
) -> JobList:
    """The jobs with run times on the cluster's reference type, at the offered load that was asked for."""
    if trace_gpu is None and (jobs.gpu_type == "").all():
        return jobs
    jobs = on_reference(cluster, profiles_on(cluster, catalogue.models), jobs, trace_gpu)
    return jobs if load is None else rescale_to_load(jobs, total_gpus(cluster), load)


def _offered(jobs: JobList, gpus: int) -> float | None:
    """The offered load of the jobs as they are run; None where all are submitted at once."""
    return offered_load(jobs, gpus) if jobs.submit_s[-1] > jobs.submit_s[0] else None
