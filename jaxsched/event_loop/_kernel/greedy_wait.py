"""`greedy-wait`: candidate placements, what each would do, and which job takes one (docs/semantics.md, section 7)."""

import numpy as np

from jaxsched.event_loop._kernel.estimates import foresee
from jaxsched.event_loop._kernel.gpu_tiers import hide_slow, show_slow
from jaxsched.event_loop._kernel.jit import compiled, inlined
from jaxsched.event_loop._kernel.occupancy import feels, fit, in_order
from jaxsched.event_loop._kernel.openings import may_start
from jaxsched.event_loop._kernel.records import STAMP, Tables, World
from jaxsched.event_loop._kernel.rules import NEVER, fill, server_pressure
from jaxsched.event_loop._kernel.speed import footprint, quantised, slowdown
from jaxsched.semantics import ANCHORS, CAPS

_FAR = 2**31  # more workers than any server holds


@inlined
def accept(w: World, t: Tables, p: int) -> int:
    """Place in its queue of the first job that takes a placement, -1 if there is none; slowdowns must be current.

    The placement is `fill_around(anchor, cap)` of the partition's `anchor` and `cap`.
    """
    partition = t.partitions[p]
    wait_s = max(foresee(w, t, p), w.interval_s)  # until something can change
    if w.lifetimes:
        _foresee_exits(w, t, p)
    seen = 0
    for place in range(partition.queued):
        j = t.queue[p, place]
        if not may_start(w, t, p, j, place):
            continue
        unlike = w.tier_speed.shape[1] > 1
        if unlike:
            hide_slow(w, t, p, j)
        loss = _best(w, t, p, j)
        if unlike:
            show_slow(t, p)
        stake = (loss - 1.0) * w.jobs[j].estimate_s / wait_s
        if partition.running == 0 or quantised(loss) <= quantised(w.threshold):
            return place
        if quantised(stake) <= quantised(w.patience):
            return place
        seen += 1
        if seen == w.window:
            break
    return -1


@compiled
def fill_around(w: World, t: Tables, p: int, j: int, anchor: int, cap: int) -> int:
    """Place a gang on servers in order of their distance from `anchor`, at most `cap` workers on a group.

    How many groups are used; 0 if the gang does not fit so.
    """
    servers, need, wide = w.servers.shape[1], w.jobs[j].workers, w.jobs[j].wide
    k = t.free.shape[1] // servers
    if _count_fits(w, t, p, wide, cap) < need:
        return 0
    rack, used, chosen = w.servers[p, anchor].rack, 0, anchor
    while need > 0:
        used = fill(t, p, chosen * k, (chosen + 1) * k, need, wide, used, cap)
        need -= min(t.fits_server[chosen], need)
        t.fits_server[chosen] = 0
        least = NEVER
        for s in range(servers):
            if t.fits_server[s] > 0:
                key = -t.fits_server[s] if w.servers[p, s].rack == rack else _FAR - t.fits_server[s]
                if key < least:
                    chosen, least = s, key
    return used


@compiled
def _count_fits(w: World, t: Tables, p: int, wide: int, cap: int) -> int:
    """Fill `Tables.fits_server` with the workers that fit, at most `cap` on a group; how many on all servers."""
    servers, fits = w.servers.shape[1], 0
    k = t.free.shape[1] // servers
    for s in range(servers):
        t.fits_server[s] = 0
        for a in range(s * k, (s + 1) * k):
            t.fits_server[s] += min(fit(t.free[p, a], wide), cap)
        fits += t.fits_server[s]
    return fits


@compiled
def _choose_anchors(w: World, t: Tables, p: int, j: int) -> None:
    """Fill `Tables.anchors`: the best servers by packing, then by pressure."""
    workers = w.jobs[j].workers
    _count_fits(w, t, p, w.jobs[j].wide, CAPS[0])
    for place in range(2 * ANCHORS):
        t.anchors[place], least = -1, NEVER
        for s in range(w.servers.shape[1]):
            fits = t.fits_server[s]
            if fits == 0:
                continue
            if place >= ANCHORS:
                key = quantised(server_pressure(w, t, p, s))
            else:
                key = fits if fits >= workers else _FAR - fits
            if key < least:
                t.anchors[place], least = s, key
        if t.anchors[place] >= 0:
            t.fits_server[t.anchors[place]] = 0


@inlined
def _best(w: World, t: Tables, p: int, j: int) -> float:
    """Note the job's best candidate in the partition; its `loss`."""
    partition, job = t.partitions[p], w.jobs[j]
    estimate_s = max(job.estimate_s, 1e-9)
    slot = t.running[p, partition.running].slot  # a free one, to try placements in
    least, best = NEVER, np.inf
    _choose_anchors(w, t, p, j)
    for anchor in t.anchors:
        for cap in CAPS:
            if anchor < 0 or (cap != CAPS[0] and cap >= job.workers):
                continue
            used = fill_around(w, t, p, j, anchor, cap)
            if used == 0:
                continue
            in_order(t, used)
            footprint(w, t, p, slot, j, used)
            own, added_s = _effect(w, t, p, slot, j)
            effective = own + added_s / estimate_s
            later_s = _later(w, t, p, slot, own * estimate_s) if w.lifetimes else 0.0
            key = quantised(effective + later_s / estimate_s)
            if key < least:
                partition.anchor, partition.cap, least = anchor, cap, key
                best = own / t.slots[p, slot].least + added_s / estimate_s
    return best


@compiled
def _effect(w: World, t: Tables, p: int, slot: int, j: int) -> tuple[float, float]:
    """The job's own slowdown with the footprint in that slot, and the seconds that it adds to the running jobs."""
    stamp = t.numbers[STAMP]
    groups, wires = t.slots[p, slot].groups, t.slots[p, slot].wires
    for i in range(groups):
        group = t.groups[p, slot, i]
        on, kept = t.on_group[p, group.group], t.kept_groups[i]
        kept.users, kept.stamp, kept.cpu, kept.pcie = on.users, on.stamp, on.cpu, on.pcie
        on.users, on.stamp, on.cpu, on.pcie = on.users + 1, stamp, on.cpu + group.cpu, on.pcie + group.pcie
    for i in range(wires):
        wire = t.wires[p, slot, i]
        wired, kept_wire = t.on_wire[wire.wire], t.kept_wires[i]
        kept_wire.users, kept_wire.stamp, kept_wire.use = wired.users, wired.stamp, wired.use
        wired.users, wired.stamp, wired.use = wired.users + 1, stamp, wired.use + wire.use

    own, added_s = slowdown(w, t, p, slot, j), 0.0
    for i in range(t.partitions[p].running):
        run = t.running[p, i]
        if feels(t, p, run.slot):
            added_s += t.left_s[i] * max(slowdown(w, t, p, run.slot, run.job) - run.slowdown, 0.0)

    for i in range(groups):
        on, kept = t.on_group[p, t.groups[p, slot, i].group], t.kept_groups[i]
        on.users, on.stamp, on.cpu, on.pcie = kept.users, kept.stamp, kept.cpu, kept.pcie
    for i in range(wires):
        wired, kept_wire = t.on_wire[t.wires[p, slot, i].wire], t.kept_wires[i]
        wired.users, wired.stamp, wired.use = kept_wire.users, kept_wire.stamp, kept_wire.use
    return own, added_s


@compiled
def _foresee_exits(w: World, t: Tables, p: int) -> None:
    """Fill `Tables.exit_s` for a partition."""
    k = t.free.shape[1] // w.servers.shape[1]
    t.exit_s[:] = 0.0
    for i in range(t.partitions[p].running):
        slot = t.running[p, i].slot
        for g in range(t.slots[p, slot].groups):
            s = t.groups[p, slot, g].group // k
            t.exit_s[s] = max(t.exit_s[s], t.end_s[i])


@compiled
def _later(w: World, t: Tables, p: int, slot: int, lasts_s: float) -> float:
    """Seconds by which the servers of the footprint in that slot become wholly free later."""
    k = t.free.shape[1] // w.servers.shape[1]
    later_s, before = 0.0, -1  # groups are in ascending order
    for g in range(t.slots[p, slot].groups):
        s: int = t.groups[p, slot, g].group // k
        if s != before:
            later_s += max(lasts_s - t.exit_s[s], 0.0)
        before = s
    return later_s
