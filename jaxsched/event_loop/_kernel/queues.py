"""Queues, whose jobs lie in the policy's order (docs/semantics.md, section 7)."""

import numpy as np

from jaxsched.event_loop._kernel.history import estimate, expect, rank_service_bins
from jaxsched.event_loop._kernel.jit import compiled, inlined
from jaxsched.event_loop._kernel.levels import THEMIS, count_intervals_run, find_threshold, rank_queued, run_s
from jaxsched.event_loop._kernel.records import FINISHED, LEARNED, PEAK_QUEUE, Tables, World


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
def enqueue(w: World, t: Tables, p: int, j: int) -> None:
    """Put a job into a queue."""
    partition = t.partitions[p]
    if w.history:
        expect(w, t, j)
        estimate(w, j, t.service[j].expected_s, run_s(w, t.service[j].ran))
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
