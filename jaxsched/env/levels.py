"""Orders that are levels, by which running and queued jobs compare (docs/semantics.md, section 8, "Orders").

Here they are data. The event loop computes the levels; environments in JAX do not have these orders.
"""

import dataclasses
import math

from jaxsched.errors import UserError
from jaxsched.semantics import (
    FIRST_RUN_S,
    HIGHEST_LEVEL,
    LEVELS_PER_E,
    MLFQ_FIRST_S,
    MLFQ_LEVELS,
    MLFQ_RATIO,
    RUN_BINS,
    STEPS,
    WIDTH_CLASSES,
)

SRTF, SRSF, LAS = CONTINUOUS = ("srtf", "srsf", "las")
MLFQ, TIRESIAS = ("mlfq", "tiresias")
GITTINS, THEMIS = STEPPED = ("gittins", "themis")
ORDERS = (*CONTINUOUS, MLFQ, TIRESIAS, *STEPPED)


@dataclasses.dataclass(frozen=True)
class LevelTable:
    """An order that is data: levels by the GPUs that jobs hold and their run time so far.

    Raises:
        UserError: the table is misshapen, or a number is out of range.
    """

    levels: tuple[tuple[int, ...], ...]  # WIDTH_CLASSES rows of RUN_BINS
    margin: int = 0  # by how many levels more a running job may exceed a queued one before it is displaced

    def __post_init__(self) -> None:
        """Check shape and range."""
        if len(self.levels) != WIDTH_CLASSES or any(len(row) != RUN_BINS for row in self.levels):
            raise UserError(f"levels: should be {WIDTH_CLASSES} rows of {RUN_BINS} whole numbers")
        if any(abs(level) > HIGHEST_LEVEL for row in self.levels for level in row):
            raise UserError(f"levels: should be from -{HIGHEST_LEVEL} to {HIGHEST_LEVEL}")
        if not 0 <= self.margin <= HIGHEST_LEVEL:
            raise UserError(f"margin: {self.margin} should be from 0 to {HIGHEST_LEVEL}")


Ranking = str | LevelTable  # one of `ORDERS`, or their like as data


def margin(order: Ranking, hysteresis: float) -> int:
    """By how many levels more than a queued job a running one may exceed it before it is displaced."""
    if isinstance(order, LevelTable):
        return order.margin
    if order in STEPPED:
        return math.floor(STEPS * math.log2(1.0 + hysteresis) + 0.5)
    return math.floor(LEVELS_PER_E * math.log1p(hysteresis) + 0.5) if order in CONTINUOUS else 0


def mlfq_limits_s() -> list[float]:
    """Run times at which a job falls to the next of the queues of `mlfq`."""
    return [MLFQ_FIRST_S * MLFQ_RATIO**i for i in range(MLFQ_LEVELS)]


def run_limits_s() -> list[float]:
    """Run times at which a job may come to another column of a `LevelTable`."""
    return [FIRST_RUN_S * 2.0**i for i in range(RUN_BINS - 1)]
