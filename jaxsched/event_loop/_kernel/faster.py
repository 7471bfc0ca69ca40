"""Jobs go where their GPUs are faster (docs/semantics.md, section 8, "Faster GPUs"); asked where `Rule.faster`."""

import numpy as np

from jaxsched.event_loop._kernel.displacement import FOREVER, ROUNDING, fill_without, give_without
from jaxsched.event_loop._kernel.gpu_tiers import find_tier, find_tier_without
from jaxsched.event_loop._kernel.jit import compiled, special
from jaxsched.event_loop._kernel.occupancy import fits_fewest_servers
from jaxsched.event_loop._kernel.openings import STAY, is_feasible, may_start, takes_forwards
from jaxsched.event_loop._kernel.queues import count_forwards_left, count_intervals_run, run_s
from jaxsched.event_loop._kernel.records import Tables, World
from jaxsched.event_loop._kernel.speed import quantise
from jaxsched.event_loop._kernel.stopping import may_stop, until_stoppable_s
from jaxsched.semantics import FASTER, GRID, RESTARTS


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
