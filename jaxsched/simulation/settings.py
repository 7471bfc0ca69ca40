"""How a simulation is run: settings, and the environment's configuration that follows from cluster and jobs."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool

from jaxsched.calibration.interference.named import DEFAULT, interference_model, sharing_law
from jaxsched.cluster.hardware import Cluster, distinct_speeds, total_gpus
from jaxsched.cluster.outages import Outages, draw_outages, parse_rates
from jaxsched.dynamics.batching import CPU, PATHS
from jaxsched.dynamics.reference import profiles_on
from jaxsched.env.failures import failures_of
from jaxsched.env.knowledge import HISTORY, KNOWLEDGE, RUNTIMES
from jaxsched.env.pairs import draw_pairs
from jaxsched.env.state import LARGEST_HORIZON, MOST_FORWARDS, EnvConfig, EnvParams, Pairs, make_params, preemption
from jaxsched.errors import UserError
from jaxsched.pytree import on_device
from jaxsched.simulation.device import on_accelerator
from jaxsched.workload.catalogue import get_catalogue
from jaxsched.workload.jobs import WHOLE, JobList

AUTO, JAX, COMPILED = ENGINES = ("auto", "jax", "compiled")
SHORTEST_INTERVAL_S, LONGEST_INTERVAL_S = 1e-6, 1e9
MOST_ROUNDS = 1 << 16
SMALLEST_RUNNING, SMALLEST_QUEUE = 64, 512
DRAWN_SPANS = 10.0
STARTS = 4096  # logged in JAX before the host reads them; at least one per partition and round
MOST_NOTED = 4_000_000  # finished jobs of a history
MOST_SIGMA = 3.0  # of the factors of pairs of models: some are then 1,000 times their mean


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a comparison holds fixed over its policies. UserError on a value out of its range."""

    interval_s: float = 60.0  # seconds between decisions
    interference: str = DEFAULT  # see `interference_model`
    pair_factors: float | None = None  # sigma of random factors of models that share a GPU, see `env.pairs`
    pairs_known: bool = False  # policies see them
    models: str | None = None  # a file of models beside the catalogue's, see `workload.catalogue`
    rounds: int = 64  # decision rounds per boundary at most
    max_forwards: int = 2  # of a job, docs/semantics.md, section 6
    seed: int = 0  # of the policies that draw
    horizon_s: float | None = None  # simulated time at which a run is cut off; None: until every job has finished
    wall_limit_s: float | None = None  # the same on the clock on the wall, per run
    record_placements: bool = False  # keep every job's placement
    threads: int | None = None  # runs at the same time; None: one per core, at most 16; 1 on accelerators
    device: str = CPU  # where JAX plays, see `simulation.device`: cpu, or accelerator
    batched: bool | None = None  # play all seeds as one vmapped program; None: on accelerators only
    preemption: bool = False  # schedulers may stop running jobs, docs/semantics.md, section 8
    restart_s: float = 60.0  # what a start costs from the second on
    checkpoint_s: float = 0.0  # of work between two checkpoints; 0: a job that is stopped keeps all
    min_run_s: float = 0.0  # a job is not stopped earlier after a start
    failures: str | None = None  # MTBF,MTTR: servers fail by these mean hours, see `cluster.outages`
    failure_seed: int = 0  # of these draws
    outages: Outages | None = None  # servers are out as this says, docs/semantics.md, section 11
    knows: str = RUNTIMES  # what policies know of run times
    debug_checks: bool = False  # check the state after every decision round, in JAX: see `env.checks`
    engine: str = AUTO  # jax: the environment; compiled: the event loop; auto: that where it has what is needed

    def __post_init__(self) -> None:
        for name in ("interval_s", "horizon_s", "wall_limit_s"):
            value = getattr(self, name)
            if value is not None and not (np.isfinite(value) and value > 0):
                raise UserError(f"{name}: {value} should be a finite number of seconds > 0")
        if not SHORTEST_INTERVAL_S <= self.interval_s <= LONGEST_INTERVAL_S:
            raise UserError(
                f"interval_s: {self.interval_s} should be from {SHORTEST_INTERVAL_S:g} to {LONGEST_INTERVAL_S:g} s"
            )
        if not 1 <= self.rounds <= MOST_ROUNDS:
            raise UserError(f"rounds: {self.rounds} should be at least 1 and at most {MOST_ROUNDS}")
        if not (isinstance(self.max_forwards, int) and 0 <= self.max_forwards <= MOST_FORWARDS):
            raise UserError(f"max_forwards: {self.max_forwards} should be a whole number from 0 to {MOST_FORWARDS}")
        if self.device not in PATHS:
            raise UserError(f"device: {self.device!r} should be one of {', '.join(PATHS)}")
        if self.threads is not None and not (isinstance(self.threads, int) and self.threads >= 1):
            raise UserError(f"threads: {self.threads} should be a whole number of at least 1")
        if self.engine not in ENGINES:
            raise UserError(f"engine: {self.engine!r} should be one of {', '.join(ENGINES)}")
        costs = (self.restart_s, self.checkpoint_s, self.min_run_s)
        preemption(*costs)
        if not self.preemption and self.min_run_s != Settings.min_run_s:
            raise UserError("min_run_s: says when schedulers may stop jobs, but preemption is off")
        if not self.stops and costs[:2] != (Settings.restart_s, Settings.checkpoint_s):
            raise UserError(
                "restart_s, checkpoint_s: say what stopping jobs costs, but preemption and failures are off"
            )
        if self.failures is not None:
            parse_rates(self.failures)
        if self.failures is not None and self.outages is not None:
            raise UserError("failures, outages: servers fail by rates or as a file says, give one of them")
        if not 0 <= self.failure_seed < 2**31:
            raise UserError(f"failure_seed: {self.failure_seed} should be at least 0 and less than 2^31")
        if self.knows not in KNOWLEDGE:
            raise UserError(f"knows: {self.knows!r} should be one of {', '.join(KNOWLEDGE)}")
        if self.pair_factors is not None and not 0.0 <= self.pair_factors <= MOST_SIGMA:
            raise UserError(f"pair_factors: {self.pair_factors} should be from 0 to {MOST_SIGMA:g}")
        if self.pairs_known and self.pair_factors is None:
            raise UserError("pairs_known: says that policies see the factors of pair_factors, which are off")
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
        return (seeds > 1 and on_accelerator(self.device)) if self.batched is None else self.batched

    @property
    def fails(self) -> bool:
        """Servers go out and come back."""
        return self.failures is not None or self.outages is not None

    @property
    def stops(self) -> bool:
        """Jobs may start more than once."""
        return self.preemption or self.fails

    def described(self) -> dict[str, Any]:
        """All values, as a report has them."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return values | {"outages": None if self.outages is None else repr(self.outages)}


def fits_somewhere(cluster: Cluster, jobs: JobList) -> Bool[np.ndarray, "J"]:
    """Some partition could hold the gang when it is empty; the others are rejected."""
    gpus = np.asarray(cluster.group_gpus).reshape(cluster.shape[0], -1)
    sizes, index = np.unique(jobs.gpus_per_worker, return_inverse=True)
    most = (gpus[None] // sizes[:, None, None]).sum(-1).max(-1)  # workers of each size on the roomiest partition
    return most[index] >= jobs.workers


def env_config(cluster: Cluster, job_lists: Sequence[JobList], settings: Settings) -> EnvConfig:
    """The environment of a comparison, with the smallest tables; engines grow them before they bind.

    UserError if every job is larger than any partition, or the interval too short for int32 boundaries.
    """
    fits = [fits_somewhere(cluster, jobs) for jobs in job_lists]
    if not any(kept.any() for kept in fits):
        gpus = int(np.asarray(cluster.group_gpus).sum((1, 2)).max())
        smallest = min(int(jobs.num_gpus.min()) for jobs in job_lists)
        worker, group = min(int(jobs.gpus_per_worker.min()) for jobs in job_lists), int(cluster.group_gpus.max())
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
        early_stop=True,
        skip_idle=True,
        record_placements=settings.record_placements,
        starts=max(STARTS, cluster.shape[0]) if settings.record_placements and settings.stops else 0,
        gpu_speeds=distinct_speeds(cluster),
        shared_gpus=shared_gpus(cluster, job_lists),
        knows=settings.knows,
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
    if settings.failures is not None:
        span_s = drawn_span_s(cluster, job_lists, settings)
        horizon = min(horizon, int(np.ceil(span_s / settings.interval_s)))
        servers = int(np.asarray(cluster.server_id).max()) + 1
        outages = draw_outages(servers, parse_rates(settings.failures), span_s, settings.failure_seed)
    costs = preemption(settings.restart_s, settings.checkpoint_s, settings.min_run_s)
    return make_params(
        cluster,
        interval_s=settings.interval_s,
        horizon=horizon,
        interference=interference,
        profiles=profiles_on(cluster, models),
        max_forwards=on_device(settings.max_forwards, np.int32),
        preemption=costs.replace(voluntary=settings.preemption) if settings.stops else None,
        failures=None if outages is None else failures_of(cluster, outages, settings.interval_s, horizon),
    )


def pairs_of(settings: Settings, number: int) -> Pairs | None:
    """The factors of models that share a GPU in the job list at place `number`; None if there are none."""
    if settings.pair_factors is None:
        return None
    models = len(get_catalogue(settings.models).models)
    return draw_pairs(models, settings.pair_factors, settings.seed + number, known=settings.pairs_known)


def params_for(cluster: Cluster, jobs: JobList, settings: Settings) -> EnvParams:
    """`env_params` of the first job list, with the factors of its pairs of models."""
    params, pairs = env_params(cluster, env_config(cluster, [jobs], settings), settings, [jobs]), pairs_of(settings, 0)
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


def at_horizon(params: EnvParams, settings: Settings) -> str:
    """Why a run ended there."""
    seconds = int(params.horizon) * settings.interval_s
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
