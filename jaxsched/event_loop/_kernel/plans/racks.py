"""Gangs in as few racks as they need, and whole racks kept (docs/semantics.md, section 7, "Racks")."""

import numpy as np
from jaxtyping import Int64

from jaxsched.event_loop._kernel.jit import compiled, special
from jaxsched.event_loop._kernel.occupancy import count_within
from jaxsched.event_loop._kernel.records import Tables, World
from jaxsched.event_loop._kernel.shared_gpus import count_fitting

NONE, MANY = 2**62, 2**31


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
