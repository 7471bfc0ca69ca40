"""What is learned: a few numbers that stand for a table of levels."""

import numpy as np
from jaxtyping import Float64

from jaxsched.env.levels import LevelTable, mlfq_limits_s, run_limits_s
from jaxsched.semantics import HIGHEST_LEVEL, RUN_BINS, WIDTH_CLASSES

COUNT = RUN_BINS + 2 * WIDTH_CLASSES + 1  # per bin, per width, slope per width, margin
PER_UNIT = 100  # levels of a table in the distance between two queues of `mlfq`
MIDDLE, SLOPE_BINS = RUN_BINS // 2, 5.0  # a width's slope is 0 at that bin, and a unit so many bins further


def table_of(numbers: Float64[np.ndarray, "numbers"]) -> LevelTable:
    """The table that numbers stand for; zeros for the queues of `mlfq`, their limits moved up to those of the bins."""
    by_bin, width, slope = np.split(numbers[:-1], [RUN_BINS, RUN_BINS + WIDTH_CLASSES])
    steps = (np.arange(RUN_BINS) - MIDDLE) / SLOPE_BINS
    units = _queue_of_bin() + by_bin + width[:, None] + slope[:, None] * steps
    levels = np.clip(np.round(PER_UNIT * units), -HIGHEST_LEVEL, HIGHEST_LEVEL).astype(np.int64)
    margin = int(np.clip(np.round(PER_UNIT * numbers[-1]), 0, HIGHEST_LEVEL))
    return LevelTable(tuple(tuple(row) for row in levels.tolist()), margin)


def _queue_of_bin() -> Float64[np.ndarray, "bins"]:
    """The queue of `mlfq` in which a job is at the lower limit of each bin."""
    lowest = np.array([0.0, *run_limits_s()])
    return (lowest[:, None] >= np.array(mlfq_limits_s())).sum(-1).astype(np.float64)
