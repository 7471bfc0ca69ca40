"""Run times and gang sizes as quantiles: what a synthetic workload needs to know of a real trace, and no more.

Durations are quantiles per class of GPU count (1, 2-3, 4-7, 8-15, 16 and more). Between two levels a duration is
interpolated in log space, so that drawing one is an inverse transform that runs on the device as well. The top 1% has
finer levels up to the longest job: run times are so heavy tailed that one log-linear step from the 99th percentile to
the maximum would double the mean. The tail is cut there: no longer job than the longest of the trace is ever drawn
(Philly's first 80%: 54 days).
"""

import dataclasses
import functools
import importlib.resources
import json
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
