"""Uncertain run times: log-normal around what is stated, given how long a gang has run already."""

import math
import statistics
import zlib

import numpy as np
from jaxtyping import Float64

from jaxsched.kube.policy.encode import LEAST_LEFT

SHORTEST_S = 1e-3
_LEAST = 1e-300  # of a probability; one that is 0 has no quantile
_NORMAL = statistics.NormalDist()


def drawn_durations(
    key: str, stated_s: float, done_s: float, error: float, draws: int, seed: int
) -> Float64[np.ndarray, "draws"]:
    """Durations `stated_s * exp(error * z)`, z standard normal, given that `done_s` of them did not suffice.

    A gang's draws depend on its key and the seed alone: they are the same beside other gangs and under all policies.
    With an error of 0, a gang that has run for longer than stated has `LEAST_LEFT` of that left.
    """
    if error == 0.0:
        return np.full(draws, max(stated_s, done_s + LEAST_LEFT * stated_s if done_s >= stated_s else 0.0))
    rank = np.random.default_rng([seed, zlib.crc32(key.encode())]).uniform(1e-9, 1.0 - 1e-9, draws)
    over = math.erfc(math.log(done_s / stated_s) / error / math.sqrt(2.0)) / 2.0 if done_s > 0.0 else 1.0
    z = [-_NORMAL.inv_cdf(max(share, _LEAST)) for share in rank * over]  # of the upper end, where it is exact
    return np.maximum(stated_s * np.exp(error * np.array(z)), done_s + SHORTEST_S)
