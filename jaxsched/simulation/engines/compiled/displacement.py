"""Who is stopped for whom, and how long nobody will be (docs/semantics.md, section 8)."""

import numpy as np

from jaxsched.semantics import (
    CHECKPOINT_TOLERANCE,
    LEAST_GAIN_S,
    MLFQ_FIRST_S,
    MLFQ_LEVELS,
    MLFQ_RATIO,
    STOP_TOLERANCE,
)
from jaxsched.simulation.engines.compiled.estimates import left_by_estimate_s, remaining_s
from jaxsched.simulation.engines.compiled.jit import compiled, inlined
from jaxsched.simulation.engines.compiled.levels import (
    LAS,
    MLFQ,
    SRSF,
    SRTF,
    attained_s,
    gpus,
    intervals_run,
    level_of_running,
    run_s,
    value_at,
)
from jaxsched.simulation.engines.compiled.occupancy import fewest_servers, leave, roomiest
from jaxsched.simulation.engines.compiled.queues import enqueue
from jaxsched.simulation.engines.compiled.world import BOUNDARY, Tables, World

LOWEST = -(2**31)
FOREVER = 2**31


@compiled
def _left_if_stopped_s(w: World, t: Tables, p: int, i: int) -> float:
    """Ideal seconds of work that a running job has left if it is stopped."""
    return remaining_s(t, p, i) if w.checkpoint_s == 0.0 else left_at_checkpoint_s(w, t, p, i)


@compiled
def left_at_checkpoint_s(w: World, t: Tables, p: int, i: int) -> float:
    """Ideal seconds of work that a running job has left at its last checkpoint; there must be some."""
    j = t.running[p, i].job
    duration_s = w.jobs[j].duration_s
    done_s = duration_s - remaining_s(t, p, i)
    last_s = w.checkpoint_s * np.floor(done_s / w.checkpoint_s + CHECKPOINT_TOLERANCE)
    return duration_s - max(duration_s - t.service[j].left_s, min(done_s, last_s))


@compiled
def _may_stop(w: World, t: Tables, p: int, i: int) -> bool:
    """Whether a running job has run for long enough, and would keep some of the work done since it started."""
    j = t.running[p, i].job
    if t.numbers[BOUNDARY] - t.service[j].since < w.min_run_s / w.interval_s - STOP_TOLERANCE:
        return False
    return t.service[j].left_s - _left_if_stopped_s(w, t, p, i) > LEAST_GAIN_S


@inlined
def mark_displaced(w: World, t: Tables, p: int) -> bool:
    """Mark in `Tables.stops` the jobs that a partition stops for one of its queue; whether there are any.

    Slowdowns must be current.
    """
    partition, highest = t.partitions[p], LOWEST
    for i in range(partition.running):
        t.stops[p, i] = 0
        t.level[i] = level_of_running(w, t, p, i) if _may_stop(w, t, p, i) else LOWEST
        highest = max(highest, t.level[i])
    for place in range(partition.queued if w.backfill else min(partition.queued, 1)):
        j = t.queue[p, place]
        above = t.service[j].level + w.margin
        if above >= highest:
            return False  # of all that follow, too
        if _feasible_without_all(w, t, p, j, above):
            stopped = _mark_fewest(w, t, p, j, above)  # none where the job fits, but waits for faster GPUs
            if stopped > 0:
                return partition.queued + stopped <= w.queue_slots
    return False


@compiled
def _feasible_without_all(w: World, t: Tables, p: int, j: int, above: int) -> bool:
    """Whether a job would be feasible without all jobs of higher levels."""
    freed = t.partitions[p].free_gpus
    for i in range(t.partitions[p].running):
        if t.level[i] > above:
            freed += gpus(w, t.running[p, i].job)
    if freed < gpus(w, j):
        return False
    _free_of(t, p)
    for i in range(t.partitions[p].running):
        if t.level[i] > above:
            _give(w, t, p, i, 1)
    return _fits(w, t, p, j)


@compiled
def _mark_fewest(w: World, t: Tables, p: int, j: int, above: int) -> int:
    """Take jobs, latest first, until job `j` would be feasible, and spare those without whom it is; how many."""
    running, count = t.partitions[p].running, 0
    _free_of(t, p)
    while running - count >= w.running_slots or not _fits(w, t, p, j):
        i = _extreme(t, p, above, 0, 1)
        t.stops[p, i] = 1
        _give(w, t, p, i, 1)
        count += 1
    left = count
    while left > 0:
        i = _extreme(t, p, above, 1, -1)
        _give(w, t, p, i, -1)
        if running - (count - 1) < w.running_slots and _fits(w, t, p, j):
            t.stops[p, i] = 0
            t.level[i] = LOWEST  # looked at
            count -= 1
        else:
            t.stops[p, i] = 2
            _give(w, t, p, i, 1)
        left -= 1
    return count


@compiled
def _extreme(t: Tables, p: int, above: int, mark: int, sign: int) -> int:
    """The last by (level, job) of the running jobs above a level with that mark, or with `sign` -1 the first."""
    best = -1
    for i in range(t.partitions[p].running):
        if t.level[i] > above and t.stops[p, i] == mark:
            if best < 0:
                best = i
                continue
            by_level = sign * (t.level[i] - t.level[best])
            if by_level > 0 or (by_level == 0 and sign * (t.running[p, i].job - t.running[p, best].job) > 0):
                best = i
    return best


@compiled
def _free_of(t: Tables, p: int) -> None:
    """Fill `Tables.without` with the free GPUs of a partition."""
    for a in range(len(t.without)):
        t.without[a] = t.free[p, a]


@compiled
def _give(w: World, t: Tables, p: int, i: int, sign: int) -> None:
    """Add the GPUs of a running job to `Tables.without`, or take them away."""
    run = t.running[p, i]
    for g in range(t.slots[p, run.slot].groups):
        group = t.groups[p, run.slot, g]
        t.without[group.group] += sign * group.workers * w.jobs[run.job].wide


@compiled
def _fits(w: World, t: Tables, p: int, j: int) -> bool:
    """Whether a gang fits `Tables.without`."""
    job, servers = w.jobs[j], fewest_servers(w, t, p, j) if w.consolidate else len(t.most_without)
    roomiest(t.without, job.wide, t.most_without)
    return t.most_without[servers - 1] >= job.workers


@inlined
def halt_marked(w: World, t: Tables, p: int) -> None:
    """Stop the jobs that are marked; they go back to the queue."""
    for i in range(t.partitions[p].running - 1, -1, -1):
        if t.stops[p, i] == 0:
            continue
        run = t.running[p, i]
        j, left_s = run.job, _left_if_stopped_s(w, t, p, i)
        service = t.service[j]
        service.lost_s += left_s - remaining_s(t, p, i)
        service.stops += 1
        halt(w, t, p, i, left_s)


@compiled
def halt(w: World, t: Tables, p: int, i: int, left_s: float) -> None:
    """A running job goes back to its queue with so much work left."""
    run = t.running[p, i]
    j = run.job
    service = t.service[j]
    service.restarting_s -= max(run.resume_s - t.now_s[0], 0.0)
    service.left_s, service.ran = left_s, intervals_run(t, j)
    leave(w, t, p, i)
    enqueue(w, t, p, j)


@inlined
def quiet_intervals(w: World, t: Tables) -> int:
    """For how many intervals schedulers that have all just waited wait, if no job arrives or ends.

    As `policies.displacement.quiet_intervals`; slowdowns must be current.
    """
    seconds = np.inf
    for p in range(len(t.partitions)):
        if t.partitions[p].queued == 0:
            continue
        above = t.service[t.queue[p, 0]].level + w.margin
        for i in range(t.partitions[p].running):
            seconds = min(seconds, _until_it_matters_s(w, t, p, i, above))
    return int(min(max(np.floor(seconds / w.interval_s * (1.0 - 1e-4)), 1.0), FOREVER))


@compiled
def _until_it_matters_s(w: World, t: Tables, p: int, i: int, above: int) -> float:
    """At least so many seconds pass before a running job could be displaced that is not displaced now."""
    run = t.running[p, i]
    j = run.job
    level, ran = level_of_running(w, t, p, i), intervals_run(t, j)
    target = max(level, above) + 1
    if w.order == SRTF or w.order == SRSF:
        overdue = remaining_s(t, p, i) + (w.jobs[j].estimate_s - w.jobs[j].duration_s) <= 0.0
        seconds = 0.0 if overdue else left_by_estimate_s(w, j, remaining_s(t, p, i)) * run.slowdown
    elif w.order == MLFQ:
        limit = MLFQ_FIRST_S * MLFQ_RATIO ** (target - 1)
        seconds = np.inf if target > MLFQ_LEVELS else limit - run_s(w, ran)
    elif w.order == LAS:
        seconds = (value_at(target) - attained_s(w, j, ran)) / gpus(w, j)
    else:
        seconds = np.inf if level > 0 else (w.quantum - attained_s(w, j, ran)) / gpus(w, j)
    if _may_stop(w, t, p, i):
        return seconds
    restart_s = max(run.resume_s - t.now_s[0], 0.0)
    ran_s = (t.numbers[BOUNDARY] - t.service[j].since) * w.interval_s
    return min(seconds, max(w.min_run_s - ran_s, restart_s + _until_checkpoint_s(w, t, p, i)))


@compiled
def _until_checkpoint_s(w: World, t: Tables, p: int, i: int) -> float:
    """At least so many seconds of work before a running job has something new to keep."""
    if w.checkpoint_s == 0.0:
        return 0.0
    j = t.running[p, i].job
    done_s, had_s = w.jobs[j].duration_s - remaining_s(t, p, i), w.jobs[j].duration_s - t.service[j].left_s
    checkpoints = np.floor(had_s / w.checkpoint_s + CHECKPOINT_TOLERANCE) + 1.0 - 2.0 * CHECKPOINT_TOLERANCE
    return max(w.checkpoint_s * checkpoints - done_s, 0.0)
