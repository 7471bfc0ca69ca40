"""Who may start or be forwarded where, and for whom GPUs are kept (docs/semantics.md, section 7).

Where policies seek, jobs are sent where they had better wait or start, by an index of partitions ("Seeking" there).
"""

import numpy as np

from jaxsched.event_loop._kernel.estimates import estimate_ends, has_outlived_estimate, remaining_s
from jaxsched.event_loop._kernel.jit import compiled, inlined, special
from jaxsched.event_loop._kernel.occupancy import count_empty, count_workers_that_fit, fits_fewest_servers
from jaxsched.event_loop._kernel.queues import comes_before, count_forwards_left, count_room
from jaxsched.event_loop._kernel.records import BOUNDARY, NEWS, NEXT_JOB, Tables, World
from jaxsched.event_loop._kernel.shared_gpus import count_gang_gpus
from jaxsched.event_loop._kernel.speed import quantise
from jaxsched.event_loop._kernel.tiers_and_racks import fits_fewest_racks, waits_for_faster
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

STAY, TO_IDLE, TO_ANY = range(3)


@inlined
def is_feasible(w: World, t: Tables, p: int, j: int) -> bool:
    """Whether the gang fits the free GPUs of a partition, and a running slot is free."""
    job = w.jobs[j]
    if t.partitions[p].running >= w.running_slots or count_workers_that_fit(w, t, p, j) < job.workers:
        return False
    if w.rule.racks and job.size > 0 and not fits_fewest_racks(w, t, p, j):
        return False
    return not w.rule.consolidate or job.size < 0 or fits_fewest_servers(w, t, p, j)


@inlined
def may_start(w: World, t: Tables, p: int, j: int, place: int) -> bool:
    """Whether the job at that place of its queue is feasible in a partition, and not held back there."""
    if w.jobs[j].held > t.numbers[BOUNDARY]:
        return False
    if not is_feasible(w, t, p, j) or not (t.partitions[p].gang < 0 or _may_pass(w, t, p, j)):
        return False
    return not w.waits or not waits_for_faster(w, t, p, j, place + 1)


@inlined
def find_first_open(w: World, t: Tables, p: int) -> int:
    """Place in its queue of the job that a scheduler starts, -1 if there is none."""
    queued = t.partitions[p].queued
    for place in range(queued if w.rule.backfill else min(queued, 1)):
        if may_start(w, t, p, t.queue[p, place], place):
            return place
    return -1


@inlined
def choose_forward(w: World, t: Tables, p: int) -> tuple[int, int]:
    """Place in its queue of the job that a scheduler forwards, and to which partition; -1, -1 if there is none.

    It has none to start, but may wait with one that could.
    """
    nobody, most = w.rule.settles and w.rule.backfill, 0  # nobody here may start
    for q in range(len(t.partitions)):
        if q != p and takes_forwards(w, t, q):
            most = max(most, t.partitions[q].free_gpus)
    for place in range(t.partitions[p].queued):
        j = t.queue[p, place]
        if count_forwards_left(w, t, j) <= 0 or (not nobody and may_start(w, t, p, j, place)):
            continue
        best = -1
        for q in range(len(t.partitions) if count_gang_gpus(w, j) <= most or w.jobs[j].size < 0 else 0):
            better = best < 0 or t.partitions[q].free_gpus > t.partitions[best].free_gpus
            if better and q != p and takes_forwards(w, t, q) and may_start(w, t, q, j, place):
                best = q
        if best >= 0:
            return place, best
        if w.rule.forward == TO_IDLE:
            break
    return -1, -1


@compiled
def takes_forwards(w: World, t: Tables, q: int) -> bool:
    """Whether jobs are forwarded to a partition."""
    return count_room(w, t, q) > 0 and (w.rule.forward != TO_IDLE or t.partitions[q].queued == 0)


@compiled
def is_anything_possible(w: World, t: Tables) -> bool:
    """Whether some queued job is feasible in its partition, or, with forwards left, in another."""
    for p in range(len(t.partitions)):
        for place in range(t.partitions[p].queued):
            j = t.queue[p, place]
            if is_feasible(w, t, p, j):
                return True
            if count_forwards_left(w, t, j) > 0:
                for q in range(len(t.partitions)):
                    if count_room(w, t, q) > 0 and is_feasible(w, t, q, j):
                        return True
    return False


@inlined
def reserve_gpus(w: World, t: Tables, p: int) -> None:
    """Find the gang for which a partition keeps GPUs; slowdowns must be current."""
    partition = t.partitions[p]
    partition.gang = -1
    for place in range(partition.queued):
        j = t.queue[p, place]
        if count_gang_gpus(w, j) > 1 and not is_feasible(w, t, p, j):
            partition.wait_s, partition.spare = estimate_wait(w, t, p, count_gang_gpus(w, j), w.jobs[j].allowed)
            if partition.wait_s < np.inf:
                partition.gang = j
            return


@inlined
def estimate_wait(w: World, t: Tables, p: int, need: int, allowed: int) -> tuple[float, int]:
    """Seconds until a partition has so many free GPUs by the estimates, inf = never, and how many more there are then.

    That is at the end of some job with whole GPUs: GPUs may be free that the gang cannot use. Those of the set
    `allowed` count.
    """
    running, free, wait_s = t.partitions[p].running, t.partitions[p].free_gpus, estimate_ends(w, t, p)
    if allowed > 0:
        free = count_free_of_set(w, t, p, allowed)
    if w.shared_gpus > 0 or allowed > 0:
        wait_s = _find_whole_end(w, t, p, allowed)
    freed, before_s = 0, -1.0
    while wait_s < np.inf:
        next_s = np.inf
        for i in range(running):
            if before_s < t.scratch.end_s[i] <= wait_s:
                freed += count_held_of_set(w, t, p, i, allowed)
            elif t.scratch.end_s[i] > wait_s:
                next_s = min(next_s, t.scratch.end_s[i])
        if free + freed >= need:
            break
        wait_s, before_s = next_s, wait_s
    for i in range(running):
        if wait_s < t.scratch.end_s[i] and quantise(t.scratch.end_s[i] / wait_s) <= GRID:
            freed += count_held_of_set(w, t, p, i, allowed)
    return wait_s, free + freed - need


@compiled
def count_free_of_set(w: World, t: Tables, p: int, allowed: int) -> int:
    """Free GPUs of a partition that jobs of a set may use."""
    free = 0
    for a in range(t.free.shape[1]):
        if w.site.usable[allowed, p, a] > 0:
            free += t.free[p, a]
    return free


@compiled
def count_held_of_set(w: World, t: Tables, p: int, i: int, allowed: int) -> int:
    """GPUs that jobs of a set may use, of those that a running job of a partition has."""
    run, gpus = t.running[p, i], 0
    if allowed == 0:
        return count_gang_gpus(w, run.job)
    for g in range(t.slots[p, run.slot].groups):
        group = t.groups[p, run.slot, g]
        if w.site.usable[allowed, p, group.group] > 0:
            gpus += group.workers * w.jobs[run.job].wide
    return gpus


@compiled
def _find_whole_end(w: World, t: Tables, p: int, allowed: int) -> float:
    """The earliest in `Scratch.end_s` of jobs with whole GPUs of a set; the ends of others become infinite there."""
    earliest_s = np.inf
    for i in range(t.partitions[p].running):
        if w.jobs[t.running[p, i].job].size < 0 or count_held_of_set(w, t, p, i, allowed) == 0:
            t.scratch.end_s[i] = np.inf
        earliest_s = min(earliest_s, t.scratch.end_s[i])
    return earliest_s


@compiled
def _may_pass(w: World, t: Tables, p: int, j: int) -> bool:
    """Whether a job may start although a partition keeps GPUs for its gang."""
    partition, job = t.partitions[p], w.jobs[j]
    if w.masks and _share_no_gpu(w, p, job.allowed, w.jobs[partition.gang].allowed):
        return True
    if comes_before(w, t, j, partition.gang) or job.area <= w.jobs[partition.gang].area:
        return True
    if _leaves_enough(w, t, p, j):
        return True
    if not w.rule.ahead:
        return False
    both_s = _estimate_wait_for_both(w, t, p, j)
    held_s = min(both_s, partition.wait_s + w.jobs[partition.gang].estimate_s)
    lost_s = t.service[partition.gang].owed_s + min(both_s, job.estimate_s) - partition.wait_s
    return quantise(lost_s / held_s) <= GRID


@compiled
def _share_no_gpu(w: World, p: int, allowed: int, other: int) -> bool:
    """Whether a partition has no GPU of both sets."""
    for a in range(w.site.usable.shape[2]):
        if w.site.usable[allowed, p, a] > 0 and w.site.usable[other, p, a] > 0:
            return False
    return True


@compiled
def _leaves_enough(w: World, t: Tables, p: int, j: int) -> bool:
    """Whether a job is done before the gang can start, or leaves it the GPUs that it needs then."""
    partition = t.partitions[p]
    return quantise(w.jobs[j].estimate_s / partition.wait_s) <= GRID or count_gang_gpus(w, j) <= partition.spare


@compiled
def _estimate_wait_for_both(w: World, t: Tables, p: int, j: int) -> float:
    """Seconds until a partition has the GPUs of its gang and of a job, inf = never."""
    gang = t.partitions[p].gang
    wait_s, _ = estimate_wait(w, t, p, count_gang_gpus(w, gang) + count_gang_gpus(w, j), w.jobs[gang].allowed)
    return wait_s


@compiled
def charge(w: World, t: Tables, p: int, j: int) -> None:
    """Note what a job that is about to start costs the gang of its partition, if it passes that."""
    partition = t.partitions[p]
    if partition.gang < 0 or comes_before(w, t, j, partition.gang) or _leaves_enough(w, t, p, j):
        return
    if w.masks and _share_no_gpu(w, p, w.jobs[j].allowed, w.jobs[partition.gang].allowed):
        return
    until_s = min(_estimate_wait_for_both(w, t, p, j), w.jobs[j].estimate_s)
    t.service[partition.gang].owed_s += max(until_s - partition.wait_s, 0.0)


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
