"""Queues: who comes first, who may start, who is forwarded where (docs/semantics.md, section 7)."""

import numpy as np

from jaxsched.native.compiled import compiled
from jaxsched.native.occupancy import workers_that_fit
from jaxsched.native.world import PEAK_QUEUE, Tables, World

STAY, TO_IDLE, TO_ANY = range(3)


@compiled
def _key(w: World, t: Tables, j: int) -> float:
    """Lower comes first; a 32-bit float."""
    if w.las:
        return float(np.float32(t.tenants[w.jobs[j].tenant].attained_s))
    return float(w.jobs[j].key)


@compiled
def _settle(w: World, t: Tables, p: int, at: int, j: int) -> None:
    """Put a job into a queue at the place `at`, or as far before it as it comes by (key, row)."""
    key = _key(w, t, j)
    while at > 0:
        other = t.queue[p, at - 1]
        other_key = _key(w, t, other)
        if other_key < key or (other_key == key and other < j):
            break
        t.queue[p, at] = other
        at -= 1
    t.queue[p, at] = j


@compiled
def enqueue(w: World, t: Tables, p: int, j: int) -> None:
    """Put a job into a queue."""
    partition = t.partitions[p]
    _settle(w, t, p, partition.queued, j)
    partition.queued += 1
    t.numbers[PEAK_QUEUE] = max(t.numbers[PEAK_QUEUE], partition.queued)


@compiled
def dequeue(t: Tables, p: int, place: int) -> int:
    """Take the job at that place out of a queue."""
    j, partition = t.queue[p, place], t.partitions[p]
    partition.queued -= 1
    for at in range(place, partition.queued):
        t.queue[p, at] = t.queue[p, at + 1]
    return j


@compiled
def reorder(w: World, t: Tables, p: int) -> None:
    """Put a queue in order of keys that have changed."""
    for at in range(1, t.partitions[p].queued):
        _settle(w, t, p, at, t.queue[p, at])


@compiled
def feasible(w: World, t: Tables, p: int, j: int) -> bool:
    """Whether the gang fits the free GPUs of a partition, and a running slot is free."""
    job = w.jobs[j]
    return t.partitions[p].running < w.running_slots and workers_that_fit(t, p, job.wide) >= job.workers


@compiled
def first_feasible(w: World, t: Tables, p: int) -> int:
    """Place in its queue of the job that a scheduler starts, -1 if there is none."""
    queued = t.partitions[p].queued
    for place in range(queued if w.backfill else min(queued, 1)):
        if feasible(w, t, p, t.queue[p, place]):
            return place
    return -1


@compiled
def forward_choice(w: World, t: Tables, p: int) -> tuple[int, int]:
    """Place in its queue of the job that a scheduler forwards, and to which partition; -1, -1 if there is none."""
    for place in range(t.partitions[p].queued):
        j = t.queue[p, place]
        if t.records[j].forwards >= w.max_forwards or feasible(w, t, p, j):
            continue
        best = -1
        for q in range(len(t.partitions)):
            there = t.partitions[q]
            room = there.queued == 0 if w.forward == TO_IDLE else there.queued < w.queue_slots
            better = best < 0 or there.free_gpus > t.partitions[best].free_gpus
            if better and room and q != p and feasible(w, t, q, j):
                best = q
        if best >= 0:
            return place, best
        if w.forward == TO_IDLE:
            break
    return -1, -1
