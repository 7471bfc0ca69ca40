"""Levels by which running and queued jobs compare (docs/semantics.md, section 8, "Orders").

Logarithms are those of `math`: in Python and in machine code the C library's. NumPy has its own on some CPUs, and they
differ in the last bit.
"""

import math

import numpy as np

from jaxsched.event_loop._kernel.estimates import left_by_estimate_s, remaining_s
from jaxsched.event_loop._kernel.history import count_grid_steps, find_doubling_bin, find_service_bin
from jaxsched.event_loop._kernel.jit import compiled
from jaxsched.event_loop._kernel.records import BOUNDARY, Tables, World
from jaxsched.event_loop._kernel.shared_gpus import count_gang_gpus, count_reserved_gpus
from jaxsched.semantics import (
    FIRST_RUN_S,
    LEVEL_OFFSET,
    LEVELS_PER_E,
    MLFQ_FIRST_S,
    MLFQ_LEVELS,
    MLFQ_RATIO,
    RUN_BINS,
    SMALLEST,
    WIDTH_CLASSES,
)

# Places in `env.levels.ORDERS`, to LAS continuous; behind them that of a table.
SRTF, SRSF, LAS, MLFQ, TIRESIAS, GITTINS, THEMIS, TABLE = range(8)


@compiled
def rank_queued(w: World, t: Tables, j: int) -> int:
    """Of a job that does not run."""
    if w.rule.order > LAS:
        return _rank_by_run(w, t, j, t.service[j].ran)
    return _compute_level(
        attained_s(w, j, t.service[j].ran) if w.rule.order == LAS else _estimate_work(w, j, t.service[j].left_s)
    )


@compiled
def rank_running(w: World, t: Tables, p: int, i: int) -> int:
    """Of a job that runs; slowdowns must be current."""
    value = measure(w, t, p, i)
    return _compute_level(value) if w.rule.order <= LAS else int(value)


@compiled
def measure(w: World, t: Tables, p: int, i: int) -> float:
    """Of a running job: by a continuous order what its level is the level of, else the level.

    It takes no logarithm. If it is more than `exceed` of a queued job, this may displace it; slowdowns must be current.
    """
    j = t.running[p, i].job
    if w.rule.order > LAS:
        return float(_rank_by_run(w, t, j, count_intervals_run(t, j)))
    return (
        attained_s(w, j, count_intervals_run(t, j))
        if w.rule.order == LAS
        else _estimate_work(w, j, remaining_s(t, p, i))
    )


@compiled
def find_threshold(w: World, level: int) -> float:
    """What a running job has to exceed so that a queued job of this level may displace it; but for rounding."""
    return (
        math.exp((level + w.rule.margin + 1 - LEVEL_OFFSET) / LEVELS_PER_E)
        if w.rule.order <= LAS
        else level + w.rule.margin + 0.5
    )


@compiled
def count_intervals_run(t: Tables, j: int) -> int:
    """Intervals in which a running job has held GPUs up to now."""
    return t.service[j].ran + t.numbers[BOUNDARY] - t.service[j].since


@compiled
def run_s(w: World, ran: int) -> float:
    """So many intervals in seconds, a 32-bit float."""
    return float(np.float32(ran) * np.float32(w.interval_s))


@compiled
def attained_s(w: World, j: int, ran: int) -> float:
    """GPU-seconds that a job has received in so many intervals, a 32-bit float."""
    return float(np.float32(run_s(w, ran)) * np.float32(count_reserved_gpus(w, j)))


@compiled
def _estimate_work(w: World, j: int, left_s: float) -> float:
    """What is left of a job by its estimate, in seconds or GPU-seconds."""
    left_s = left_by_estimate_s(w, j, left_s)
    return left_s * count_reserved_gpus(w, j) if w.rule.order == SRSF else left_s


@compiled
def _rank_by_run(w: World, t: Tables, j: int, ran: int) -> int:
    """Level by one of the orders with few levels, of a job that has held GPUs for so many intervals."""
    if w.rule.order == TABLE:
        return int(
            w.rule.level_table[
                find_doubling_bin(count_gang_gpus(w, j), 2.0, WIDTH_CLASSES), find_run_bin(run_s(w, ran))
            ]
        )
    if w.rule.order == THEMIS:
        waited = np.float32(t.numbers[BOUNDARY] - w.jobs[j].arrival - ran)
        ratio = np.float32(1.0) + waited * np.float32(w.interval_s) / np.float32(w.jobs[j].estimate_s)
        return -count_grid_steps(w.past.grid, ratio)
    if w.rule.order == GITTINS:
        return int(t.known.levels[find_service_bin(attained_s(w, j, ran))])
    if w.rule.order == TIRESIAS:
        return 1 if attained_s(w, j, ran) >= w.rule.quantum else 0
    level, seconds, limit = 0, run_s(w, ran), MLFQ_FIRST_S
    while level < MLFQ_LEVELS and seconds >= limit:
        level, limit = level + 1, limit * MLFQ_RATIO
    return level


@compiled
def find_run_bin(seconds: float) -> int:
    """Column of a table of levels."""
    return find_doubling_bin(seconds, FIRST_RUN_S, RUN_BINS)


@compiled
def _compute_level(x: float) -> int:
    return int(np.floor(LEVELS_PER_E * math.log(max(x, SMALLEST)) + LEVEL_OFFSET))
