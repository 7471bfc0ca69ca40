"""What `jaxsched kube whatif` asks of the future."""

import dataclasses

from jaxsched.errors import UserError

LOW, HIGH = 0.05, 0.95  # the ends of the interval that is told: shares of the draws


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
