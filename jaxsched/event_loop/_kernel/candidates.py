"""Candidate placements of a job, and what each would do (docs/semantics.md, section 7)."""

import numpy as np

from jaxsched.event_loop._kernel.jit import compiled
from jaxsched.event_loop._kernel.occupancy import is_affected, mark_affected, mark_none, sort_places
from jaxsched.event_loop._kernel.records import Tables, World
from jaxsched.event_loop._kernel.rules import MATCH, NEAR, NEVER, ROW, fill, fill_servers, measure_server_pressure
from jaxsched.event_loop._kernel.shared_gpus import choose_gpu, count_capacity, leave_gpu, lie_on_gpu
from jaxsched.event_loop._kernel.speed import compute_slowdown, quantise, write_footprint
from jaxsched.semantics import ANCHORS, CAPS, GPUS, OPENED
from jaxsched.workload.jobs import WHOLE

WAYS = (*CAPS, *(-cap for cap in CAPS))  # of a candidate: its cap, below 0 where its servers stand in a row


@compiled
def fill_around(w: World, t: Tables, p: int, j: int, anchor: int, way: int) -> int:
    """Place a gang on the server `anchor`, then on others: those of its rack first, or in a row.

    How many groups are used; 0 if it does not fit so, or if it would stand in a row and the anchor alone holds it.
    """
    servers, need, size, cap = w.site.servers.shape[1], w.jobs[j].workers, w.jobs[j].size, abs(way)
    k = t.free.shape[1] // servers
    if _count_fits(w, t, p, size, cap) < need or (way < 0 and t.scratch.fits_server[anchor] >= need):
        return 0
    used = fill(t, p, anchor * k, (anchor + 1) * k, need, size, 0, cap)
    need -= min(t.scratch.fits_server[anchor], need)
    t.scratch.fits_server[anchor] = 0
    of = anchor if way < 0 else w.site.servers[p, anchor].rack
    return fill_servers(w, t, p, of, need, size, ROW if way < 0 else NEAR, used, cap)


@compiled
def _count_fits(w: World, t: Tables, p: int, size: int, cap: int) -> int:
    """Fill `Scratch.fits_server` with the workers that fit, at most `cap` on a group; how many on all servers."""
    servers, fits = w.site.servers.shape[1], 0
    k = t.free.shape[1] // servers
    for s in range(servers):
        t.scratch.fits_server[s] = 0
        for a in range(s * k, (s + 1) * k):
            t.scratch.fits_server[s] += min(count_capacity(t, p, a, size), cap)
        fits += t.scratch.fits_server[s]
    return fits


@compiled
def _choose_anchors(w: World, t: Tables, p: int, j: int) -> None:
    """Fill `Scratch.anchors`: the best servers by packing, then by pressure."""
    workers = w.jobs[j].workers
    _count_fits(w, t, p, w.jobs[j].size, CAPS[0])
    for place in range(2 * ANCHORS):
        t.scratch.anchors[place], least = -1, NEVER
        for s in range(w.site.servers.shape[1]):
            fits = t.scratch.fits_server[s]
            if fits == 0:
                continue
            if place >= ANCHORS:
                key = quantise(measure_server_pressure(w, t, p, s))
            else:
                key = fits if fits >= workers else NEVER - fits
            if key < least:
                t.scratch.anchors[place], least = s, key
        if t.scratch.anchors[place] >= 0:
            t.scratch.fits_server[t.scratch.anchors[place]] = 0


@compiled
def find_best_candidate(w: World, t: Tables, p: int, j: int) -> tuple[float, float]:
    """Note the candidate of least cost in the partition; its cost and its `loss`, infinite if there is none."""
    if w.rule.kind == MATCH and w.jobs[j].size < 0:
        return _find_best_gpu(w, t, p, j)
    return _find_best_anchor(w, t, p, j)


@compiled
def _find_best_anchor(w: World, t: Tables, p: int, j: int) -> tuple[float, float]:
    """Of anchors and ways: `PARTITION.anchor` and `way`."""
    partition, job = t.partitions[p], w.jobs[j]
    partition.gpu = -1
    least, best_cost, best_loss, tried = NEVER, np.inf, np.inf, 0
    _choose_anchors(w, t, p, j)
    for i in range(len(t.scratch.anchors)):
        anchor = t.scratch.anchors[i]
        for way in WAYS:
            if anchor < 0 or (abs(way) != CAPS[0] and abs(way) >= job.workers) or _is_least(w, least):
                continue
            if way < 0 and not w.site.uneven[p]:
                break
            used = fill_around(w, t, p, j, anchor, way)
            if used == 0:
                continue
            sort_places(t, used)
            if _is_tried(t, used, tried):
                continue
            tried += 1
            cost, loss = _appraise(w, t, p, j, used, -1, least)
            if quantise(cost) < least:
                partition.anchor, partition.way, least = anchor, way, quantise(cost)
                partition.least = t.slots[p, t.running[p, partition.running].slot].least
                best_cost, best_loss = cost, loss
    return best_cost, best_loss


@compiled
def _is_tried(t: Tables, used: int, count: int) -> bool:
    """Whether the placement at hand is one of the first `count` of `Scratch.tried`; written behind them in any case."""
    place, tried = t.scratch.place, t.scratch.tried
    tried[count, 0] = used
    for i in range(used):
        tried[count, 1 + i] = place[i].group << 32 | place[i].workers
    for c in range(count):
        i = 0
        while i <= used and tried[c, i] == tried[count, i]:
            i += 1
        if i > used:
            return True
    return False


@compiled
def _find_best_gpu(w: World, t: Tables, p: int, j: int) -> tuple[float, float]:
    """Of the GPUs that a fraction may get: `PARTITION.anchor`, its group, and `gpu`."""
    partition, milli = t.partitions[p], -w.jobs[j].size
    least, best_cost, best_loss, tried = NEVER, np.inf, np.inf, 0
    for a in range(t.free.shape[1]):
        if t.shared.room[p, a] < milli:
            continue
        for gpu in range(w.shared_gpus):
            if tried < GPUS and 0 < t.shared.used[p, a, gpu] <= WHOLE - milli:
                tried += 1
                cost, loss = _appraise_gpu(w, t, p, j, a, gpu, least)
                if quantise(cost) < least:
                    partition.anchor, partition.gpu, least = a, gpu, quantise(cost)
                    best_cost, best_loss = cost, loss
    a = -1
    for _ in range(OPENED):
        a = _find_next_fewest(t, p, a)
        if a < 0:
            break
        gpu = 0
        while t.shared.used[p, a, gpu] > 0:
            gpu += 1
        cost, loss = _appraise_gpu(w, t, p, j, a, gpu, least)
        if quantise(cost) < least:
            partition.anchor, partition.gpu, least = a, gpu, quantise(cost)
            best_cost, best_loss = cost, loss
    return best_cost, best_loss


@compiled
def _find_next_fewest(t: Tables, p: int, a: int) -> int:
    """Of the groups with free GPUs the one that follows `a` by (how many, index); of -1 the first; -1 = none."""
    best = -1
    for b in range(t.free.shape[1]):
        if t.free[p, b] == 0:
            continue
        follows = a < 0 or t.free[p, b] > t.free[p, a] or (t.free[p, b] == t.free[p, a] and b > a)
        if follows and (best < 0 or t.free[p, b] < t.free[p, best]):
            best = b
    return best


@compiled
def _appraise_gpu(w: World, t: Tables, p: int, j: int, a: int, gpu: int, least: int) -> tuple[float, float]:
    """`_appraise` of a fraction on that GPU."""
    t.scratch.place[0].group, t.scratch.place[0].workers = a, 1
    return _appraise(w, t, p, j, 1, gpu, least)


@compiled
def _is_least(w: World, least: int, later: float = 0.0) -> bool:
    """Whether no placement costs less than that score: where GPUs are alike, the least is 1 and what is `later`."""
    return w.tier_speed.shape[2] == 1 and least <= quantise(1.0 + later)


@compiled
def _appraise(w: World, t: Tables, p: int, j: int, used: int, gpu: int, least: int) -> tuple[float, float]:
    """Cost and `loss` of the placement on the first `used` groups of `Scratch.place`; `gpu`: see `occupancy.start`.

    A cost whose score is not under `least` may be another one whose score is not, either.
    """
    slot = t.running[p, t.partitions[p].running].slot  # a free one, to try placements in
    estimate_s = 1.0 if w.rule.alike else max(w.jobs[j].estimate_s, 1e-9)
    if w.rule.lifetimes and _is_least(w, least, _estimate_later(w, t, p, used, estimate_s) / estimate_s):
        return np.inf, np.inf
    write_footprint(w, t, p, slot, j, used)
    if w.jobs[j].size < 0:
        t.slots[p, slot].gpu = gpu if gpu >= 0 else choose_gpu(t, p, t.scratch.place[0].group, -w.jobs[j].size)
    own, added_s, cost = _measure_effect(w, t, p, slot, j, used, estimate_s, least)
    over = t.slots[p, slot].least
    if w.rule.ahead and w.jobs[j].size > 0:  # as if the GPUs were those of `base`
        over = over / t.partitions[p].base if t.partitions[p].base > 0.0 else 1.0
    return cost, own / over + added_s / estimate_s


@compiled
def believe_rates(w: World, t: Tables, p: int) -> None:
    """Fill `SharedGPUs.rate` for a partition whose slowdowns are current."""
    other = len(w.sharing.factors) > 0 and not w.sharing.known
    for i in range(t.partitions[p].running):
        run = t.running[p, i]
        t.shared.rate[i] = run.slowdown
        if other and t.slots[p, run.slot].gpu >= 0:
            t.shared.rate[i] = compute_slowdown(w, t, p, run.slot, run.job, t.shared.believed)


@compiled
def _measure_effect(
    w: World, t: Tables, p: int, slot: int, j: int, used: int, estimate_s: float, least: int
) -> tuple[float, float, float]:
    """With the footprint in that slot the job's own slowdown, the seconds it adds to the running jobs, and its cost.

    Not all of the seconds are counted if the score of the cost is not under `least` without the others.
    """
    groups, wires = t.slots[p, slot].groups, t.slots[p, slot].wires
    for i in range(groups):
        group = t.groups[p, slot, i]
        on, kept = t.on_group[p, group.group], t.scratch.kept_groups[i]
        kept.users, kept.cpu, kept.pcie = on.users, on.cpu, on.pcie
        on.users, on.cpu, on.pcie = on.users + 1, on.cpu + group.cpu, on.pcie + group.pcie
        mark_affected(t, p, p * t.free.shape[1] + group.group)
    for i in range(wires):
        wire = t.wires[p, slot, i]
        wired, kept_wire = t.on_wire[wire.wire], t.scratch.kept_wires[i]
        kept_wire.users, kept_wire.use = wired.users, wired.use
        wired.users, wired.use = wired.users + 1, wired.use + wire.use
        mark_affected(t, p, wire.row)

    shares = t.slots[p, slot].gpu >= 0
    if shares:
        lie_on_gpu(t, p, slot)
    own, added_s = compute_slowdown(w, t, p, slot, j, t.shared.believed), 0.0
    later_s = _estimate_later(w, t, p, used, own * estimate_s) if w.rule.lifetimes else 0.0
    cost = own + added_s / estimate_s + later_s / estimate_s
    for i in range(t.partitions[p].running if quantise(cost) < least else 0):
        run = t.running[p, i]
        if is_affected(t, p, run.slot):
            slower = compute_slowdown(w, t, p, run.slot, run.job, t.shared.believed) - t.shared.rate[i]
            added_s += (1.0 if w.rule.alike else t.scratch.left_s[i]) * max(slower, 0.0)
            cost = own + added_s / estimate_s + later_s / estimate_s
            if quantise(cost) >= least:
                break
    if shares:
        leave_gpu(t, p, slot)
    mark_none(t, p)

    for i in range(groups):
        on, kept = t.on_group[p, t.groups[p, slot, i].group], t.scratch.kept_groups[i]
        on.users, on.cpu, on.pcie = kept.users, kept.cpu, kept.pcie
    for i in range(wires):
        wired, kept_wire = t.on_wire[t.wires[p, slot, i].wire], t.scratch.kept_wires[i]
        wired.users, wired.use = kept_wire.users, kept_wire.use
    return own, added_s, cost


@compiled
def estimate_exits(w: World, t: Tables, p: int) -> None:
    """Fill `Scratch.exit_s` for a partition."""
    k = t.free.shape[1] // w.site.servers.shape[1]
    t.scratch.exit_s[:] = 0.0
    for i in range(t.partitions[p].running):
        slot = t.running[p, i].slot
        for g in range(t.slots[p, slot].groups):
            s = t.groups[p, slot, g].group // k
            t.scratch.exit_s[s] = max(t.scratch.exit_s[s], t.scratch.end_s[i])


@compiled
def _estimate_later(w: World, t: Tables, p: int, used: int, lasts_s: float) -> float:
    """Seconds by which the servers of the first `used` groups of `Scratch.place` become wholly free later."""
    k = t.free.shape[1] // w.site.servers.shape[1]
    later_s, before = 0.0, -1  # groups are in ascending order
    for g in range(used):
        s: int = t.scratch.place[g].group // k
        if s != before:
            later_s += max(lasts_s - t.scratch.exit_s[s], 0.0)
        before = s
    return later_s
