"""Jobs like those of Acme, a company's clusters for large language models, from published marginals.

Hu et al., NSDI 2024; figures of GPU jobs from `data/cluster_summary.csv` of InternLM/AcmeTrace 6d6ac9cd (CC-BY-4.0).
Many jobs are short, and few have most of the GPU time: half of the jobs have one GPU, the largest 1,024. Half of the
jobs completed, 43% failed, 7% were cancelled (Seren): run times are those until the end, whichever it was. What the
marginals do not say is assumed: gangs are powers of two with weights `size^-a`, single GPUs are 55%; run times are log-
normal with a median that grows with `size^b`, the same for all ways to end. `a`, `b` and the log-normal are such that
mean GPUs, mean and median run time, and mean GPU time are those published.
"""

import dataclasses
import math

import numpy as np
from jaxtyping import Float64, Int

from jaxsched.workload.quantiles import solve_scale

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


def draw(
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
