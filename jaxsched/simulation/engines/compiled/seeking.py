"""Jobs are sent where they had better wait or start, by an index of partitions (docs/semantics.md, "Seeking")."""

import numpy as np

from jaxsched.semantics import (
    GRID,
    GRID_OFFSET,
    SEEK_HIDDEN,
    SEEK_INPUTS,
    SEEK_JOBS,
    SEEK_LONGEST_S,
    SEEK_MOST,
    SEEK_S,
    SEEK_WIDTH,
)
from jaxsched.simulation.engines.compiled.jit import compiled
from jaxsched.simulation.engines.compiled.openings import awaited, feasible, gang_gpus, may_start
from jaxsched.simulation.engines.compiled.queues import comes_before, room
from jaxsched.simulation.engines.compiled.world import BOUNDARY, NEWS, NEXT_JOB, Tables, World


@compiled
def seek(w: World, t: Tables, p: int) -> None:
    """A job that a scheduler would place, or else the first that had better wait elsewhere, is forwarded instead."""
    partition = t.partitions[p]
    if partition.target == p:
        j = t.queue[p, partition.chosen]
        if _has_forwards(w, t, j):
            partition.target = _best(w, t, p, j, partition.chosen, True)
    elif partition.target == -1 and t.numbers[NEWS] == t.numbers[BOUNDARY]:
        for place in range(min(partition.queued, SEEK_JOBS)):
            j = t.queue[p, place]
            if not _has_forwards(w, t, j) or feasible(w, t, p, j):
                continue
            q = _best(w, t, p, j, place, False)
            if q != p:
                partition.chosen, partition.target = place, q
                return


@compiled
def note_arrivals(w: World, t: Tables) -> None:
    """There is news where jobs are submitted for the present boundary."""
    j, boundary = t.numbers[NEXT_JOB], t.numbers[BOUNDARY]
    while j < len(w.jobs) and w.jobs[j].arrival <= boundary:
        if w.jobs[j].arrival == boundary and w.jobs[j].home >= 0:
            t.numbers[NEWS] = boundary
        j += 1


@compiled
def _has_forwards(w: World, t: Tables, j: int) -> bool:
    return t.records[j].forwards < w.max_forwards


@compiled
def _best(w: World, t: Tables, p: int, j: int, place: int, starts: bool) -> int:
    """The partition with the largest index for the job at that place of its queue; `starts`: where it may start now."""
    best, most = p, _index(w, t, p, p, j, place)
    for q in range(len(t.partitions)):
        if q == p or room(w, t, q) <= 0 or not _could_hold(w, t, q, j):
            continue
        if starts and not _may_start(w, t, q, j, place):
            continue
        index = _index(w, t, p, q, j, place)
        if index > most:
            best, most = q, index
    return best


@compiled
def _may_start(w: World, t: Tables, q: int, j: int, place: int) -> bool:
    return may_start(w, t, q, j, place)


@compiled
def _wait_s(w: World, t: Tables, q: int, need: int) -> float:
    """Seconds until a partition has so many free GPUs by the estimates."""
    wait_s, _ = awaited(w, t, q, need)
    return wait_s


@compiled
def _could_hold(w: World, t: Tables, q: int, j: int) -> bool:
    """Whether the gang fits the empty partition."""
    return t.most_empty[q, w.jobs[j].wide, t.most_empty.shape[2] - 1] >= w.jobs[j].workers


@compiled
def _index(w: World, t: Tables, p: int, q: int, j: int, place: int) -> int:
    """Of a partition, for a job at that place of the queue of `p`; on the grid."""
    x, weights = t.inputs, w.seek
    _fill_inputs(w, t, p, q, j, place)
    index = 0.0
    for i in range(SEEK_INPUTS):
        index += weights[i] * x[i]
    at = SEEK_INPUTS
    for _ in range(SEEK_HIDDEN):
        unit = weights[at + SEEK_INPUTS]
        for i in range(SEEK_INPUTS):
            unit += weights[at + i] * x[i]
        index += weights[at + SEEK_INPUTS + 1] * np.tanh(unit)
        at += SEEK_INPUTS + 2
    return int(np.floor(GRID * index + GRID_OFFSET))


@compiled
def _fill_inputs(w: World, t: Tables, p: int, q: int, j: int, place: int) -> None:
    """What the index is of: `Tables.inputs`."""
    partition, x = t.partitions[q], t.inputs
    gpus, estimate_s, total = gang_gpus(w, j), w.jobs[j].estimate_s + SEEK_S, w.partition_gpus[q]
    queued, ahead, work_s = 0, 0, 0.0
    for at in range(partition.queued):
        i = t.queue[q, at]
        if i == j:
            continue
        queued += gang_gpus(w, i)
        if comes_before(w, t, i, j):
            ahead += gang_gpus(w, i)
            work_s += gang_gpus(w, i) * w.jobs[i].estimate_s
    starts = _may_start(w, t, q, j, place)
    wait_s = 0.0 if starts else _wait_s(w, t, q, min(gpus + ahead, total))
    x[0] = np.log((min(wait_s, SEEK_LONGEST_S) + SEEK_S) / estimate_s)
    x[1] = 1.0 if starts else 0.0
    x[2] = partition.free_gpus / total
    x[3] = min(ahead / total, SEEK_MOST)
    x[4] = min(queued / total, SEEK_MOST)
    x[5] = np.log(gpus / total) / SEEK_WIDTH
    x[6] = 1.0 if q == p else 0.0
    x[7] = min(float(w.max_forwards - t.records[j].forwards), SEEK_MOST) / SEEK_MOST
    x[8] = np.log((work_s / total + SEEK_S) / estimate_s)
