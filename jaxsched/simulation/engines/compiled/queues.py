"""Queues, whose jobs lie in the policy's order (docs/semantics.md, section 7)."""

import numpy as np

from jaxsched.simulation.engines.compiled.jit import compiled
from jaxsched.simulation.engines.compiled.levels import level_of_queued
from jaxsched.simulation.engines.compiled.world import PEAK_QUEUE, Tables, World


@compiled
def comes_before(w: World, t: Tables, j: int, other: int) -> bool:
    """Whether a job comes before another in the order: by key, then by row."""
    key, other_key = _key(w, t, j), _key(w, t, other)
    return key < other_key or (key == other_key and j < other)


@compiled
def _key(w: World, t: Tables, j: int) -> float:
    """Lower comes first; a 32-bit float."""
    if w.by_tenant:
        return float(np.float32(t.tenants[w.jobs[j].tenant].attained_s))
    return float(t.service[j].level) if w.order >= 0 else float(w.jobs[j].key)


@compiled
def _settle(w: World, t: Tables, p: int, at: int, j: int) -> None:
    """Put a job into a queue at the place `at`, or as far before it as it comes in the order."""
    while at > 0 and comes_before(w, t, j, t.queue[p, at - 1]):
        t.queue[p, at] = t.queue[p, at - 1]
        at -= 1
    t.queue[p, at] = j


@compiled
def room(w: World, t: Tables, p: int) -> int:
    """Free slots of a queue; where servers fail, less those that are kept for the jobs that run."""
    partition = t.partitions[p]
    return w.queue_slots - partition.queued - (partition.running if w.fails else 0)


@compiled
def enqueue(w: World, t: Tables, p: int, j: int) -> None:
    """Put a job into a queue."""
    partition = t.partitions[p]
    if w.order >= 0:
        t.service[j].level = level_of_queued(w, t, j)
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
