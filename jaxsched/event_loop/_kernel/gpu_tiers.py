"""GPUs of different speeds (docs/semantics.md, section 7, "GPU types"): the tier of a job, and who waits for faster.

`World.tier_speed` are the speeds, fastest first; there is one where all GPUs are alike. Where that is so, and no job is
bound to GPU types either, nothing here is asked.
"""

import numpy as np
from jaxtyping import Int64

from jaxsched.event_loop._kernel.estimates import estimate_ends
from jaxsched.event_loop._kernel.jit import compiled
from jaxsched.event_loop._kernel.occupancy import MANY, count_within
from jaxsched.event_loop._kernel.plans.racks import hide_racks
from jaxsched.event_loop._kernel.records import Tables, World
from jaxsched.event_loop._kernel.shared_gpus import count_capacity, count_capacity_without, count_fitting
from jaxsched.event_loop._kernel.speed import quantise
from jaxsched.semantics import GRID


@compiled
def find_tier(w: World, t: Tables, p: int, j: int) -> int:
    """The highest tier at which a job fits the free GPUs of a partition; it must fit at some."""
    job, tier = w.jobs[j], 0
    while _fits_now(w, t, p, j, tier) < job.workers:
        tier += 1
    return tier


@compiled
def find_tier_without(w: World, t: Tables, p: int, j: int) -> int:
    """The same of the GPUs in `Scratch.without`."""
    job, tier, servers = w.jobs[j], 0, w.site.servers.shape[1]
    k = len(t.scratch.without) // servers
    while True:
        fits = 0
        for s in range(servers):
            here = 0
            for a in range(s * k, (s + 1) * k):
                if is_at_tier(w, p, a, j, tier):
                    here += count_capacity_without(t, a, job.size)
            fits += min(here, count_within(w, t.scratch.spare, s, j)) if w.asks else here
        if fits >= job.workers:
            return tier
        tier += 1


@compiled
def is_at_tier(w: World, p: int, a: int, j: int, tier: int) -> bool:
    """Whether a group's GPUs are fast enough for a tier, and a job may use them."""
    return w.site.group_tier[p, a] <= tier and w.site.usable[w.jobs[j].allowed, p, a] > 0


@compiled
def _fits_now(w: World, t: Tables, p: int, j: int, tier: int) -> int:
    """Workers that fit the groups at a tier now."""
    fits, servers = 0, w.site.servers.shape[1]
    k = t.free.shape[1] // servers
    for s in range(servers):
        here = 0
        for a in range(s * k, (s + 1) * k):
            if is_at_tier(w, p, a, j, tier):
                here += count_capacity(t, p, a, w.jobs[j].size)
        fits += min(here, count_within(w, t.spare[p], s, j)) if w.asks else here
    return fits


@compiled
def _fits_empty(w: World, p: int, j: int, tier: int) -> int:
    """Workers that fit the groups at a tier when they are empty."""
    fits, servers = 0, w.site.servers.shape[1]
    k = w.site.groups.shape[1] // servers
    for s in range(servers):
        here = 0
        for a in range(s * k, (s + 1) * k):
            if is_at_tier(w, p, a, j, tier):
                here += count_fitting(w.site.groups[p, a].gpus, w.jobs[j].wide)
        fits += min(here, count_within(w, w.site.reservable[p], s, j)) if w.asks else here
    return fits


@compiled
def waits_for_faster(w: World, t: Tables, p: int, j: int, turn: int) -> bool:
    """Whether a feasible job of that place in its queue would be done sooner on faster GPUs that it waits for."""
    own, job = find_tier(w, t, p, j), w.jobs[j]
    if own == 0:
        return False
    estimate_ends(w, t, p)
    speeds = w.tier_speed[job.allowed, job.model]
    here_s = job.estimate_s / speeds[own]
    for tier in range(own):
        if speeds[tier] > 0.0 and _fits_empty(w, p, j, tier) >= job.workers:
            wait_s = _estimate_tier_wait(w, t, p, tier, j)
            there_s = turn * wait_s + job.estimate_s / speeds[tier]
            if quantise(here_s / there_s) > GRID:
                return True
    return False


@compiled
def _estimate_tier_wait(w: World, t: Tables, p: int, tier: int, j: int) -> float:
    """Seconds until a tier has as many free GPUs as a job takes, at the end of one that has some; inf = never."""
    free, need = 0, w.jobs[j].workers * w.jobs[j].wide
    for a in range(t.free.shape[1]):
        if is_at_tier(w, p, a, j, tier):
            free += t.free[p, a]
    wait_s = -1.0
    while True:
        next_s = np.inf
        for i in range(t.partitions[p].running):
            if wait_s < t.scratch.end_s[i] < next_s and _count_held(w, t, p, i, tier, j) > 0:
                next_s = t.scratch.end_s[i]
        if next_s == np.inf:
            return next_s
        for i in range(t.partitions[p].running):
            if t.scratch.end_s[i] == next_s:
                free += _count_held(w, t, p, i, tier, j)
        wait_s = next_s
        if free >= need:
            return wait_s


@compiled
def _count_held(w: World, t: Tables, p: int, i: int, tier: int, j: int) -> int:
    """Whole GPUs at a tier that a running job of a partition has, and job `j` may use."""
    run, gpus = t.running[p, i], 0
    if w.jobs[run.job].size < 0:
        return 0
    for g in range(t.slots[p, run.slot].groups):
        group = t.groups[p, run.slot, g]
        if is_at_tier(w, p, group.group, j, tier):
            gpus += group.workers * w.jobs[run.job].wide
    return gpus


@compiled
def hide_others(w: World, t: Tables, p: int, j: int) -> None:
    """Take away the free GPUs below a job's tier, and those that it cannot use, for as long as it is placed."""
    tier, job, servers = find_tier(w, t, p, j), w.jobs[j], w.site.servers.shape[1]
    k = t.free.shape[1] // servers
    for s in range(servers):
        within = count_within(w, t.spare[p], s, j) if w.asks else MANY
        for a in range(s * k, (s + 1) * k):
            seen = is_at_tier(w, p, a, j, tier) and (job.size > 0 or within > 0)
            left = t.free[p, a] if seen else 0
            if seen and job.size > 0:
                fits = count_fitting(left, job.size)
                left = left if fits <= within else within * job.size
                within -= min(fits, within)
            t.scratch.hidden[a] = t.free[p, a] - left
            t.free[p, a] = left
            t.shared.hidden[a] = 0 if seen else t.shared.room[p, a]
            t.shared.room[p, a] -= t.shared.hidden[a]
    if w.rule.racks and job.size > 0:
        hide_racks(w, t, p, j)


@compiled
def see_gpus(
    w: World, t: Tables, p: int, j: int, tier: int, free: Int64[np.ndarray, "NK"], spare: Int64[np.ndarray, "N 2"]
) -> None:
    """As free GPUs of a partition, those of `free` that a gang sees at a tier: as many as `spare` is enough for."""
    size, servers = w.jobs[j].size, w.site.servers.shape[1]
    k = t.free.shape[1] // servers
    for s in range(servers):
        within = count_within(w, spare, s, j)
        for a in range(s * k, (s + 1) * k):
            left = free[a] if is_at_tier(w, p, a, j, tier) else 0
            fits = count_fitting(left, size)
            t.free[p, a] = left if fits <= within else within * size
            within -= min(fits, within)


@compiled
def show_others(t: Tables, p: int) -> None:
    """Put back what `hide_others` took."""
    for a in range(t.free.shape[1]):
        t.free[p, a] += t.scratch.hidden[a]
        t.shared.room[p, a] += t.shared.hidden[a]
        t.scratch.hidden[a] = t.shared.hidden[a] = 0
