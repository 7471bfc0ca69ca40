"""Confidence intervals: over independent seeds, and over the correlated jobs of one run."""

import math

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
