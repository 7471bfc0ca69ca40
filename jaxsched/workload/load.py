"""One door to every workload: a name of a synthetic one, a name of a public trace, or the path of a trace file."""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxsched.border import checked, perhaps
from jaxsched.errors import UserError
from jaxsched.io.files import shorten
from jaxsched.options import MOST_ERROR, JobOptions
from jaxsched.workload import datasets
from jaxsched.workload.catalogue import BUILT_IN, Catalogue, Mix
from jaxsched.workload.generate import KALOS, SEREN, SyntheticJobs, synthetic
from jaxsched.workload.jobs import JobList, from_start, rescale_to_load, sharing, take
from jaxsched.workload.traces import FORMATS, PS_FRACTION, read_trace

SYNTHETIC: dict[str, dict[str, Any]] = {
    "philly-like": {},  # gang sizes and run times of Philly, Poisson arrivals
    "philly-like-bursty": {"arrivals": "bursty"},
    "philly-like-diurnal": {"arrivals": "diurnal"},
    # Philly's run times, but half of the jobs are gangs: where placement matters. The shares are ours.
    "distributed": {"gpu_counts": {1: 0.5, 2: 0.1, 4: 0.17, 8: 0.15, 16: 0.06, 32: 0.02}},
    # Acme's clusters Seren and Kalos: short jobs, many of which fail, and gangs of up to 1,024 GPUs.
    "acme-like": {"acme": SEREN, "max_gpus": SEREN.largest, "llm_from": 32},
    "acme-kalos-like": {"acme": KALOS, "max_gpus": KALOS.largest, "llm_from": 32},
    "llm": {"planned": True},  # models with plans only, sizes and models alike (ours), with Philly's run times
    "poisson": {"durations": "exponential", "gpu_counts": {1: 1.0}},  # M/M/n: one GPU each, exponential run times
}
TRACES = tuple(name for name, d in datasets.DATASETS.items() if d.format in {form.name for form in FORMATS})
WORKLOADS = (*SYNTHETIC, *TRACES)


@checked
@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkloadOptions(JobOptions):
    """What a workload is made with: the options of jobs, and what a cluster and a catalogue add to them."""

    total_gpus: int | None = None  # needed for synthetic workloads and for `load`
    schedulers: int = 1  # homes are dealt round robin over them (synthetic workloads)
    mix: str | Mix | Mapping[str, float] = "default"
    ps_fraction: float = PS_FRACTION
    catalogue: Catalogue = BUILT_IN


DEFAULT_JOBS = 1000
DEFAULT_LOAD = 0.8


def is_path(name: str) -> bool:
    """Whether a name that is no workload's means a file."""
    return os.path.exists(name) or "/" in name or "." in name


def unknown_workload(name: str) -> str:
    """What is wrong with a name that is no workload's and no file's."""
    near = perhaps(name, WORKLOADS)
    return f"workload: unknown {shorten(name)!r}{near}; known are {', '.join(WORKLOADS)}, or the path of a trace file"


@checked
def get_workload(name_or_path: str | Path, options: WorkloadOptions | None = None) -> tuple[JobList, dict[str, int]]:
    """The jobs of a named workload or a trace file; the first one is submitted at 0 s.

    Args:
        name_or_path: a name of `WORKLOADS`, or a file.
        options: of a trace the jobs from `since` to `until` are taken, of them the first `num_jobs`. Synthetic
            workloads, and a `load`, need `total_gpus`.

    Returns:
        The jobs, and how many rows of a trace are no jobs, by reason.

    Raises:
        UserError: if there is neither such a name nor such a file, or an option is wrong or missing.
    """
    options = options or WorkloadOptions()
    name = str(name_or_path)
    if name in SYNTHETIC and options.part != (0.0, 1.0):
        raise UserError(f"since, until: are for traces, {name!r} is synthetic and has as many jobs as num_jobs says")
    if options.total_gpus is None and (name in SYNTHETIC or options.load is not None):
        raise UserError(f"total_gpus: is needed for {f'the workload {name!r}' if name in SYNTHETIC else 'a load'}")
    if name in SYNTHETIC:
        return _synthetic(name, options), {}
    if name in TRACES:
        path = datasets.find(name)
    elif is_path(name):
        path = Path(name_or_path)
    else:
        raise UserError(unknown_workload(name))
    jobs, skipped = read_trace(
        path, seed=options.seed, ps_fraction=options.ps_fraction, mix=options.mix, catalogue=options.catalogue
    )
    first, end = (round(share * len(jobs)) for share in options.part)
    if first == end:
        raise UserError("since, until: no job of {:,} is from {:g} to {:g}".format(len(jobs), *options.part))
    jobs = sharing(from_start(take(take(jobs, slice(first, end)), slice(options.num_jobs))), _share(options))
    if options.load is not None and options.total_gpus is not None:
        jobs = rescale_to_load(jobs, options.total_gpus, options.load)
    return jobs, skipped


def _synthetic(name: str, options: WorkloadOptions) -> JobList:
    assert options.total_gpus is not None  # get_workload checked it
    kind = SyntheticJobs(
        mix=options.mix,
        ps_fraction=options.ps_fraction,
        schedulers=options.schedulers,
        mean_duration_s=options.mean_duration_s,
        duration_cap_s=np.inf if options.duration_cap_s is None else options.duration_cap_s,
        gpu_share=_share(options),
        catalogue=options.catalogue,
        **SYNTHETIC[name],
    )
    num_jobs = DEFAULT_JOBS if options.num_jobs is None else options.num_jobs
    load = DEFAULT_LOAD if options.load is None else options.load
    return synthetic(np.random.default_rng(options.seed), num_jobs, options.total_gpus, load, kind)


def _share(options: WorkloadOptions) -> float:
    return 1.0 if options.gpu_share is None else options.gpu_share


_STREAM = 7  # sets the errors apart from the other draws of the same seed


def add_estimates(jobs: JobList, error: float, seed: int) -> JobList:
    """The same jobs with their estimates times `exp(error * z)`, `z` standard normal, drawn per job with `seed`.

    The factor's median is 1: as many estimates are too long as too short, and its mean is `exp(error^2 / 2)`. Estimates
    are exact before, unless the jobs' log has them (the time that users asked for); `error` 0 leaves them.
    UserError unless `error` is a finite number of at least 0.
    """
    if not 0 <= error <= MOST_ERROR:
        raise UserError(f"duration_error: {error} should be a finite number >= 0 and <= {MOST_ERROR:g}")
    draws = np.random.default_rng((_STREAM, seed)).standard_normal(len(jobs))
    return dataclasses.replace(jobs, estimate_ratio=jobs.estimate_ratio * np.exp(error * draws))
