"""What `jaxsched kube whatif` asks of the future, and uncertain run times.

Run times are log-normal around what is stated, given how long a gang has run already.
"""

import dataclasses
import math
import statistics
import zlib

import numpy as np
from jaxtyping import Float64

from jaxsched.errors import UserError
from jaxsched.kube.policy.encode import LEAST_LEFT

LOW, HIGH = 0.05, 0.95  # the ends of the interval that is told: shares of the draws
SHORTEST_S = 1e-3
_LEAST = 1e-300  # of a probability; one that is 0 has no quantile
_NORMAL = statistics.NormalDist()


@dataclasses.dataclass(frozen=True)
class Question:
    """What is asked of the future. UserError on values out of range."""

    draws: int = 100
    error: float = 0.5  # standard deviation of the logarithm of run times
    seed: int = 0
    horizon_s: float = 7 * 86400.0
    interval_s: float = 10.0  # between decisions

    def __post_init__(self) -> None:
        if not 1 <= self.draws <= 10_000:
            raise UserError(f"--draws: {self.draws} should be a whole number from 1 to 10000")
        if not 0.0 <= self.error <= 3.0:
            raise UserError(f"--duration-error: {self.error} should be a number from 0 to 3")
        if not 0 <= self.seed < 2**32:
            raise UserError(f"--seed: {self.seed} should be a whole number from 0 to {2**32 - 1}")
        if not 1.0 <= self.interval_s <= 3600.0:
            raise UserError(f"--interval-s: {self.interval_s} should be a number of seconds from 1 to 3600")
        if not self.interval_s <= self.horizon_s <= 1e8:
            raise UserError(f"--horizon-s: {self.horizon_s} should be a number of seconds from --interval-s to 1e8")


def draw_durations(
    key: str, stated_s: float, done_s: float, error: float, draws: int, seed: int
) -> Float64[np.ndarray, "draws"]:
    """Draw durations `stated_s * exp(error * z)`, z standard normal, given that `done_s` of them did not suffice.

    Args:
        key: The gang's. Its draws depend on that and the seed alone: they are the same beside other gangs and under all
            policies.
        stated_s: What its annotation says, seconds.
        done_s: Seconds of work that it has done.
        error: Standard deviation of the logarithm. With 0 a gang that has run for longer than stated has `LEAST_LEFT`
            of that left.
        draws: How many.
        seed: From 0.

    Returns:
        Seconds, each more than `done_s`.
    """
    if error == 0.0:
        return np.full(draws, max(stated_s, done_s + LEAST_LEFT * stated_s if done_s >= stated_s else 0.0))
    rank = np.random.default_rng([seed, zlib.crc32(key.encode())]).uniform(1e-9, 1.0 - 1e-9, draws)
    over = math.erfc(math.log(done_s / stated_s) / error / math.sqrt(2.0)) / 2.0 if done_s > 0.0 else 1.0
    z = [-_NORMAL.inv_cdf(max(share, _LEAST)) for share in rank * over]  # of the upper end, where it is exact
    return np.maximum(stated_s * np.exp(error * np.array(z)), done_s + SHORTEST_S)
