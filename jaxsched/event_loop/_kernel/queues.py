"""Queues, whose jobs lie in the policy's order, and the levels by which running and queued jobs compare.

See docs/semantics.md, section 7, and section 8, "Orders". Logarithms are those of `math`: in Python and in machine code
the C library's. NumPy has its own on some CPUs, and they differ in the last bit.
"""

import math

import numpy as np

from jaxsched.event_loop._kernel.estimates import (
    count_grid_steps,
    estimate,
    expect,
    find_doubling_bin,
    find_service_bin,
    left_by_estimate_s,
    rank_service_bins,
    remaining_s,
)
from jaxsched.event_loop._kernel.jit import compiled, inlined
from jaxsched.event_loop._kernel.records import BOUNDARY, FINISHED, LEARNED, PEAK_QUEUE, Tables, World
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


@compiled
def comes_before(w: World, t: Tables, j: int, other: int) -> bool:
    """Whether a job comes before another in the order: by key, then by row."""
    key, other_key = find_key(w, t, j), find_key(w, t, other)
    return key < other_key or (key == other_key and j < other)


@compiled
def find_key(w: World, t: Tables, j: int) -> float:
    """Lower comes first; a 32-bit float."""
    if w.rule.by_tenant:
        return float(np.float32(t.tenants[w.jobs[j].tenant].attained_s))
    return float(t.service[j].level) if w.rule.order >= 0 else float(w.jobs[j].key)


@compiled
def _insert(w: World, t: Tables, p: int, at: int, j: int) -> None:
    """Put a job into a queue at the place `at`, or as far before it as it comes in the order."""
    while at > 0 and comes_before(w, t, j, t.queue[p, at - 1]):
        t.queue[p, at] = t.queue[p, at - 1]
        at -= 1
    t.queue[p, at] = j


@compiled
def count_room(w: World, t: Tables, p: int) -> int:
    """Free slots of a queue; where servers fail, less those that are kept for the jobs that run."""
    partition = t.partitions[p]
    return w.queue_slots - partition.queued - (partition.running if w.stops.fails else 0)


@compiled
def count_forwards_left(w: World, t: Tables, j: int) -> int:
    """How often a job may still be forwarded."""
    return w.max_forwards - t.records[j].forwards


@compiled
def enqueue(w: World, t: Tables, p: int, j: int) -> None:
    """Put a job into a queue."""
    partition = t.partitions[p]
    if w.history:
        expect(w, t, j)
        estimate(w, j, t.service[j].expected_s, run_s(w, t.service[j].ran))
    t.service[j].reach = t.service[j].owed_s = 0.0
    _rank(w, t, j)
    _insert(w, t, p, partition.queued, j)
    partition.queued += 1
    partition.settled = 0
    t.numbers[PEAK_QUEUE] = max(t.numbers[PEAK_QUEUE], partition.queued)


@compiled
def _rank(w: World, t: Tables, j: int) -> None:
    """Write the level of a queued job, if the order has levels."""
    if w.rule.order >= 0:
        t.service[j].level = rank_queued(w, t, j)
        t.service[j].exceed = find_threshold(w, t.service[j].level)


@compiled
def dequeue(t: Tables, p: int, place: int) -> int:
    """Take the job at that place out of a queue."""
    j, partition = t.queue[p, place], t.partitions[p]
    partition.queued -= 1
    partition.settled = 0
    for at in range(place, partition.queued):
        t.queue[p, at] = t.queue[p, at + 1]
    return j


@inlined
def renew(w: World, t: Tables) -> None:
    """Bring estimates up to the present boundary, and queues into the order of keys that have changed."""
    news = w.history and t.numbers[LEARNED] != t.numbers[FINISHED]
    if news:
        rank_service_bins(w, t)
        t.numbers[LEARNED] = t.numbers[FINISHED]
    for p in range(len(t.partitions)):
        if w.history:
            for i in range(t.partitions[p].running):
                _renew_one(w, t, t.running[p, i].job, count_intervals_run(t, t.running[p, i].job), news)
        if not (w.rule.by_tenant or news or w.rule.order == THEMIS):
            continue
        for at in range(t.partitions[p].queued):
            j = t.queue[p, at]
            if news:
                _renew_one(w, t, j, t.service[j].ran, news)
            _rank(w, t, j)
        for at in range(1, t.partitions[p].queued):
            _insert(w, t, p, at, t.queue[p, at])
        t.partitions[p].settled = 0


@compiled
def _renew_one(w: World, t: Tables, j: int, ran: int, news: bool) -> None:
    """The estimate of a job that has held GPUs for so many intervals; `news`: other jobs have finished since."""
    if news:
        expect(w, t, j)
    estimate(w, j, t.service[j].expected_s, run_s(w, ran))


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
