"""Jobs are sent where they had better wait or start, by an index of partitions (docs/semantics.md, "Seeking")."""

import numpy as np

from jaxsched.event_loop._kernel.estimates import has_outlived_estimate, remaining_s
from jaxsched.event_loop._kernel.jit import compiled, special
from jaxsched.event_loop._kernel.occupancy import count_empty
from jaxsched.event_loop._kernel.openings import estimate_wait, is_feasible, may_start
from jaxsched.event_loop._kernel.queues import comes_before, count_forwards_left, count_room
from jaxsched.event_loop._kernel.records import BOUNDARY, NEWS, NEXT_JOB, Tables, World
from jaxsched.event_loop._kernel.shared_gpus import count_gang_gpus
from jaxsched.semantics import (
    GRID,
    GRID_OFFSET,
    SEEK_DOUBT,
    SEEK_INPUTS,
    SEEK_JOBS,
    SEEK_LAST,
    SEEK_LONGEST_S,
    SEEK_MOST,
    SEEK_MOST_DOUBT,
    SEEK_S,
)


@special
@compiled
def seek(w: World, t: Tables, p: int) -> None:
    """A job that a scheduler would place, or else the first that had better wait elsewhere, is forwarded instead."""
    partition = t.partitions[p]
    if partition.target == p:
        j = t.queue[p, partition.chosen]
        if count_forwards_left(w, t, j) > 0:
            partition.target = _find_best(w, t, p, j, partition.chosen, True)
    elif partition.target == -1 and t.numbers[NEWS] == t.numbers[BOUNDARY]:
        for place in range(min(partition.queued, SEEK_JOBS)):
            j = t.queue[p, place]
            if count_forwards_left(w, t, j) <= 0 or is_feasible(w, t, p, j):
                continue
            q = _find_best(w, t, p, j, place, False)
            if q != p:
                partition.chosen, partition.target = place, q
                return


@special
@compiled
def note_arrivals(w: World, t: Tables) -> None:
    """There is news where jobs are submitted for the present boundary."""
    j, boundary = t.numbers[NEXT_JOB], t.numbers[BOUNDARY]
    while j < len(w.jobs) and w.jobs[j].arrival <= boundary:
        if w.jobs[j].arrival == boundary and w.jobs[j].home >= 0:
            t.numbers[NEWS] = boundary
        j += 1


@compiled
def _find_best(w: World, t: Tables, p: int, j: int, place: int, starts: bool) -> int:
    """The partition with the largest index for the job at that place of its queue.

    `starts`: it may start in its own, and others are those where it may, too; else it may not.
    """
    best, most = p, _compute_index(w, t, p, p, j, starts)
    for q in range(len(t.partitions)):
        if q == p or count_room(w, t, q) <= 0 or not _could_hold(w, t, q, j):
            continue
        there = _may_start(w, t, q, j, place)
        if starts and not there:
            continue
        index = _compute_index(w, t, p, q, j, there)
        if index > most:
            best, most = q, index
    return best


@compiled
def _may_start(w: World, t: Tables, q: int, j: int, place: int) -> bool:
    """`may_start` as a function of its own: elsewhere it becomes part of its caller, as does `estimate_wait`."""
    return may_start(w, t, q, j, place)


@compiled
def _estimate_wait_s(w: World, t: Tables, q: int, need: int, allowed: int) -> float:
    """Seconds until a partition has so many free GPUs of a set by the estimates, or all that there are."""
    total = w.site.partition_gpus[q]
    if allowed > 0:
        total = 0
        for a in range(t.free.shape[1]):
            if w.site.usable[allowed, q, a] > 0:
                total += w.site.groups[q, a].gpus
    wait_s, _ = estimate_wait(w, t, q, min(need, total), allowed)
    return wait_s


@compiled
def _could_hold(w: World, t: Tables, q: int, j: int) -> bool:
    """Whether the gang fits the empty partition."""
    return count_empty(w, t, q, j, w.site.servers.shape[1]) >= w.jobs[j].workers


@compiled
def _compute_index(w: World, t: Tables, p: int, q: int, j: int, starts: bool) -> int:
    """Of a partition, for a job in the queue of `p` that `starts` there now, or may not; on the grid."""
    x, weights = t.scratch.inputs, w.rule.seek
    _fill_inputs(w, t, p, q, j, starts)
    index = 0.0
    for i in range(SEEK_INPUTS):
        index += weights[i] * x[i]
    return int(np.floor(GRID * index + GRID_OFFSET))


@compiled
def _fill_inputs(w: World, t: Tables, p: int, q: int, j: int, starts: bool) -> None:
    """What the index is of: `Scratch.inputs`."""
    partition, x = t.partitions[q], t.scratch.inputs
    gpus, total = count_gang_gpus(w, j), w.site.partition_gpus[q]
    queued, ahead = 0, 0
    for at in range(partition.queued):
        i = t.queue[q, at]
        if i == j:
            continue
        queued += count_gang_gpus(w, i)
        if comes_before(w, t, i, j):
            ahead += count_gang_gpus(w, i)
    wait_s = 0.0 if starts else _estimate_wait_s(w, t, q, gpus + ahead, w.jobs[j].allowed)
    x[0] = np.log((min(wait_s, SEEK_LONGEST_S) + SEEK_S) / (w.jobs[j].estimate_s + SEEK_S))
    x[1] = min(queued / total, SEEK_MOST)
    x[2] = 1.0 if q == p else 0.0
    left = count_forwards_left(w, t, j)
    x[3] = _compute_doubt(w, t) / left if q == p and left <= SEEK_LAST else 0.0


@compiled
def _compute_doubt(w: World, t: Tables) -> float:
    """How little the estimates are to be trusted."""
    if w.history:
        return SEEK_MOST_DOUBT
    busy, late = 0, 0
    for p in range(len(t.partitions)):
        for i in range(t.partitions[p].running):
            j = t.running[p, i].job
            if w.jobs[j].size < 0:
                continue
            busy += count_gang_gpus(w, j)
            if has_outlived_estimate(w, j, remaining_s(t, p, i)):
                late += count_gang_gpus(w, j)
    return min(SEEK_DOUBT * late / busy, SEEK_MOST_DOUBT) if busy > 0 else 0.0
