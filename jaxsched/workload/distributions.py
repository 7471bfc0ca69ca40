"""Run times and gang sizes of real clusters: what a synthetic workload needs to know of a trace, and no more.

**Philly** as quantiles. Durations are quantiles per class of GPU count (1, 2-3, 4-7, 8-15, 16 and more). Between two
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
from collections.abc import Callable

import numpy as np
from jaxtyping import Float, Float64, Int, Int32, Int64

from jaxsched.errors import UserError

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
