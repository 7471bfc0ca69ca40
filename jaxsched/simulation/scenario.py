"""A cluster and the jobs it is to run, from names: what the shared options of the command line stand for."""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from jaxsched.border import perhaps
from jaxsched.cluster.hardware import Cluster, reference_type, total_gpus
from jaxsched.cluster.presets import get_cluster, get_inventory
from jaxsched.dynamics.reference import on_reference, profiles_on
from jaxsched.errors import UserError
from jaxsched.io.files import shorten
from jaxsched.options import MOST_JOBS, ClusterOptions, JobOptions, list_names
from jaxsched.user_code import call, name_of
from jaxsched.workload.catalogue import Catalogue, get_catalogue
from jaxsched.workload.jobs import JobList, offered_load, rescale_to_load
from jaxsched.workload.load import (
    SYNTHETIC,
    WORKLOADS,
    WorkloadOptions,
    add_estimates,
    get_workload,
    is_path,
    unknown_workload,
)

# A name or file, jobs, or what makes a list of a seed.
Workload = str | Path | JobList | Sequence[JobList] | Callable[[int], JobList]

MOST_SEEDS = 10_000
SAID_OTHERWISE = ("num_jobs", "trace_gpu", "duration_error", "seed")  # in the report
_STREAM = 44  # sets the homes of made-up jobs apart from the other draws of the same seed
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
    cluster: str | Cluster = "leaf-spine-8", workload: Workload = "philly-like", **options: Any
) -> Scenario:
    """The scenario of a cluster's and a workload's name or file, or of what is given in their place.

    Args:
        cluster: see `get_cluster`.
        workload: see `get_workload`; or a job list, or several; or a function from a seed to a job list.
        options: further fields of `ClusterOptions` and `JobOptions`; `seeds`, how many job lists are made, with the
            seeds `seed`, `seed + 1`, ...: other jobs of a synthetic workload (default 5), of a trace (default 1) only
            other draws of what it does not say; `models`, a file of models beside the catalogue's, which the settings
            must name, too.

    Raises:
        UserError: on any mistake.
    """
    check_options("load_scenario", options)
    models, seeds = options.pop("models", None), options.pop("seeds", None)
    hardware = {name: options.pop(name) for name in list_names(ClusterOptions) if name in options}
    on = ClusterOptions(cluster=cast(str, cluster), **hardware)  # what is no name is taken, too
    return make_scenario(on, workload, JobOptions(**options), models, seeds)


def make_scenario(
    on: ClusterOptions, workload: Workload, of: JobOptions, models: str | None = None, seeds: int | None = None
) -> Scenario:
    """See `load_scenario`."""
    if isinstance(workload, str):
        if workload not in WORKLOADS and not is_path(workload):
            raise UserError(unknown_workload(workload))
    elif isinstance(workload, Path):
        workload = str(workload)
    else:
        _check_given(workload, of, seeds)
    if seeds is not None and (isinstance(seeds, bool) or not isinstance(seeds, int) or not 1 <= seeds <= MOST_SEEDS):
        raise UserError(f"seeds: {seeds} should be a whole number from 1 to {MOST_SEEDS:,}")
    if (of.mean_duration_s is not None or of.duration_cap_s is not None) and workload not in SYNTHETIC:
        raise UserError("mean_duration_s, duration_cap_s: are for synthetic workloads, a trace has its own run times")
    count = _usual_seeds(workload) if seeds is None else seeds
    if of.num_jobs is not None and count * of.num_jobs > MOST_JOBS:
        raise UserError(f"num_jobs: {count} seeds of {of.num_jobs} should be {MOST_JOBS:,} jobs at most in all")
    (cluster, named), catalogue = _cluster_of(on), get_catalogue(models)
    gpus, partitions = total_gpus(cluster), cluster.shape[0]
    lists, skipped, numbers = [], {}, list(range(of.seed, of.seed + count))
    for number in numbers:
        if not isinstance(workload, str):
            lists.append(_convert_times(cluster, _given(workload, number), catalogue, None, None))
            continue
        made = WorkloadOptions.taken_from(of, seed=number, total_gpus=gpus, schedulers=partitions, catalogue=catalogue)
        jobs, skipped = get_workload(workload, made)
        if named:
            jobs = _dealt(jobs, cluster, named, number) if workload in SYNTHETIC else _sent_home(jobs, named, workload)
        jobs = _convert_times(cluster, jobs, catalogue, of.trace_gpu, of.load)
        lists.append(add_estimates(jobs, of.duration_error, number))
    config = {
        "cluster": on.cluster if isinstance(on.cluster, str) else "given",
        "gpus": gpus,
        "schedulers": partitions,
        **({"partitions": named} if named else {}),
        "workload": workload if isinstance(workload, str) else name_of(workload) if callable(workload) else "given",
        "jobs_per_seed": len(lists[0]),
        "seeds": numbers,
        **{name: getattr(of, name) for name in list_names(JobOptions) if name not in SAID_OTHERWISE},
        "run_times_on": of.trace_gpu or reference_type(cluster),
        "reference_gpu": reference_type(cluster),
        "duration_error": of.duration_error,
        "offered_load": _measure_load(lists[0], gpus),
        "skipped_rows": skipped,
    }
    return Scenario(cluster, lists, numbers, skipped, config)


def _cluster_of(on: ClusterOptions) -> tuple[Cluster, list[str]]:
    """The cluster, and the names of its partitions, if they have any."""
    if not isinstance(on.cluster, str | Path):
        return get_cluster(on.cluster, on.schedulers, on.gpu_speeds), []
    inventory = get_inventory(str(on.cluster), on.gpu_speeds)
    return inventory.build(on.schedulers), list(inventory.partitions or ())


def _sent_home(jobs: JobList, partitions: Sequence[str], workload: str) -> JobList:
    """The jobs, each in the partition that is called as its tenant is. UserError on a tenant without one."""
    strange = ~np.isin(jobs.tenant_name, partitions)
    if strange.any():
        first, names = int(strange.argmax()), list(dict.fromkeys(jobs.tenant_name[strange].tolist()))
        more = f" ({len(names):,} tenants of {int(strange.sum()):,} jobs have none)" if len(names) > 1 else ""
        raise UserError(
            f"{workload}: job {str(jobs.job_id[first])!r}, tenant: {shorten(names[0])!r} should be a partition of the "
            f"cluster: {', '.join(map(shorten, partitions))}{more}"
        )
    place = {name: number for number, name in enumerate(partitions)}
    home = np.array([place[name] for name in jobs.tenant_name.tolist()], np.int32)
    return dataclasses.replace(jobs, home=home)


def _dealt(jobs: JobList, cluster: Cluster, partitions: Sequence[str], seed: int) -> JobList:
    """Made-up jobs, which come to partitions in proportion to their GPUs, and are of tenants that are called so."""
    gpus = np.asarray(cluster.group_gpus).sum((1, 2))
    home = np.random.default_rng((_STREAM, seed)).choice(len(gpus), len(jobs), p=gpus / gpus.sum()).astype(np.int32)
    return dataclasses.replace(jobs, home=home, tenant=home, tenant_name=np.array(partitions)[home])


def _usual_seeds(workload: Workload) -> int:
    if isinstance(workload, str):
        return DEFAULT_SEEDS if workload in SYNTHETIC else 1
    return DEFAULT_SEEDS if callable(workload) else len(job_lists(workload))


def job_lists(given: Any) -> list[JobList]:
    """One job list or several, as a list. UserError for what is none."""
    lists = [given] if isinstance(given, JobList) else given
    if not (isinstance(lists, Sequence) and lists and all(isinstance(one, JobList) and len(one) for one in lists)):
        raise UserError("workload: should be a name, a file, a JobList or several, or a function of a seed to one")
    return list(lists)


def _check_given(workload: Workload, of: JobOptions, seeds: int | None) -> None:
    """UserError for jobs that are none, and for options that would change them."""
    made = callable(workload)
    if not made and seeds not in (None, len(job_lists(workload))):
        raise UserError(f"seeds: {seeds} should be left out, {len(job_lists(workload))} job list(s) are given")
    kept = ("seed",) if made else ()
    fields = [field for field in dataclasses.fields(JobOptions) if field.name not in kept]
    if asked := [field.name for field in fields if getattr(of, field.name) != field.default]:
        raise UserError(f"{', '.join(asked)}: only for jobs by name, these are given as they are")


def _given(workload: JobList | Sequence[JobList] | Callable[[int], JobList], number: int) -> JobList:
    """The jobs of that seed, or at that place."""
    if not callable(workload):
        return job_lists(workload)[number]
    who = f"workload {name_of(workload)}"
    jobs = call(who, workload, number)
    if not (isinstance(jobs, JobList) and len(jobs)):
        raise UserError(f"{who}: returned {type(jobs).__name__} for seed {number}, should be a JobList with jobs in it")
    return jobs


def check_options(who: str, given: Iterable[str], further: Iterable[str] = (), but: Collection[str] = ()) -> None:
    """UserError on a name that is no option of `load_scenario`, unless it is `but`, and none of the `further` ones."""
    ours = [*list_names(ClusterOptions)[1:], *list_names(JobOptions), "models", "seeds"]
    known = [name for name in dict.fromkeys([*ours, *further]) if name not in but]
    for name in given:
        if name not in known:
            raise UserError(f"{who}: unknown option {name!r}{perhaps(name, known)}; known ones: {', '.join(known)}")


def _convert_times(
    cluster: Cluster, jobs: JobList, catalogue: Catalogue, trace_gpu: str | None, load: float | None
) -> JobList:
    """The jobs with run times on the cluster's reference type, at the offered load that was asked for."""
    if trace_gpu is None and (jobs.gpu_type == "").all():
        return jobs
    jobs = on_reference(cluster, profiles_on(cluster, catalogue.models), jobs, trace_gpu)
    return jobs if load is None else rescale_to_load(jobs, total_gpus(cluster), load)


def _measure_load(jobs: JobList, gpus: int) -> float | None:
    """The offered load of the jobs as they are run; None where all are submitted at once."""
    return offered_load(jobs, gpus) if jobs.submit_s[-1] > jobs.submit_s[0] else None
