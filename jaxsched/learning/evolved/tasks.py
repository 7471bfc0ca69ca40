"""What is learned: numbers that a policy is made of."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float64

from jaxsched.env.knowledge import NOTHING, RUNTIMES
from jaxsched.env.levels import LevelTable, mlfq_limits_s, run_limits_s
from jaxsched.policies import evolved
from jaxsched.policies.spec import LARGEST_SEEK, SeekWeights
from jaxsched.semantics import HIGHEST_LEVEL, RUN_BINS, WIDTH_CLASSES

COUNT = RUN_BINS + 2 * WIDTH_CLASSES + 1  # per bin, per width, slope per width, margin
PER_UNIT = 100  # levels of a table in the distance between two queues of `mlfq`
MIDDLE, SLOPE_BINS = RUN_BINS // 2, 5.0  # a width's slope is 0 at that bin, and a unit so many bins further
Numbers = Float64[np.ndarray, "numbers"]


@dataclasses.dataclass(frozen=True)
class Strategy:
    """How many pairs of candidates there are, how far from the point, and how it moves: Adam's step and decays."""

    pairs: int
    sigma: float
    step: float
    momentum: float
    squares: float


@dataclasses.dataclass(frozen=True)
class Task:
    """One thing that can be learned."""

    name: str  # one of `policies.evolved.KINDS`
    begin: Numbers  # where learning starts
    what_of: Callable[[Numbers], LevelTable | SeekWeights]  # what numbers stand for
    knows: str  # of run times
    stops: bool  # schedulers stop jobs
    several: bool  # it is about several schedulers that forward jobs
    generations: int
    lists: int  # that all candidates of a generation play
    judges: int  # lists by which the best point is chosen
    strategy: Strategy
    shorter: bool  # all times of a list are made shorter by a random factor
    fewer_forwards: bool  # every other list is played with no more forwards than is usual
    misjudged: bool  # two of four lists have wrong estimates

    @property
    def rules(self) -> dict[str, Any]:
        """The options of a world that are settled by what is learned."""
        return {"preemption": self.stops, "knows": self.knows}


def table_of(numbers: Numbers) -> LevelTable:
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


def _weights(numbers: Numbers) -> SeekWeights:
    return SeekWeights(tuple(np.clip(numbers, -LARGEST_SEEK, LARGEST_SEEK).astype(np.float32).tolist()))


LEVELS = Task(
    name=evolved.LEVELS,
    begin=np.zeros(COUNT),
    what_of=table_of,
    knows=NOTHING,
    stops=True,
    several=False,
    generations=25,
    lists=1,
    judges=8,
    strategy=Strategy(pairs=12, sigma=0.25, step=0.05, momentum=0.8, squares=0.95),
    shorter=False,
    fewer_forwards=False,
    misjudged=False,
)
SEEKING = Task(
    name=evolved.SEEKING,
    begin=np.array([-1.0, 0.0, 0.1, 1.0]),  # by the wait alone
    what_of=_weights,
    knows=RUNTIMES,
    stops=False,
    several=True,
    generations=30,
    lists=12,
    judges=24,
    strategy=Strategy(pairs=8, sigma=0.2, step=0.08, momentum=0.8, squares=0.95),
    shorter=True,
    fewer_forwards=True,
    misjudged=True,
)
TASKS = {task.name: task for task in (LEVELS, SEEKING)}
