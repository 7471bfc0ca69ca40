"""Synthetic workloads on the device: a jit- and vmap-able sampler of job tables for training.

Every number is a leaf of `SamplerParams`, so that a batch of environments can sweep loads, mixes and run times.
Run times are drawn by inverse transform of quantiles (see `jaxsched.workload.generate`), arrivals from cumulated
gaps in units of the interval; float32 resolves those to 1/1000 of an interval up to about 10^4 intervals.
"""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float32, Float64, Int32, PRNGKeyArray

from jaxsched.errors import UserError
from jaxsched.pytree import Pytree
from jaxsched.workload.catalogue import get_mix
from jaxsched.workload.generate import (
    DAY_S,
    GPU_CLASSES,
    LEVELS,
    MEAN_DURATION_S,
    NUM_TENANTS,
    Durations,
    JobDistribution,
    gang_sizes,
    gpu_class,
    mean_duration_s,
    philly_quantiles,
    slow_share,
    solve_scale,
)
from jaxsched.workload.jobs import WHOLE, JobTable

GPU_SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 64, 128)  # the gang sizes that a sampler can draw
_SIZE_CLASS = gpu_class(np.array(GPU_SIZES))
_MIDPOINTS = 4096  # of an integral over quantiles
_PHASE_STEPS = 20  # bisection of a bracket of at most a period: to 1e-6 of it


class SamplerParams(Pytree):
    """What `sample_table` draws from."""

    jobs_per_interval: Float32[Array, ""]  # mean arrival rate
    interval_s: Float32[Array, ""]
    log_duration: Float32[Array, "C Q"]  # log seconds, quantiles at LEVELS per class of GPU count
    duration_scale: Float32[Array, ""]  # a duration is min(scale * quantile, cap)
    duration_cap_s: Float32[Array, ""]
    size_probs: Float32[Array, "S"]  # over GPU_SIZES
    model_probs: Float32[Array, "models"]  # over MODEL_NAMES
    ps_fraction: Float32[Array, ""]  # share of the jobs of several workers that use parameter servers
    slow_share: Float32[Array, ""]  # share of long gaps, 0.5 = Poisson (see `generate.slow_share`)
    diurnal_amplitude: Float32[Array, ""]  # in [0, 1), of the daily sine of the arrival rate; its phase is drawn
    diurnal_period: Float32[Array, ""]  # in intervals
    home_skew: Float32[Array, ""]  # home h has weight (h + 1)^-skew


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampledJobs(JobDistribution):
    """Jobs that are made up on the device."""

    burstiness: float = 1.0  # coefficient of variation of the gaps, 1: Poisson
    diurnal_amplitude: float = 0.0  # in [0, 1), of the daily sine of the arrival rate

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.diurnal_amplitude < 1 or not 0 <= self.ps_fraction <= 1 or not self.home_skew >= 0:
            raise UserError(
                "sampler: needs 0 <= diurnal_amplitude < 1, 0 <= ps_fraction <= 1, home_skew >= 0, not "
                f"{self.diurnal_amplitude}, {self.ps_fraction}, {self.home_skew}"
            )


def sampler_for_load(
    load: float, total_gpus: int, interval_s: float, kind: SampledJobs = SampledJobs()
) -> SamplerParams:
    """A sampler whose mean offered load on `total_gpus` GPUs is `load`.

    The arrival rate is load * total_gpus * interval_s / E[GPUs * duration], the mean area in closed form from the
    quantiles (`quantiles.mean_duration_s`). The load of one table scatters about it: Philly's uncut run times are so
    heavy tailed that half of the tables of 2,000 jobs lie outside 0.9 to 1.15 of it. For training give
    `mean_duration_s` and a cap.

    Raises:
        UserError: on a parameter out of its range.
    """
    for name, value in {"load": load, "total_gpus": total_gpus, "interval_s": interval_s}.items():
        if not (np.isfinite(value) and value > 0):
            raise UserError(f"{name}: {value} should be a finite number > 0")
    size_probs = _size_probabilities(kind.gpu_counts, min(kind.max_gpus, total_gpus))
    table_s = _duration_table(kind.durations)
    scale = _scale_for_mean(table_s, size_probs, kind)
    area = float(size_probs * np.array(GPU_SIZES) @ _mean_by_size(table_s, scale, kind.duration_cap_s))
    leaves = {
        "jobs_per_interval": load * total_gpus * interval_s / area,
        "interval_s": interval_s,
        "log_duration": np.log(table_s),
        "duration_scale": scale,
        "duration_cap_s": kind.duration_cap_s,
        "size_probs": size_probs,
        "model_probs": get_mix(kind.mix).probabilities,
        "ps_fraction": kind.ps_fraction,
        "slow_share": slow_share(kind.burstiness),
        "diurnal_amplitude": kind.diurnal_amplitude,
        "diurnal_period": DAY_S / interval_s,
        "home_skew": kind.home_skew,
    }
    return SamplerParams(**{name: jnp.asarray(leaf, jnp.float32) for name, leaf in leaves.items()})


def sample_table(
    key: PRNGKeyArray, params: SamplerParams, num_jobs: int, num_homes: int, num_tenants: int = NUM_TENANTS
) -> JobTable:
    """`num_jobs` jobs in order of submission; the three counts are static under jit.

    `home` is raw, in 0..num_homes-1: jobs that do not fit there are moved by the environment. Time 0 is not an arrival:
    the first job comes after a gap like any other.
    """
    names = ("gap", "slow", "phase", "size", "duration", "model", "ps", "home", "tenant")
    uniform = dict(zip(names, jax.random.uniform(key, (len(names), num_jobs)), strict=True))
    time = _arrival_times(uniform["gap"], uniform["slow"], uniform["phase"][0], params)
    arrival = jnp.ceil(time)
    size = _categorical(uniform["size"], params.size_probs)
    workers = jnp.asarray(GPU_SIZES, jnp.int32)[size]
    homes = (1.0 + jnp.arange(num_homes)) ** -params.home_skew
    duration = _durations(uniform["duration"], jnp.asarray(_SIZE_CLASS)[size], params)
    return JobTable(
        arrival=arrival.astype(jnp.int32),
        lead_s=jnp.minimum(arrival - time, 1 - 1e-6) * params.interval_s,
        duration_s=duration,
        estimate_s=duration,
        workers=workers,
        gpus_per_worker=jnp.ones_like(workers),
        ps=jnp.where((workers > 1) & (uniform["ps"] < params.ps_fraction), jnp.maximum(1, workers // 4), 0),
        model=_categorical(uniform["model"], params.model_probs),
        tenant=(uniform["tenant"] * num_tenants).astype(jnp.int32),
        home=_categorical(uniform["home"], homes),
        milli=jnp.full_like(workers, WHOLE),
    )


def tilt(params: SamplerParams, tilt: Float32[Array, ""]) -> SamplerParams:
    """The same with gangs drawn with weights `probability * size^tilt`: larger ones for a `tilt` above 0."""
    weights = params.size_probs * jnp.asarray(GPU_SIZES, jnp.float32) ** tilt
    return params.replace(size_probs=weights / weights.sum())


def mean_area(params: SamplerParams) -> Float32[Array, ""]:
    """Mean GPU-seconds of a job, by the midpoint rule over the quantiles of its run time."""
    middles = (jnp.arange(_MIDPOINTS) + 0.5) / _MIDPOINTS
    by_class = jax.vmap(lambda row: _durations(middles, jnp.full(_MIDPOINTS, row), params).mean())
    mean_s = by_class(jnp.arange(params.log_duration.shape[0]))[jnp.asarray(_SIZE_CLASS)]
    return (params.size_probs * jnp.asarray(GPU_SIZES, jnp.float32) * mean_s).sum()


def _categorical(uniform: Float32[Array, "J"], weights: Float32[Array, "n"]) -> Int32[Array, "J"]:
    """Indices drawn with `weights` from `uniform` in [0, 1); weight 0 is never drawn."""
    cumulated = jnp.cumsum(weights)
    below = uniform * cumulated[-1] * (1 - 1e-6)  # stays under the last positive weight's end after rounding
    return (cumulated[None, :] <= below[:, None]).sum(-1).astype(jnp.int32)


def _durations(uniform: Float32[Array, "J"], row: Int32[Array, "J"], params: SamplerParams) -> Float32[Array, "J"]:
    """Seconds: quantiles of class `row`, interpolated in log space, scaled, then capped."""
    levels = jnp.asarray(LEVELS, jnp.float32)
    left = jnp.clip(jnp.searchsorted(levels, uniform, side="right") - 1, 0, len(LEVELS) - 2)
    share = (uniform - levels[left]) / (levels[left + 1] - levels[left])
    low, high = params.log_duration[row, left], params.log_duration[row, left + 1]
    return jnp.minimum(jnp.exp(low + share * (high - low)) * params.duration_scale, params.duration_cap_s)


def _arrival_times(
    gap: Float32[Array, "J"], slow: Float32[Array, "J"], phase: Float32[Array, ""], params: SamplerParams
) -> Float32[Array, "J"]:
    """Ascending, in intervals: hyperexponential gaps, warped by the daily sine with a random phase.

    With rate 1 + A sin(w t + phase) the operational time is L(t) = t + A/w (cos(phase) - cos(w t + phase)); a job comes
    at the t with L(t) = clock, found by bisection.
    """
    rate = jnp.where(slow < params.slow_share, 2 * params.slow_share, 2 * (1 - params.slow_share))
    clock = jnp.cumsum(-jnp.log1p(-gap) / rate) / params.jobs_per_interval
    angular = 2 * jnp.pi / params.diurnal_period
    start, depth = 2 * jnp.pi * phase, params.diurnal_amplitude / angular

    def halve(_: Int32[Array, ""], bracket: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bracket
        middle = (low + high) / 2
        early = middle + depth * (jnp.cos(start) - jnp.cos(angular * middle + start)) < clock
        return jnp.where(early, middle, low), jnp.where(early, high, middle)

    bracket = jnp.maximum(clock - 2 * depth, 0.0), clock + 2 * depth
    _, time = jax.lax.fori_loop(0, _PHASE_STEPS, halve, bracket)
    return jax.lax.cummax(time)


def _size_probabilities(gpu_counts: Mapping[int, float] | None, max_gpus: int) -> Float64[np.ndarray, "S"]:
    """Shares of GPU_SIZES. UserError on a size that is not one of them."""
    sizes, weights = gang_sizes(gpu_counts, max_gpus)
    unknown = sorted(set(sizes.tolist()) - set(GPU_SIZES))
    if unknown:
        raise UserError(f"gpu_counts: {unknown} are not sizes that the sampler can draw, those are {GPU_SIZES}")
    probabilities = np.zeros(len(GPU_SIZES))
    probabilities[np.searchsorted(GPU_SIZES, sizes)] = weights
    return probabilities


def _duration_table(kind: Durations) -> Float64[np.ndarray, "C Q"]:
    """Seconds; 'exponential' (mean about 1) is cut at its 0.01% and 99.995% quantiles."""
    if kind == "philly":
        return philly_quantiles().duration_s
    levels = np.clip(LEVELS, 1e-4, 1 - 5e-5)
    row = -np.log1p(-levels) if kind == "exponential" else np.ones(len(LEVELS))
    return np.tile(row, (len(GPU_CLASSES), 1))


def _mean_by_size(table_s: Float64[np.ndarray, "C Q"], scale: float, cap_s: float) -> Float64[np.ndarray, "S"]:
    """Seconds: mean duration of each of GPU_SIZES."""
    return mean_duration_s(table_s, scale, cap_s)[_SIZE_CLASS]


def _scale_for_mean(
    table_s: Float64[np.ndarray, "C Q"], size_probs: Float64[np.ndarray, "S"], of: JobDistribution
) -> float:
    """The scale at which the mean duration over all jobs, after the cap, is that which is asked for.

    It is 1 for Philly where none is.
    """
    if of.mean_duration_s is None and of.durations == "philly":
        return 1.0
    mean_s, cap_s = MEAN_DURATION_S if of.mean_duration_s is None else of.mean_duration_s, of.duration_cap_s
    if of.durations == "constant":
        return min(mean_s, cap_s)
    return solve_scale(lambda scale: float(size_probs @ _mean_by_size(table_s, scale, cap_s)), mean_s, cap_s)
