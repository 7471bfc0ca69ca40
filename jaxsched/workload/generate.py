"""Synthetic workloads on the host: arrivals x run times x gang sizes x models, at an exact offered load.

For jobs that are made up on the device, inside a jitted training loop, see `jaxsched.workload.sampler`. Of real
clusters a synthetic workload knows run times and gang sizes, and no more:

**Philly**, as quantiles. Durations are quantiles per class of GPU count (1, 2-3, 4-7, 8-15, 16 and more). Between two
levels a duration is interpolated in log space, so that drawing one is an inverse transform that runs on the device as
well. The top 1% has finer levels up to the longest job: run times are so heavy tailed that one log-linear step from the
99th percentile to the maximum would double the mean. The tail is cut there: no longer job than the longest of the trace
is ever drawn (Philly's first 80%: 54 days).

**Acme**, a company's clusters for large language models, from published marginals. Hu et al., NSDI 2024; figures of GPU
jobs from `data/cluster_summary.csv` of InternLM/AcmeTrace 6d6ac9cd (CC-BY-4.0). Many jobs are short, and few have most
of the GPU time: half of the jobs have one GPU, the largest 1,024. Half of the jobs completed, 43% failed, 7% were
cancelled (Seren): run times are those until the end, whichever it was. What the marginals do not say is assumed: gangs
are powers of two with weights `size^-a`, single GPUs are 55%; run times are log-normal with a median that grows with
`size^b`, the same for all ways to end. `a`, `b` and the log-normal are such that mean GPUs, mean and median run time,
and mean GPU time are those published.
"""

import dataclasses
import functools
import importlib.resources
import json
import math
from collections.abc import Callable, Mapping
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float, Float64, Int, Int32, Int64, Shaped

from jaxsched.errors import UserError
from jaxsched.semantics import LONGEST_S, SHORTEST_S
from jaxsched.workload.catalogue import BUILT_IN, LLM_KINDS, Catalogue, Mix, find_llm_kinds, get_mix
from jaxsched.workload.jobs import WHOLE, JobList, make_job_list, rescale_to_load, sharing, thousandths
from jaxsched.workload.traces import PS_FRACTION, draw_ps

GPU_CLASSES = (1, 2, 4, 8, 16)  # the smallest GPU count of each class
LEVELS = np.round(np.concatenate([np.arange(100) / 100, [0.992, 0.994, 0.996, 0.998, 0.999, 0.9995, 0.9999, 1.0]]), 4)


@dataclasses.dataclass(frozen=True)
class Quantiles:
    """Fitted to a trace; C = len(GPU_CLASSES), Q = len(LEVELS)."""

    duration_s: Float64[np.ndarray, "C Q"]  # quantiles at LEVELS, rows ascend
    sizes: Int32[np.ndarray, "S"]  # the GPU counts that occur, ascending
    counts: Int64[np.ndarray, "S"]  # jobs of each size


def gpu_class(num_gpus: Int[np.ndarray, "*batch"]) -> Int[np.ndarray, "*batch"]:
    """Index into GPU_CLASSES of GPU counts >= 1."""
    return np.searchsorted(GPU_CLASSES, num_gpus, side="right") - 1


def mean_duration_s(
    duration_s: Float[np.ndarray, "*batch Q"], scale: float = 1.0, cap_s: float = np.inf
) -> Float[np.ndarray, "*batch"]:
    """Mean of `min(scale * d, cap_s)` for d drawn from quantiles at LEVELS, in closed form.

    On a step of the levels from a to b the duration is log-linear, so that its mean is (b - a) / ln(b / a).
    """
    low, high = scale * duration_s[..., :-1], scale * duration_s[..., 1:]
    with np.errstate(invalid="ignore", divide="ignore"):
        below = np.clip(np.log(cap_s / low) / np.log(high / low), 0.0, 1.0)  # share of the step below the cap
    below = np.where(high <= cap_s, 1.0, np.where(low >= cap_s, 0.0, below))
    top = np.minimum(high, cap_s)
    growth = np.log(np.maximum(top / low, 1.0))
    mean_below = np.where(growth > 1e-9, (top - low) / np.maximum(growth, 1e-9), low)
    above = np.where(below < 1.0, cap_s, 0.0)
    return np.asarray((np.diff(LEVELS) * (below * mean_below + (1 - below) * above)).sum(-1))


def solve_scale(mean_at: Callable[[float], float], mean_s: float, cap_s: float) -> float:
    """The scale at which `mean_at`, the mean of durations that are scaled and then cut at `cap_s`, is `mean_s`.

    UserError unless 0 < mean_s < cap_s. By doubling and bisection: the mean grows with the scale, towards the cap.
    """
    if not (np.isfinite(mean_s) and 0 < mean_s < cap_s):
        raise UserError(f"mean_duration_s: {mean_s} should be > 0 and less than duration_cap_s ({cap_s:g})")
    low, high = 0.0, mean_s / mean_at(1.0)
    for _ in range(200):
        if mean_at(high) >= mean_s:
            break
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if mean_at(middle) < mean_s else (low, middle)
    return high


def draw_durations(
    quantiles: Quantiles, num_gpus: Int[np.ndarray, "J"], uniform: Float[np.ndarray, "J"]
) -> Float64[np.ndarray, "J"]:
    """Durations in seconds for jobs of `num_gpus`, by inverse transform of `uniform` in [0, 1)."""
    logs = np.log(quantiles.duration_s)
    columns = np.array([np.interp(uniform, LEVELS, row) for row in logs])
    return np.exp(np.take_along_axis(columns, gpu_class(num_gpus)[None], 0)[0])


@functools.cache
def philly_quantiles() -> Quantiles:
    """Fitted to the first 80% of the Philly trace; provenance stands in the file."""
    text = importlib.resources.files("jaxsched.workload").joinpath("data/philly_quantiles.json").read_text()
    data = json.loads(text)
    return Quantiles(
        np.array(data["duration_s"], np.float64), np.array(data["sizes"], np.int32), np.array(data["counts"], np.int64)
    )


SINGLE = 0.55  # share of jobs of one GPU; the published median is 1


@dataclasses.dataclass(frozen=True)
class Marginals:
    """Of a cluster's GPU jobs."""

    mean_run_s: float
    median_run_s: float
    longest_s: float
    mean_gpus: float
    largest: int
    mean_gpu_s: float  # GPU-seconds of jobs that completed, failed or were cancelled, over their number


SEREN = Marginals(1414.335, 122.0, 1209604.0, 5.68, 1024, (4560592618 + 14274584510 + 2675447459) / 663813)
KALOS = Marginals(1259.689, 124.0, 625740.0, 26.77, 1024, (1667685146 + 3239202064 + 426292851) / 19907)


@dataclasses.dataclass(frozen=True)
class Shape:
    """What jobs are drawn from: a size with `weights`, then `exp(location + growth ln size + spread z)` seconds."""

    sizes: Int[np.ndarray, "S"]
    weights: Float64[np.ndarray, "S"]
    location: float
    growth: float
    spread: float


def shape_of(of: Marginals) -> Shape:
    """The shape that has these marginals."""
    sizes = 2 ** np.arange(int(math.log2(of.largest)) + 1)

    def weights(power: float) -> Float64[np.ndarray, "S"]:
        others = sizes[1:] ** -power
        return np.concatenate([[SINGLE], (1 - SINGLE) * others / others.sum()])

    power = _bisect(lambda x: -float(weights(x) @ sizes) + of.mean_gpus, -2.0, 4.0)
    share = weights(power)
    ratio = of.mean_gpu_s / of.mean_run_s
    growth = _bisect(lambda b: float(share @ sizes ** (1.0 + b)) / float(share @ sizes**b) - ratio, -1.0, 3.0)
    mean = math.log(of.mean_run_s / float(share @ sizes**growth))

    def below_median(spread: float) -> float:
        location = mean - spread**2 / 2
        z = (math.log(of.median_run_s) - location - growth * np.log(sizes)) / spread
        return float(share @ [0.5 * (1 + math.erf(x / math.sqrt(2))) for x in z]) - 0.5

    spread = _bisect(below_median, 0.5, 4.0)
    return Shape(sizes, share, mean - spread**2 / 2, growth, spread)


def draw_acme(
    rng: np.random.Generator, of: Marginals, num_jobs: int, max_gpus: int, mean_s: float | None, cap_s: float
) -> tuple[Int[np.ndarray, "J"], Float64[np.ndarray, "J"]]:
    """GPUs and run times of so many jobs; gangs above `max_gpus` are left out.

    Run times are scaled such that their mean is `mean_s`, if given, after they were cut at `cap_s`.
    """
    shape = shape_of(of)
    kept = shape.sizes <= max_gpus
    gpus = rng.choice(shape.sizes[kept], size=num_jobs, p=shape.weights[kept] / shape.weights[kept].sum())
    logs = shape.location + shape.growth * np.log(gpus) + shape.spread * rng.standard_normal(num_jobs)
    run_s = np.clip(np.exp(logs), 1.0, of.longest_s)
    scale = 1.0
    if mean_s is not None:
        scale = solve_scale(lambda c: float(np.minimum(c * run_s, cap_s).mean()), mean_s, cap_s)
    return gpus, np.minimum(scale * run_s, cap_s)


def _bisect(rises, low: float, high: float) -> float:
    """Where a function that rises is 0."""
    assert rises(low) < 0 < rises(high)
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if rises(middle) < 0 else (low, middle)
    return (low + high) / 2


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
    acme: Marginals | None = None  # sizes and run times of a cluster of Acme instead
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
