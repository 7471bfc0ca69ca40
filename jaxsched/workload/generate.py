"""Synthetic workloads on the host: arrivals x run times x gang sizes x models, at an exact offered load.

For jobs that are made up on the device, inside a jitted training loop, see `jaxsched.workload.sampler`.
"""

import dataclasses
from collections.abc import Mapping
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float64, Int, Shaped

from jaxsched.errors import UserError
from jaxsched.semantics import LONGEST_S, SHORTEST_S
from jaxsched.workload.catalogue import BUILT_IN, LLM_KINDS, Catalogue, Mix, find_llm_kinds, get_mix
from jaxsched.workload.distributions import Marginals, draw_acme, draw_durations, philly_quantiles, solve_scale
from jaxsched.workload.jobs import WHOLE, JobList, make_job_list, rescale_to_load, sharing, thousandths
from jaxsched.workload.traces import PS_FRACTION, draw_ps

Arrivals = Literal["poisson", "diurnal", "bursty"]
Durations = Literal["philly", "exponential", "constant"]

DAY_S = 86400.0
DIURNAL_AMPLITUDE = 0.5  # assumption
BURSTINESS = 2.35  # coefficient of variation of Philly's inter-arrival times, the first 1,000 jobs (its start) left out
MEAN_DURATION_S = 3600.0  # assumption, of 'exponential' and 'constant' where none is given
MAX_GPUS = 32  # the largest gang of Philly's first 80%
NUM_TENANTS = 8  # assumption


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobDistribution:
    """What made-up jobs are like, on the host (`SyntheticJobs`) as on the device (`sampler.SampledJobs`).

    UserError on a value out of its range.
    """

    durations: Durations = "philly"  # Philly's quantiles given the gang size, exponential, or all the same
    mean_duration_s: float | None = None  # to which run times are scaled, after the cap; None: Philly's are not scaled
    duration_cap_s: float = np.inf  # at which run times are cut
    gpu_counts: Mapping[int, float] | None = None  # weights of gang sizes; None: Philly's
    max_gpus: int = MAX_GPUS  # gangs of more, or of more than the cluster has, are left out
    mix: str | Mix | Mapping[str, float] = "default"  # of models, see `workload.catalogue`
    ps_fraction: float = PS_FRACTION  # share of the jobs of several workers that use parameter servers
    home_skew: float = 0.0  # home h has weight (h + 1)^-skew; on the host 0 deals them round robin

    def __post_init__(self) -> None:
        if self.durations not in get_args(Durations):
            raise UserError(f"durations: unknown kind {self.durations!r}; known are {', '.join(get_args(Durations))}")
        if not self.duration_cap_s > 0:
            raise UserError(f"duration_cap_s: {self.duration_cap_s} should be > 0 (inf for none)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SyntheticJobs(JobDistribution):
    """Jobs that are made up on the host; tenants are uniform."""

    arrivals: Arrivals = "poisson"  # also with a daily sine of amplitude 0.5, or as bursty as Philly's
    gpu_share: float = 1.0  # of a GPU that jobs of one GPU ask for, rounded to thousandths
    schedulers: int = 1
    tenants: int = NUM_TENANTS
    allowed: Mapping[str, float] | None = None  # weights of GPU types that jobs may use: {"": 3, "A100|H100": 1}
    catalogue: Catalogue = BUILT_IN
    acme: Marginals | None = None  # sizes and run times of a cluster of Acme instead (`workload.distributions`)
    llm_from: int | None = (
        None  # gangs of at least so many GPUs train language models (`workload.catalogue`), where one fits
    )
    planned: bool = False  # models with plans only, each job with the GPUs of its plan (`workload.llm`)


def synthetic(
    rng: np.random.Generator, num_jobs: int, total_gpus: int, load: float, kind: SyntheticJobs = SyntheticJobs()
) -> JobList:
    """`num_jobs` jobs whose offered load on `total_gpus` GPUs is exactly `load`, the first submitted at 0 s.

    Raises:
        UserError: on a parameter out of its range.
    """
    if num_jobs < 2 or total_gpus < 1 or kind.schedulers < 1 or kind.tenants < 1:
        raise UserError(
            f"synthetic: needs num_jobs >= 2, total_gpus, schedulers and tenants >= 1, not {num_jobs}, {total_gpus}, "
            f"{kind.schedulers}, {kind.tenants}"
        )
    if kind.planned:
        of_plan, gpus = _draw_plans(rng, num_jobs, total_gpus, kind)
        run_s = _durations(rng, gpus, kind)
    else:
        of_plan, (gpus, run_s) = None, _draw_sizes(rng, num_jobs, total_gpus, kind)
    if kind.home_skew == 0:
        home = np.arange(num_jobs) % kind.schedulers
    else:
        home = rng.choice(kind.schedulers, size=num_jobs, p=home_probabilities(kind.schedulers, kind.home_skew))
    models = rng.choice(len(kind.catalogue.models), size=num_jobs, p=get_mix(kind.mix, kind.catalogue).probabilities)
    ps = draw_ps(rng, gpus, kind.ps_fraction)
    if not (np.isfinite(load) and load > 0):
        raise UserError(f"load: {load} should be a finite number > 0")
    if (run_s > LONGEST_S).any() or (run_s < SHORTEST_S).any():
        raise UserError(
            f"mean_duration_s: {kind.mean_duration_s} makes run times of {run_s.min():g} to {run_s.max():g} s, should "
            f"be within {SHORTEST_S:g} and {LONGEST_S:g} s"
        )
    held = np.where(gpus == 1, thousandths(kind.gpu_share) / WHOLE, gpus)
    submit_s = _arrivals(rng, num_jobs, float(held @ run_s) / (load * total_gpus), kind.arrivals)
    wide = np.ones(num_jobs, np.int64)
    if kind.llm_from is not None:
        models, ps, wide = _language_models(rng, gpus, kind.llm_from, models, ps, kind.catalogue)
    if of_plan is not None:
        models, ps = of_plan, np.zeros_like(ps)
    tenant = rng.integers(kind.tenants, size=num_jobs)
    jobs = make_job_list(
        submit_s,
        run_s,
        gpus // wide,
        gpus_per_worker=wide,
        ps=ps,
        model=models,
        tenant=tenant,
        home=home,
        allowed="" if kind.allowed is None else _draw_allowed(rng, num_jobs, kind.allowed),
        models=len(kind.catalogue.models),
    )
    return rescale_to_load(sharing(jobs, kind.gpu_share), total_gpus, load)  # takes away what rounding left


def _draw_allowed(rng: np.random.Generator, num_jobs: int, weights: Mapping[str, float]) -> Shaped[np.ndarray, "J"]:
    """The GPU types that jobs may use."""
    given = np.array(list(weights.values()), np.float64)
    if not (len(given) and np.isfinite(given).all() and (given >= 0).all() and given.sum() > 0):
        raise UserError(f'allowed: {dict(weights)} should give weights to GPU types, such as {{"": 3, "A100|H100": 1}}')
    return rng.choice(list(weights), size=num_jobs, p=given / given.sum())


def _draw_sizes(
    rng: np.random.Generator, num_jobs: int, total_gpus: int, kind: SyntheticJobs
) -> tuple[Int[np.ndarray, "J"], Float64[np.ndarray, "J"]]:
    """GPUs and run times in seconds."""
    most = min(kind.max_gpus, total_gpus)
    if kind.acme is not None:
        return draw_acme(rng, kind.acme, num_jobs, most, kind.mean_duration_s, kind.duration_cap_s)
    sizes, weights = gang_sizes(kind.gpu_counts, most)
    gpus = rng.choice(sizes, size=num_jobs, p=weights)
    return gpus, _durations(rng, gpus, kind)


def _draw_plans(
    rng: np.random.Generator, num_jobs: int, total_gpus: int, kind: SyntheticJobs
) -> tuple[Int[np.ndarray, "J"], Int[np.ndarray, "J"]]:
    """Models and GPUs: at most a quarter of a scheduler's."""
    from jaxsched.workload.llm import draw_planned  # a fifth of a second, which other workloads do not need

    return draw_planned(rng, kind.catalogue.models, num_jobs, total_gpus // kind.schedulers // 4)


def _language_models(
    rng: np.random.Generator,
    gpus: Int[np.ndarray, "J"],
    smallest: int,
    models: Int[np.ndarray, "J"],
    ps: Int[np.ndarray, "J"],
    catalogue: Catalogue,
) -> tuple[Int[np.ndarray, "J"], Int[np.ndarray, "J"], Int[np.ndarray, "J"]]:
    """Models, PS and GPUs per worker with language models in the large gangs: any that fits whole, as all-reduce."""
    models, ps, wide, chance = models.copy(), ps.copy(), np.ones(len(gpus), np.int64), rng.random(len(gpus))
    for size in np.unique(gpus[gpus >= smallest]):
        here, kinds = gpus == size, find_llm_kinds(int(size))
        if kinds:
            chosen = np.array(kinds)[(chance[here] * len(kinds)).astype(int)]
            models[here] = np.array([catalogue.index(kind.name) for kind in LLM_KINDS])[chosen]
            wide[here] = np.array([kind.tensor for kind in LLM_KINDS])[chosen]
            ps[here] = 0
    return models, ps, wide


def gang_sizes(
    gpu_counts: Mapping[int, float] | None, max_gpus: int
) -> tuple[Int[np.ndarray, "S"], Float64[np.ndarray, "S"]]:
    """(sizes up to `max_gpus`, probabilities), Philly's where `gpu_counts` is None.

    UserError if no size is left or a weight is bad.
    """
    philly = philly_quantiles()
    given = dict(zip(philly.sizes.tolist(), philly.counts.tolist(), strict=True)) if gpu_counts is None else gpu_counts
    kept = {size: weight for size, weight in given.items() if size <= max_gpus}
    sizes, weights = np.array(list(kept), np.int64), np.array(list(kept.values()), np.float64)
    if (
        not len(kept)
        or (sizes < 1).any()
        or not np.isfinite(weights).all()
        or (weights < 0).any()
        or weights.sum() <= 0
    ):
        raise UserError(f"gpu_counts: {dict(given)} should give sizes from 1 to {max_gpus} weights >= 0, not all 0")
    return sizes, weights / weights.sum()


def home_probabilities(schedulers: int, skew: float) -> Float64[np.ndarray, "schedulers"]:
    """Proportional to (h + 1)^-skew."""
    if not (np.isfinite(skew) and skew >= 0):
        raise UserError(f"home_skew: {skew} should be a finite number >= 0")
    weights = np.arange(1, schedulers + 1) ** -float(skew)
    return weights / weights.sum()


def _scale_to_mean(durations: Float64[np.ndarray, "J"], mean_s: float, cap_s: float) -> Float64[np.ndarray, "J"]:
    """`min(c * durations, cap_s)` with the c that makes the mean `mean_s`. UserError unless 0 < mean_s < cap_s."""
    scale = solve_scale(lambda c: float(np.minimum(c * durations, cap_s).mean()), mean_s, cap_s)
    return np.minimum(scale * durations, cap_s)


def _durations(
    rng: np.random.Generator, num_gpus: Int[np.ndarray, "J"], kind: JobDistribution
) -> Float64[np.ndarray, "J"]:
    """Seconds."""
    mean_s, cap_s = kind.mean_duration_s, kind.duration_cap_s
    if kind.durations == "philly":
        raw = draw_durations(philly_quantiles(), num_gpus, rng.random(len(num_gpus)))
        return np.minimum(raw, cap_s) if mean_s is None else _scale_to_mean(raw, mean_s, cap_s)
    mean_s = MEAN_DURATION_S if mean_s is None else mean_s
    if kind.durations == "constant":
        return np.full(len(num_gpus), min(mean_s, cap_s), np.float64)
    return _scale_to_mean(np.maximum(rng.exponential(size=len(num_gpus)), 1e-6), mean_s, cap_s)


def _arrivals(rng: np.random.Generator, num_jobs: int, span_s: float, kind: Arrivals) -> Float64[np.ndarray, "J"]:
    """Ascending from 0 to `span_s` (up to rounding)."""
    if kind not in get_args(Arrivals):
        raise UserError(f"arrivals: unknown kind {kind!r}; known are {', '.join(get_args(Arrivals))}")
    gaps = rng.exponential(size=num_jobs - 1)
    if kind == "bursty":
        rare = slow_share(BURSTINESS)
        gaps /= np.where(rng.random(num_jobs - 1) < rare, 2 * rare, 2 * (1 - rare))
    clock = np.concatenate([[0.0], np.cumsum(gaps)])
    if kind != "diurnal":
        return clock * (span_s / clock[-1])
    # Poisson in the operational time L(t) = t + A P / 2 pi (1 - cos(2 pi t / P)): starts at the mean rate, rising
    times = np.linspace(0.0, span_s, int(np.clip(200 * span_s / DAY_S, 1000, 10**7)))
    depth = DIURNAL_AMPLITUDE * DAY_S / (2 * np.pi)
    operational = times + depth * (1 - np.cos(2 * np.pi * times / DAY_S))
    return np.interp(clock * (operational[-1] / clock[-1]), operational, times)


def slow_share(variation: float) -> float:
    """Share p of long gaps of the hyperexponential with balanced means and this coefficient of variation >= 1.

    A gap is exponential with rate 2p with probability p, else with rate 2(1 - p); mean 1, variance 1/(2 p (1 - p)) - 1.
    """
    if not (np.isfinite(variation) and variation >= 1):
        raise UserError(f"burstiness: {variation} should be a coefficient of variation >= 1 (1 is Poisson)")
    square = variation**2
    return float(1 - np.sqrt((square - 1) / (square + 1))) / 2
