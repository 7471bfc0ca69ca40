"""Who is stopped for whom, and how long nobody will be (docs/semantics.md, section 8); who moves to faster GPUs.

Jobs go where their GPUs are faster ("Faster GPUs" there) where `Rule.faster` says so.
"""

import numpy as np

from jaxsched.event_loop._kernel.estimates import (
    find_service_bin,
    has_outlived_estimate,
    left_by_estimate_s,
    remaining_s,
    until_estimate_grows_s,
)
from jaxsched.event_loop._kernel.jit import compiled, inlined, special
from jaxsched.event_loop._kernel.occupancy import (
    count_fewest_servers,
    count_within,
    fill_roomiest,
    fits_fewest_servers,
    reserve,
)
from jaxsched.event_loop._kernel.openings import STAY, is_feasible, may_start, takes_forwards
from jaxsched.event_loop._kernel.queues import (
    GITTINS,
    LAS,
    MLFQ,
    SRSF,
    SRTF,
    TABLE,
    THEMIS,
    attained_s,
    count_forwards_left,
    count_intervals_run,
    find_run_bin,
    measure,
    rank_running,
    run_s,
)
from jaxsched.event_loop._kernel.records import Tables, World
from jaxsched.event_loop._kernel.shared_gpus import (
    copy_shared,
    count_capacity_without,
    count_gang_gpus,
    count_reserved_gpus,
    share_without,
)
from jaxsched.event_loop._kernel.speed import quantise
from jaxsched.event_loop._kernel.stopping import may_stop, until_stoppable_s
from jaxsched.event_loop._kernel.tiers_and_racks import find_tier, find_tier_without
from jaxsched.semantics import (
    FASTER,
    FIRST_BIN_S,
    FIRST_RUN_S,
    GRID,
    MLFQ_FIRST_S,
    MLFQ_LEVELS,
    MLFQ_RATIO,
    RESTARTS,
    RUN_BINS,
    SERVICE_BINS,
)

LOWEST = -(2**31)
FOREVER = 2**31
MANY_GPUS = 2**31
NONE, SOME, TOO_MANY = range(3)  # more are to be stopped than the queue has room for
ROUNDING = 1e-6  # more than that of logarithms and powers


@special
@inlined
def mark_displaced(w: World, t: Tables, p: int) -> int:
    """Mark in `Tables.stops` the jobs that a partition stops for one of its queue: SOME, NONE, or too MANY.

    Slowdowns must be current. Queued jobs come in the order of their levels: those whom one may displace, the next may
    or may not, and others neither.
    """
    partition, highest = t.partitions[p], _fill_levels_above(w, t, p, t.queue[p, 0])
    known, size, freed = LOWEST, 0, MANY_GPUS  # `without` is for that level, `most_without` for that size and set
    allowed = 0
    for place in range(partition.queued if w.rule.backfill else min(partition.queued, 1)):
        j = t.queue[p, place]
        above = t.service[j].level + w.rule.margin
        if above >= highest:
            return NONE  # of all that follow, too
        whole = w.jobs[j].size > 0  # a fraction may fit where no GPU is free
        if whole and freed < count_gang_gpus(w, j):
            continue
        if above != known:
            known, size, freed = above, 0, _fill_without_all(w, t, p, above)
            if whole and freed < count_gang_gpus(w, j):
                continue
        if whole and (w.asks or size != w.jobs[j].size or allowed != w.jobs[j].allowed):
            size, allowed = w.jobs[j].size, w.jobs[j].allowed
            fill_roomiest(w, t, p, j, t.scratch.without, t.scratch.spare, t.scratch.most_without)
        if _fits_most(w, t, p, j):
            stopped = _mark_fewest(w, t, p, j, above)  # none where the job fits, but waits for faster GPUs
            if stopped > 0:
                return SOME if partition.queued + stopped <= w.queue_slots else TOO_MANY
            known = LOWEST
    return NONE


@compiled
def _fill_levels_above(w: World, t: Tables, p: int, j: int) -> int:
    """Fill `Scratch.level` with the levels of the running jobs that a queued job may displace; the highest."""
    highest, lowest = LOWEST, t.service[j].level + w.rule.margin
    least = t.service[j].exceed * (1.0 - ROUNDING)
    for i in range(t.partitions[p].running):
        t.stops[p, i], t.scratch.level[i] = 0, LOWEST
        if measure(w, t, p, i) < least:  # spares most of them a logarithm
            continue
        level = rank_running(w, t, p, i)
        if level > lowest and may_stop(w, t, p, i):
            t.scratch.level[i] = level
            highest = max(highest, level)
    return highest


@compiled
def _fill_without_all(w: World, t: Tables, p: int, above: int) -> int:
    """Fill `Scratch.without` with the GPUs that are free without all jobs of higher levels; how many those are."""
    freed = t.partitions[p].free_gpus
    fill_without(t, p)
    for i in range(t.partitions[p].running):
        if t.scratch.level[i] > above:
            if w.jobs[t.running[p, i].job].size > 0:
                freed += count_gang_gpus(w, t.running[p, i].job)
            give_without(w, t, p, i, 1)
    if w.shared_gpus > 0:
        freed = 0
        for a in range(len(t.scratch.without)):
            freed += t.scratch.without[a]
    return freed


@compiled
def _mark_fewest(w: World, t: Tables, p: int, j: int, above: int) -> int:
    """Take jobs, latest first, until job `j` would be feasible, and spare those without whom it is; how many."""
    running, count = t.partitions[p].running, 0
    fill_without(t, p)
    while running - count >= w.running_slots or not _fits(w, t, p, j):
        i = _find_extreme(t, p, above, 0, 1)
        t.stops[p, i] = 1
        give_without(w, t, p, i, 1)
        count += 1
    left = count
    while left > 0:
        i = _find_extreme(t, p, above, 1, -1)
        give_without(w, t, p, i, -1)
        if running - (count - 1) < w.running_slots and _fits(w, t, p, j):
            t.stops[p, i] = 0
            t.scratch.level[i] = LOWEST  # looked at
            count -= 1
        else:
            t.stops[p, i] = 2
            give_without(w, t, p, i, 1)
        left -= 1
    return count


@compiled
def _find_extreme(t: Tables, p: int, above: int, mark: int, sign: int) -> int:
    """The last by (level, job) of the running jobs above a level with that mark, or with `sign` -1 the first."""
    best = -1
    for i in range(t.partitions[p].running):
        if t.scratch.level[i] > above and t.stops[p, i] == mark:
            if best < 0:
                best = i
                continue
            by_level = sign * (t.scratch.level[i] - t.scratch.level[best])
            if by_level > 0 or (by_level == 0 and sign * (t.running[p, i].job - t.running[p, best].job) > 0):
                best = i
    return best


@compiled
def fill_without(t: Tables, p: int) -> None:
    """Fill `Scratch.without` with the free GPUs of a partition."""
    for a in range(len(t.scratch.without)):
        t.scratch.without[a] = t.free[p, a]
    for s in range(len(t.scratch.spare)):
        t.scratch.spare[s, 0], t.scratch.spare[s, 1] = t.spare[p, s, 0], t.spare[p, s, 1]
    copy_shared(t, p)


@compiled
def give_without(w: World, t: Tables, p: int, i: int, sign: int) -> None:
    """Add the GPUs of a running job to `Scratch.without`, or take them away."""
    run = t.running[p, i]
    if w.asks:
        for g in range(t.slots[p, run.slot].groups):
            group = t.groups[p, run.slot, g]
            reserve(w, t.scratch.spare, group.group, run.job, -sign * group.workers)
    if w.jobs[run.job].size < 0:
        share_without(t, p, run.slot, -w.jobs[run.job].size, sign)
        return
    for g in range(t.slots[p, run.slot].groups):
        group = t.groups[p, run.slot, g]
        t.scratch.without[group.group] += sign * group.workers * w.jobs[run.job].wide


@compiled
def _fits(w: World, t: Tables, p: int, j: int) -> bool:
    """Whether a gang fits `Scratch.without`."""
    if w.jobs[j].size > 0:
        fill_roomiest(w, t, p, j, t.scratch.without, t.scratch.spare, t.scratch.most_without)
    return _fits_most(w, t, p, j)


@compiled
def _fits_most(w: World, t: Tables, p: int, j: int) -> bool:
    """Whether a gang fits what `Scratch.most_without` says, or a fraction fits `Scratch.without`."""
    if w.jobs[j].size < 0:
        usable, k = w.site.usable[w.jobs[j].allowed, p], len(t.scratch.without) // w.site.servers.shape[1]
        for a in range(len(t.scratch.without)):
            fits = usable[a] > 0 and count_capacity_without(t, a, w.jobs[j].size) > 0
            if fits and count_within(w, t.scratch.spare, a // k, j) > 0:
                return True
        return False
    servers = count_fewest_servers(w, t, p, j) if w.rule.consolidate else len(t.scratch.most_without)
    return t.scratch.most_without[servers - 1] >= w.jobs[j].workers


@special
@compiled
def count_quiet_intervals(w: World, t: Tables, p: int) -> int:
    """For how many intervals a scheduler that has just waited waits, if nobody comes, goes or changes speed.

    Levels of queued jobs stand still. So that is until a running job may be displaced by one of them that could not
    displace it before. Slowdowns must be current.
    """
    seconds = np.inf
    if w.rule.order == THEMIS:  # queued jobs rise all the time
        return 1
    for i in range(t.partitions[p].running):
        seconds = min(seconds, _estimate_until_it_matters_s(w, t, p, i))
    return int(min(max(np.floor(seconds / w.interval_s * (1.0 - 1e-4)), 1.0), FOREVER))


@compiled
def _estimate_until_it_matters_s(w: World, t: Tables, p: int, i: int) -> float:
    """At least so many seconds pass before a running job could be displaced that is not displaced now."""
    value = measure(w, t, p, i)
    if may_stop(w, t, p, i):
        place = _find_first_not_exceeded(w, t, p, value)
        return np.inf if place < 0 else _estimate_until_it_exceeds_s(w, t, p, i, value, t.queue[p, place])
    head, stoppable_s = t.queue[p, 0], until_stoppable_s(w, t, p, i)
    if value >= t.service[head].exceed * (1.0 - ROUNDING):
        return stoppable_s
    return max(stoppable_s, _estimate_until_it_exceeds_s(w, t, p, i, value, head))


@compiled
def _find_first_not_exceeded(w: World, t: Tables, p: int, value: float) -> int:
    """Place in its queue of the first job that may not displace one of that measure, or only just; -1: all may."""
    looked_at = t.partitions[p].queued if w.rule.backfill else 1
    if value <= t.service[t.queue[p, 0]].exceed * (1.0 + ROUNDING):  # so it is with most
        return 0
    first, last = 1, looked_at
    while first < last:
        middle = (first + last) // 2
        if value > t.service[t.queue[p, middle]].exceed * (1.0 + ROUNDING):
            first = middle + 1
        else:
            last = middle
    return first if first < looked_at else -1


@compiled
def _estimate_until_it_exceeds_s(w: World, t: Tables, p: int, i: int, value: float, queued: int) -> float:
    """At least so many seconds pass before a queued job may displace a running one of that measure."""
    j = t.running[p, i].job
    if w.rule.order == SRTF or w.rule.order == SRSF:  # falls until it has outlived the estimate
        overdue = has_outlived_estimate(w, j, remaining_s(t, p, i))
        seconds = 0.0 if overdue else left_by_estimate_s(w, j, remaining_s(t, p, i)) * t.running[p, i].slowdown
        return min(seconds, until_estimate_grows_s(w, j, run_s(w, count_intervals_run(t, j))))
    if w.rule.order == LAS:
        return (t.service[queued].exceed - value) / count_reserved_gpus(w, j)
    ran, level = count_intervals_run(t, j), t.service[queued].level
    if w.rule.order == TABLE:
        own, ran_s = find_run_bin(run_s(w, ran)), run_s(w, ran)
        return FIRST_RUN_S * 2.0**own - ran_s if own < RUN_BINS - 1 else np.inf
    if w.rule.order == GITTINS:
        own = find_service_bin(attained_s(w, j, ran))
        edge = FIRST_BIN_S * 2.0**own if own < SERVICE_BINS - 1 else np.inf
        return (edge - attained_s(w, j, ran)) / count_reserved_gpus(w, j)
    if w.rule.order == MLFQ:
        return np.inf if level >= MLFQ_LEVELS else MLFQ_FIRST_S * MLFQ_RATIO**level - run_s(w, ran)
    return np.inf if level > 0 else (w.rule.quantum - attained_s(w, j, ran)) / count_reserved_gpus(w, j)


@special
@compiled
def find_faster_partition(w: World, t: Tables, p: int, j: int, place: int) -> int:
    """Where the job at that place of its queue goes that could start here, but much faster there; -1 = nowhere.

    Who looks ahead sends it only to where it fits the fewest servers.
    """
    best, most = -1, FASTER
    if not _may_move(w, t, j):
        return best
    here = find_tier(w, t, p, j)
    for q in range(len(t.partitions)):
        if q != p and takes_forwards(w, t, q) and may_start(w, t, q, j, place):
            if w.rule.ahead and w.jobs[j].size > 0 and not fits_fewest_servers(w, t, q, j):
                continue
            gain = _measure_gain(w, j, find_tier(w, t, q, j), here)
            roomier = best >= 0 and t.partitions[q].free_gpus > t.partitions[best].free_gpus
            if gain > most or (gain == most and (best < 0 or roomier)):
                best, most = q, gain
    return best


@special
@compiled
def mark_moved(w: World, t: Tables, p: int) -> bool:
    """Mark in `Tables.stops` the job that a partition stops so that it goes on on faster GPUs; whether there is one.

    Slowdowns must be current.
    """
    best, most = -1, FASTER
    if t.partitions[p].queued >= w.queue_slots:
        return False
    for i in range(t.partitions[p].running):
        t.stops[p, i] = 0
        gain, j = _find_largest_gain(w, t, p, i), t.running[p, i].job
        if gain < most or not _makes_up(w, t, j, gain) or not may_stop(w, t, p, i):
            continue
        if best < 0 or gain > most or j < t.running[p, best].job:
            best, most = i, gain
    if best >= 0:
        t.stops[p, best] = 1
    return best >= 0


@special
@compiled
def count_intervals_until_moved(w: World, t: Tables, p: int) -> int:
    """For at least so many intervals a partition moves no job that it does not now, if nobody comes or goes anywhere.

    Slowdowns must be current.
    """
    least_s = np.inf
    for i in range(t.partitions[p].running):
        gain = _find_largest_gain(w, t, p, i)
        if gain >= FASTER:
            needed_s = RESTARTS * w.stops.restart_s * gain / (gain - GRID) * (1.0 - ROUNDING)
            seconds = needed_s - run_s(w, count_intervals_run(t, t.running[p, i].job))
            if not may_stop(w, t, p, i):
                seconds = max(seconds, until_stoppable_s(w, t, p, i))
            least_s = min(least_s, seconds)
    return int(min(max(np.floor(least_s / w.interval_s * (1.0 - 1e-4)), 1.0), FOREVER))


@compiled
def _may_move(w: World, t: Tables, j: int) -> bool:
    """Whether a job may be forwarded."""
    return w.rule.forward != STAY and count_forwards_left(w, t, j) > 0


@compiled
def _measure_gain(w: World, j: int, there: int, here: int) -> int:
    """How fast a job is at one tier, in thousandths of its speed at another."""
    speeds = w.tier_speed[w.jobs[j].allowed, w.jobs[j].model]
    return quantise(speeds[there] / speeds[here])


@compiled
def _find_largest_gain(w: World, t: Tables, p: int, i: int) -> int:
    """Of a running job over all places where it could go on; 0: less than FASTER."""
    j, here = t.running[p, i].job, _find_slowest_tier(w, t, p, i)
    fastest, speeds = here, w.tier_speed[w.jobs[j].allowed, w.jobs[j].model]
    for tier in range(len(speeds)):
        if speeds[tier] > speeds[fastest]:
            fastest = tier
    if _measure_gain(w, j, fastest, here) < FASTER:
        return 0
    most = 0
    if t.partitions[p].free_gpus > 0 or w.jobs[j].size < 0:
        fill_without(t, p)
        give_without(w, t, p, i, 1)
        most = _measure_gain(w, j, find_tier_without(w, t, p, j), here)
    if _may_move(w, t, j):
        for q in range(len(t.partitions)):
            if q != p and takes_forwards(w, t, q) and is_feasible(w, t, q, j):
                most = max(most, _measure_gain(w, j, find_tier(w, t, q, j), here))
    return most


@compiled
def _find_slowest_tier(w: World, t: Tables, p: int, i: int) -> int:
    """The lowest tier of the groups with workers of a running job."""
    tier, slot = 0, t.running[p, i].slot
    for g in range(t.slots[p, slot].groups):
        group = t.groups[p, slot, g]
        if group.workers > 0:
            tier = max(tier, w.site.group_tier[p, group.group])
    return tier


@compiled
def _makes_up(w: World, t: Tables, j: int, gain: int) -> bool:
    """Whether a running job has run for so long that with this gain some restarts would have been made up for."""
    ran_s = np.float32(run_s(w, count_intervals_run(t, j)))
    needed = np.float32(RESTARTS) * np.float32(w.stops.restart_s) * np.float32(gain)
    return bool(ran_s * np.float32(gain - GRID) >= needed)
