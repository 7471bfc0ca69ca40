"""GPUs that jobs leave alone (docs/semantics.md, section 7): slower ones ("GPU types"), and more racks ("Racks").

`World.tier_speed` are the speeds, fastest first; there is one where all GPUs are alike. Where that is so, and no job is
bound to GPU types either, no tier is asked for.
"""

import numpy as np
from jaxtyping import Int64

from jaxsched.event_loop._kernel.estimates import estimate_ends
from jaxsched.event_loop._kernel.jit import compiled, special
from jaxsched.event_loop._kernel.occupancy import MANY, count_within
from jaxsched.event_loop._kernel.records import Tables, World
from jaxsched.event_loop._kernel.shared_gpus import count_capacity, count_capacity_without, count_fitting
from jaxsched.event_loop._kernel.speed import quantise
from jaxsched.semantics import GRID

NONE = 2**62


@compiled
def _fill_rooms(
    w: World, t: Tables, p: int, j: int, free: Int64[np.ndarray, "NK"], spare: Int64[np.ndarray, "N 2"], blocks: bool
) -> int:
    """Fill `fits_server` and the `workers` of `racks` with what fits each, of a rack a block at most; their sum."""
    servers, fits, racks, total = w.site.servers.shape[1], t.scratch.fits_server, t.scratch.racks, 0
    k = len(free) // servers
    for r in range(len(racks)):
        racks[r].workers = 0.0
    for s in range(servers):
        fits[s] = 0
        for a in range(s * k, (s + 1) * k):
            if w.site.usable[w.jobs[j].allowed, p, a] > 0:
                fits[s] += count_fitting(free[a], w.jobs[j].wide)
        if w.asks:
            fits[s] = min(fits[s], count_within(w, spare, s, j))
    for s in range(servers):
        here, ahead = w.site.servers[p, s], 0
        if blocks and here.block > 0 and fits[s] > 0:
            for o in range(servers):
                more = fits[o] > fits[s] or (fits[o] == fits[s] and o < s)
                ahead += 1 if more and w.site.servers[p, o].rack == here.rack else 0
        if not blocks or here.block == 0 or ahead < here.block:
            racks[here.rack].workers += fits[s]
            total += fits[s]
    return total


@compiled
def _take_roomiest(t: Tables) -> int:
    """The most that a rack of `racks` has room for, taken from it."""
    best = 0
    for r in range(len(t.scratch.racks)):
        if t.scratch.racks[r].workers > t.scratch.racks[best].workers:
            best = r
    most = int(t.scratch.racks[best].workers)
    t.scratch.racks[best].workers = 0.0
    return most


@special
@compiled
def fits_fewest_racks(w: World, t: Tables, p: int, j: int) -> bool:
    """Whether a gang fits as few racks of a partition as it ever needs."""
    need, count = w.jobs[j].workers, 0
    blocks = _fill_rooms(w, t, p, j, w.site.group_gpus[p], w.site.reservable[p], True) >= need
    if not blocks:
        _fill_rooms(w, t, p, j, w.site.group_gpus[p], w.site.reservable[p], False)
    while need > 0:
        need -= _take_roomiest(t)
        count += 1
    _fill_rooms(w, t, p, j, t.free[p], t.spare[p], blocks)
    need = w.jobs[j].workers
    for _ in range(count):
        need -= _take_roomiest(t)
    return need <= 0


@special
@compiled
def hide_racks(w: World, t: Tables, p: int, j: int) -> None:
    """Take away the free GPUs outside the racks that are chosen for a gang, and in these of servers that it leaves."""
    servers, racks, seen, rest = w.site.servers.shape[1], t.scratch.racks, t.scratch.taken, w.jobs[j].workers
    k = t.free.shape[1] // servers
    if _fill_rooms(w, t, p, j, t.free[p], t.spare[p], True) < rest:
        _fill_rooms(w, t, p, j, t.free[p], t.spare[p], False)
    for r in range(len(racks)):
        racks[r].first = racks[r].servers = 0  # free GPUs, and all
    for a in range(t.free.shape[1]):
        if w.site.usable[w.jobs[j].allowed, p, a] > 0:
            racks[w.site.servers[p, a // k].rack].first += t.free[p, a]
            racks[w.site.servers[p, a // k].rack].servers += w.site.groups[p, a].gpus
    seen[:servers] = 0
    while rest > 0:
        r = _choose_rack(t, rest)
        room = int(racks[r].workers)
        if room == 0:
            break
        racks[r].workers = 0.0
        _see_servers(w, t, p, r, min(room, rest), room >= rest)
        rest -= min(room, rest)
    for a in range(t.free.shape[1]):
        if seen[a // k] == 0:
            t.scratch.hidden[a] += t.free[p, a]
            t.free[p, a] = 0


@compiled
def _choose_rack(t: Tables, rest: int) -> int:
    """The rack for the rest of a gang, or that has most room for it: rather in use, then with the fewest free GPUs."""
    racks, most, best, least = t.scratch.racks, 0.0, 0, NONE
    for r in range(len(racks)):
        most = max(most, racks[r].workers)
    for r in range(len(racks)):
        if racks[r].workers >= min(most, float(rest)):
            key = racks[r].first + (MANY if racks[r].first == racks[r].servers else 0)
            if key < least:
                best, least = r, key
    return best


@compiled
def _see_servers(w: World, t: Tables, p: int, r: int, takes: int, last: bool) -> None:
    """Mark in `taken` the servers of a rack that a gang sees, which takes so many workers of it."""
    servers, fits, seen = w.site.servers.shape[1], t.scratch.fits_server, t.scratch.taken
    first = True
    while takes > 0:
        best = -1
        for s in range(servers):
            if w.site.servers[p, s].rack == r and seen[s] == 0 and (best < 0 or fits[s] > fits[best]):
                best = s
        if first and last and fits[best] >= takes:
            for s in range(servers):
                seen[s] = 1 if w.site.servers[p, s].rack == r else seen[s]
            return
        seen[best], first = 1, False
        takes -= fits[best]


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
