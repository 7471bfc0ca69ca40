"""How a simulation is run: settings, and the environment's configuration that follows from cluster and jobs."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool

from jaxsched.border import checked
from jaxsched.calibration.interference.named import interference_model, name_of_model, sharing_law
from jaxsched.cluster.hardware import Cluster, distinct_speeds, total_gpus, workers_held
from jaxsched.cluster.outages import Outages, draw_outages, parse_rates
from jaxsched.dynamics.reference import profiles_on
from jaxsched.env.extensions.failures import failures_of
from jaxsched.env.extensions.gpu_sets import types_of_sets
from jaxsched.env.extensions.pairs import draw_pairs
from jaxsched.env.extensions.parts import Pairs, no_failures
from jaxsched.env.state import LARGEST_HORIZON, EnvConfig, EnvParams, params_of_world
from jaxsched.errors import UserError
from jaxsched.io.files import shorten
from jaxsched.options import AT_LEAST_ONE, LIMIT_S, EvaluatedWorld, RunOptions, option
from jaxsched.semantics import HISTORY
from jaxsched.simulation.device import uses_accelerator
from jaxsched.workload.catalogue import Catalogue, get_catalogue
from jaxsched.workload.jobs import WHOLE, JobList, ask_for_more, gpu_sets
from jaxsched.workload.plans import check_jobs

SMALLEST_RUNNING, SMALLEST_QUEUE = 64, 512
DRAWN_SPANS = 10.0
STARTS = 4096  # logged in JAX before the host reads them; at least one per partition and round
MOST_NOTED = 4_000_000  # finished jobs of a history


@checked
@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(EvaluatedWorld, RunOptions):
    """What a comparison holds fixed over its policies: the fields of its bases, and these.

    Raises:
        UserError: on a value out of its range, or values that do not go together.
    """

    outages: Outages | None = None  # docs/semantics.md, section 11
    models: str | Catalogue | None = None  # a file's name, or the models themselves
    seed: int = 0  # of the policies that draw
    wall_limit_s: float | None = option(None, "Cut every run off after this time on the wall.", LIMIT_S)
    record_placements: bool = False  # keep every job's placement
    threads: int | None = option(  # at the same time; None: one per core, at most 16; 1 on accelerators
        None, "Runs at the same time.", AT_LEAST_ONE._replace(wanted="a whole number of at least 1")
    )
    batched: bool | None = None  # play all seeds as one vmapped program; None: on accelerators only

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.failures:
            parse_rates(self.failures)
        interference_model(self.interference)
        get_catalogue(self.models)

    @property
    def horizon(self) -> int:
        """`horizon_s` in whole intervals, rounded up."""
        if self.horizon_s is None:
            return LARGEST_HORIZON
        return int(min(np.ceil(self.horizon_s / self.interval_s), LARGEST_HORIZON))

    def seeds_in_a_batch(self, seeds: int) -> bool:
        """Whether so many seeds are played as one vmapped program."""
        return (seeds > 1 and uses_accelerator(self.device)) if self.batched is None else self.batched

    def described(self) -> dict[str, Any]:
        """All values, as a report has them."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        models = list(self.models.names) if isinstance(self.models, Catalogue) else self.models
        outages = None if self.outages is None else repr(self.outages)
        return values | {"outages": outages, "models": models, "interference": name_of_model(self.interference)}


def fits_somewhere(cluster: Cluster, jobs: JobList) -> Bool[np.ndarray, "J"]:
    """Some partition could hold the gang when it is empty; the others are rejected."""
    sets, chosen = np.unique(jobs.allowed, return_inverse=True)
    types = types_of_sets(cluster.gpu_types, sets.tolist())
    gpus = np.where(types[:, np.maximum(cluster.group_gpu_type, 0)], np.asarray(cluster.group_gpus), 0)
    kinds = np.stack([chosen, jobs.gpus_per_worker, jobs.cpu_milli, jobs.memory_mib], -1)
    held, kind = workers_held(gpus, np.asarray(cluster.reservable), kinds)
    return held.max(-1)[kind] >= jobs.workers


def env_config(cluster: Cluster, job_lists: Sequence[JobList], settings: Settings) -> EnvConfig:
    """The environment of a comparison, with the smallest tables; engines grow them before they bind.

    UserError if every job is larger than any partition, a job is not as the plan of its model says, or the interval too
    short for int32 boundaries.
    """
    for jobs in job_lists:
        check_jobs(get_catalogue(settings.models).models, jobs)
    fits = [fits_somewhere(cluster, jobs) for jobs in job_lists]
    if not any(kept.any() for kept in fits):
        gpus = int(np.asarray(cluster.group_gpus).sum((1, 2)).max())
        smallest = min(int(jobs.num_gpus.min()) for jobs in job_lists)
        worker, group = min(int(jobs.gpus_per_worker.min()) for jobs in job_lists), int(cluster.group_gpus.max())
        _check_kinds(cluster, job_lists)
        if worker > group:
            raise UserError(
                f"no job fits the cluster: the smallest worker has {worker} GPUs, the largest GPU group {group}, and a "
                f"worker lies in one group; write more workers of fewer GPUs, or servers with groups: [{worker}]"
            )
        raise UserError(
            f"no job fits the cluster: the smallest gang has {smallest} GPUs, the largest partition {gpus}; "
            "take a larger cluster or fewer schedulers"
        )
    if settings.pair_factors is not None and not shared_gpus(cluster, job_lists):
        raise UserError(
            "pair_factors: are for jobs that share a GPU, and no job asks for a fraction of one; "
            "take a trace whose jobs do, such as openb, or gpu_share"
        )
    if settings.knows == HISTORY and max(map(len, job_lists)) > MOST_NOTED:
        raise UserError(f"knows: {HISTORY} takes {MOST_NOTED:,} jobs at most, its sums are int32; take fewer jobs")
    last = max(float(jobs.submit_s.max()) for jobs in job_lists) / settings.interval_s
    if last >= LARGEST_HORIZON:
        raise UserError(f"interval_s: {settings.interval_s:g} s is too short for a trace with {last:.3g} intervals")
    end = max(float((jobs.submit_s + jobs.duration_s).max()) for jobs in job_lists) / settings.interval_s
    if settings.horizon_s is None and end >= LARGEST_HORIZON:
        raise UserError(
            f"interval_s: {settings.interval_s:g} s is too short for a job that ends after {end:.3g} intervals, the "
            f"clock counts {LARGEST_HORIZON:,}; take longer intervals, or end the run with horizon_s"
        )
    return EnvConfig(
        running_slots=min(SMALLEST_RUNNING, most_running(cluster, job_lists)),
        queue_slots=SMALLEST_QUEUE,
        rounds=settings.rounds,
        tenants=1 + max(int(jobs.tenant.max()) for jobs in job_lists),
        largest_worker=max(int(jobs.gpus_per_worker[kept].max(initial=1)) for jobs, kept in zip(job_lists, fits)),
        largest_group=int(np.asarray(cluster.group_gpus).max()),
        early_stop=True,
        skip_idle=True,
        record_placements=settings.record_placements,
        starts=max(STARTS, cluster.shape[0]) if settings.record_placements and settings.stops else 0,
        gpu_speeds=distinct_speeds(cluster),
        shared_gpus=shared_gpus(cluster, job_lists),
        gpu_sets=gpu_sets(job_lists),
        asks=ask_for_more(job_lists),
        knows=settings.knows,
    )


def _check_kinds(cluster: Cluster, job_lists: Sequence[JobList]) -> None:
    """UserError if no server has the GPU types, or the CPUs and memory, that all of these jobs ask for."""
    bound = sorted(set().union(*(np.unique(jobs.allowed).tolist() for jobs in job_lists)))
    if "" not in bound:
        types = ", ".join(cluster.gpu_types[kind] for kind in np.unique(cluster.group_gpu_type) if kind >= 0)
        raise UserError(
            f"no job fits the cluster: jobs may use {', '.join(map(shorten, bound[:5]))}, the cluster has {types}, or "
            "too few of these in every partition; take a cluster with such GPUs, or leave the types out"
        )
    least = np.min([(jobs.cpu_milli.min(), jobs.memory_mib.min()) for jobs in job_lists], 0)
    most = np.asarray(cluster.reservable).max((0, 1))
    if (most < least).any():
        raise UserError(
            f"no job fits the cluster: a worker asks for {least[0] / 1000:g} CPU cores and {least[1]} MiB or more, a "
            f"server has {most[0] / 1000:g} and {most[1]} at most; take larger servers, or leave these columns out"
        )


def env_params(cluster: Cluster, config: EnvConfig, settings: Settings, job_lists: Sequence[JobList] = ()) -> EnvParams:
    """The parameters of a comparison's environment, which `config` is the configuration of.

    Where servers fail by rates, `job_lists` say for how long that is drawn, see `drawn_span_s`.
    """
    models, interference = get_catalogue(settings.models).models, interference_model(settings.interference)
    if config.shared_gpus:
        interference = interference.replace(sharing=sharing_law(settings.interference, models))
    horizon, outages = settings.horizon, settings.outages
    _check_outages(cluster, job_lists, settings)
    if settings.failures:
        span_s = drawn_span_s(cluster, job_lists, settings)
        horizon = min(horizon, int(np.ceil(span_s / settings.interval_s)))
        servers = int(np.asarray(cluster.server_id).max()) + 1
        outages = draw_outages(servers, parse_rates(settings.failures), span_s, settings.failure_seed)
    failing = no_failures(cluster)
    if outages is not None:
        failing = failures_of(cluster, outages, settings.interval_s, horizon)
    return params_of_world(
        settings,
        cluster,
        horizon=horizon,
        interference=interference,
        profiles=profiles_on(cluster, models),
        failures=failing,
    )


@dataclasses.dataclass(frozen=True)
class PlayedWorld:
    """What runs are played in: a cluster, job lists, settings; and what follows of them, worked out once.

    Of `config` and `params` UserError: see `env_config` and `env_params`.
    """

    cluster: Cluster
    job_lists: Sequence[JobList]  # all of which together set the tables
    settings: Settings

    @functools.cached_property
    def config(self) -> EnvConfig:
        """The environment's shapes and switches."""
        return env_config(self.cluster, self.job_lists, self.settings)

    @functools.cached_property
    def params(self) -> EnvParams:
        """The environment's numbers."""
        return env_params(self.cluster, self.config, self.settings, self.job_lists)

    @property
    def batched(self) -> bool:
        """Whether all lists are played as one vmapped program."""
        return self.settings.seeds_in_a_batch(len(self.job_lists))

    @property
    def most_running(self) -> int:
        """The most jobs that can run at once in a partition."""
        return most_running(self.cluster, self.job_lists)


def pairs_of(settings: Settings, number: int) -> Pairs | None:
    """The factors of models that share a GPU in the job list at place `number`; None if there are none."""
    if settings.pair_factors is None:
        return None
    models = len(get_catalogue(settings.models).models)
    return draw_pairs(models, settings.pair_factors, settings.seed + number, known=settings.pairs_known)


def params_for(cluster: Cluster, jobs: JobList, settings: Settings) -> EnvParams:
    """`env_params` of the first job list, with the factors of its pairs of models."""
    params, pairs = PlayedWorld(cluster, [jobs], settings).params, pairs_of(settings, 0)
    if pairs is None:
        return params
    return params.replace(interference=params.interference.replace(pairs=pairs.factor))


def drawn_span_s(cluster: Cluster, job_lists: Sequence[JobList], settings: Settings) -> float:
    """For how long failures by rates are drawn: to the horizon, else `DRAWN_SPANS` times what the jobs need at least.

    That is until the last submission, then all their work at once on all GPUs, then the longest job. UserError if there
    is no horizon and no job list.
    """
    if settings.horizon_s is not None:
        return settings.horizon_s
    if not job_lists:
        raise UserError("failures: are drawn up to the end of the run; set horizon_s")
    gpus = total_gpus(cluster)
    needs = [
        jobs.submit_s.max() + jobs.gpu_demand @ jobs.duration_s / gpus + jobs.duration_s.max() for jobs in job_lists
    ]
    return DRAWN_SPANS * float(max(needs))


def _check_outages(cluster: Cluster, job_lists: Sequence[JobList], settings: Settings) -> None:
    """UserError if no outage of a file begins while jobs may still run: their times may be of another clock."""
    out = settings.outages
    if out is None or not len(out) or not job_lists or settings.horizon_s is not None:
        return
    if out.from_s.min() > drawn_span_s(cluster, job_lists, settings):
        raise UserError(
            f"outages: the first begins at {out.from_s.min():.10g} s, long after all jobs can be done; "
            "times count from the first job's submission"
        )


def explain_horizon(params: EnvParams, settings: Settings) -> str:
    """Why a run ended there."""
    seconds = int(params.horizon) * settings.interval_s
    if settings.horizon_s is None and int(params.horizon) >= LARGEST_HORIZON:
        return f"at {seconds:,.0f} s, for interval_s is short and the clock counts {LARGEST_HORIZON:,} intervals"
    asked = settings.horizon_s is not None and seconds > settings.horizon_s
    return f"at the horizon of {seconds:,.0f} s" + (f" ({settings.horizon_s:g} s in whole intervals)" if asked else "")


def shared_gpus(cluster: Cluster, job_lists: Sequence[JobList]) -> int:
    """GPUs of a group that jobs may share: all of the largest one if some job wants a fraction, else 0."""
    fractions = any((jobs.milli < WHOLE).any() for jobs in job_lists)
    return int(np.asarray(cluster.group_gpus).max()) if fractions else 0


def most_running(cluster: Cluster, job_lists: Sequence[JobList]) -> int:
    """The most jobs that can run at once in a partition: as many per GPU as the smallest share allows, at most all."""
    gpus = int(np.asarray(cluster.group_gpus).sum((1, 2)).max())
    per_gpu = WHOLE // min(int(jobs.milli.min(initial=WHOLE)) for jobs in job_lists)
    return min(gpus * per_gpu, max(len(jobs) for jobs in job_lists))


def compact_tenants(job_lists: Sequence[JobList]) -> list[JobList]:
    """The same jobs with tenants renumbered 0..V-1 over all lists, in ascending order of their numbers."""
    known = np.unique(np.concatenate([jobs.tenant for jobs in job_lists]))
    renumbered = [np.searchsorted(known, jobs.tenant).astype(np.int32) for jobs in job_lists]
    return [dataclasses.replace(jobs, tenant=tenant) for jobs, tenant in zip(job_lists, renumbered)]
