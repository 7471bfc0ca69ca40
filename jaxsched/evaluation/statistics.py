"""Confidence intervals: over independent seeds, and over the correlated jobs of one run."""

import math
from collections.abc import Callable

import numpy as np
from jaxtyping import Float64

# Two-sided 95% quantiles of Student's t for 1 to 10 degrees of freedom; above, the expansion in `t_quantile`.
_T95 = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)
_Z95 = 1.959964
BATCHES = 20
SMALLEST_BATCH = 10  # jobs; with fewer there is no interval

Interval = tuple[float, float]
UNKNOWN: Interval = (math.nan, math.nan)


def t_quantile(freedom: int) -> float:
    """The 97.5% quantile of Student's t (Abramowitz & Stegun 26.7.5 above 10 degrees of freedom, to 2e-4)."""
    if freedom <= len(_T95):
        return _T95[freedom - 1]
    z = _Z95
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return sum(term / freedom**power for power, term in enumerate(terms))


def mean_interval(values: Float64[np.ndarray, "n"]) -> Interval:
    """95% t interval of the mean of independent `values`; NaN for fewer than two."""
    if len(values) < 2:
        return UNKNOWN
    half = t_quantile(len(values) - 1) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return float(np.mean(values)) - half, float(np.mean(values)) + half


def batch_interval(values: Float64[np.ndarray, "n"]) -> Interval:
    """95% interval of the mean of correlated `values`, in their order, by 20 batch means.

    Neighbouring jobs wait in the same queue, so that their JCTs are far from independent: the values are cut into 20
    consecutive batches, whose means are treated as independent (Law & Kelton). NaN for fewer than 200 values. Where
    congestion lasts longer than a batch the interval is still too narrow: seeds say more.
    """
    if len(values) < BATCHES * SMALLEST_BATCH:
        return UNKNOWN
    means = np.array([batch.mean() for batch in np.array_split(values, BATCHES)])
    middle = float(np.mean(values))
    half = t_quantile(BATCHES - 1) * float(np.std(means, ddof=1)) / math.sqrt(BATCHES)
    return middle - half, middle + half


RESAMPLES = 2000  # of a bootstrap


def interquartile_mean(scores: Float64[np.ndarray, "runs tasks"]) -> float:
    """The mean of the middle half of all scores: a quarter of them, rounded down, is cut off at either end.

    Less moved by single runs than the mean, and of more of them than the median (Agarwal et al., NeurIPS 2021).
    """
    ordered = np.sort(scores, axis=None)
    cut = len(ordered) // 4
    return float(ordered[cut : len(ordered) - cut].mean())


def probability_of_improvement(
    one: Float64[np.ndarray, "runs tasks"], other: Float64[np.ndarray, "runs tasks"]
) -> float:
    """How likely a run of the one is below a run of the other on the same task, ties by half, over all tasks alike.

    That is the mean over tasks of the Mann-Whitney statistic over the number of pairs (Agarwal et al., NeurIPS 2021).
    """
    pairs = one[:, None], other[None]
    return float(((pairs[0] < pairs[1]) + 0.5 * (pairs[0] == pairs[1])).mean())


def bootstrap_interval(
    statistic: Callable[..., float], *samples: Float64[np.ndarray, "runs tasks"], seed: int = 0
) -> Interval:
    """95% percentile interval of a statistic of samples, whose runs are drawn anew with replacement, task by task.

    NaN where a sample has fewer than two runs. With few runs such an interval is too narrow.
    """
    if any(len(sample) < 2 for sample in samples):
        return UNKNOWN
    rng, found = np.random.default_rng(seed), []
    for _ in range(RESAMPLES):
        rows = [rng.integers(len(sample), size=sample.shape) for sample in samples]
        found.append(
            statistic(*(np.take_along_axis(sample, row, 0) for sample, row in zip(samples, rows, strict=True)))
        )
    low, high = np.quantile(found, [0.025, 0.975])
    return float(low), float(high)
