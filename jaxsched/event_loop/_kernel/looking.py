"""`greedy-wait` and `match`: which job takes which of its candidates (docs/semantics.md, section 7)."""

import numpy as np

from jaxsched.event_loop._kernel.candidates import believe_rates, estimate_exits, fill_around, find_best_candidate
from jaxsched.event_loop._kernel.displacement import find_faster_partition
from jaxsched.event_loop._kernel.estimates import estimate_ends
from jaxsched.event_loop._kernel.jit import compiled, inlined, special
from jaxsched.event_loop._kernel.occupancy import is_affected, mark_affected, mark_none, reserve
from jaxsched.event_loop._kernel.openings import may_start
from jaxsched.event_loop._kernel.queues import find_key
from jaxsched.event_loop._kernel.records import BOUNDARY, Tables, World
from jaxsched.event_loop._kernel.rules import NEVER
from jaxsched.event_loop._kernel.speed import compute_slowdown, quantise
from jaxsched.event_loop._kernel.tiers_and_racks import find_tier, hide_others, is_at_tier, see_gpus, show_others

_LOWEST_KEY = np.float32(1e-9)


@special
@inlined
def accept(w: World, t: Tables, p: int) -> int:
    """`greedy-wait`: place in its queue of the first job that takes a placement, -1 if there is none.

    Slowdowns must be current. The partition has the placement: `take_candidate` makes it. A job that goes to faster
    GPUs elsewhere counts, whatever it could have here.
    """
    wait_s, seen = _prepare(w, t, p), 0
    for place in range(t.partitions[p].queued):
        j = t.queue[p, place]
        if not may_start(w, t, p, j, place):
            continue
        if _goes_to_faster(w, t, p, j, place) or _takes_place(w, t, p, j, wait_s):
            return place
        seen += 1
        if seen == w.rule.window:
            break
    return -1


@special
@compiled
def match(w: World, t: Tables, p: int) -> int:
    """`match`: place in its queue of the job with the pair of least cost, -1 if there is none; as `accept`."""
    partition, wait_s = t.partitions[p], _prepare(w, t, p)
    seen, lead, first, least, chosen = 0, 0.0, _LOWEST_KEY, NEVER, -1
    anchor, way, gpu = 0, 0, -1
    for place in range(partition.queued):
        j = t.queue[p, place]
        if not may_start(w, t, p, j, place):
            continue
        key = find_key(w, t, j)
        if seen == 0:
            lead, first = key, max(np.float32(key), _LOWEST_KEY)
        elif w.rule.alike and key != lead:
            break
        seen += 1
        cost, loss = _appraise_visible(w, t, p, j)
        if cost < np.inf and (w.jobs[j].size < 0 or _is_good(w, t, p, j, loss, wait_s)):
            root = 1.0 if w.rule.alike else float(np.sqrt(np.float32(key) / first))
            score = quantise(root * cost)
            if score < least:
                least, chosen = score, place
                anchor, way, gpu = partition.anchor, partition.way, partition.gpu
        if seen == w.rule.window:
            break
    partition.anchor, partition.way, partition.gpu = anchor, way, gpu
    return chosen


@special
@compiled
def take_candidate(w: World, t: Tables, p: int, j: int) -> int:
    """Write a job's placement, as the partition has it, into `Scratch.place`; how many groups it has."""
    partition = t.partitions[p]
    if partition.gpu < 0:
        return fill_around(w, t, p, j, partition.anchor, partition.way)
    t.scratch.place[0].group, t.scratch.place[0].workers = partition.anchor, 1
    return 1


@compiled
def _prepare(w: World, t: Tables, p: int) -> float:
    """What is the same for all candidates; seconds until something can change."""
    wait_s = max(estimate_ends(w, t, p), w.interval_s)
    believe_rates(w, t, p)
    if w.rule.lifetimes:
        estimate_exits(w, t, p)
    return wait_s


@compiled
def _appraise_visible(w: World, t: Tables, p: int, j: int) -> tuple[float, float]:
    """Cost and `loss` of a job's best candidate, which the partition notes."""
    if w.masks:
        hide_others(w, t, p, j)
    cost, loss = find_best_candidate(w, t, p, j)
    if w.masks:
        show_others(t, p)
    return cost, loss


@compiled
def _is_good(w: World, t: Tables, p: int, j: int, loss: float, wait_s: float) -> bool:
    """Whether a candidate is good enough."""
    stake = (loss - 1.0) * w.jobs[j].estimate_s / wait_s
    if t.partitions[p].running == 0 or quantise(loss) <= quantise(w.rule.threshold):
        return True
    return quantise(stake) <= quantise(w.rule.patience)


@compiled
def _goes_to_faster(w: World, t: Tables, p: int, j: int, place: int) -> bool:
    """Whether a job that may start goes to faster GPUs in another partition."""
    if not (w.rule.ahead and w.rule.faster):
        return False
    there = find_faster_partition(w, t, p, j, place)
    estimate_ends(w, t, p)  # others have been asked when they end
    return there >= 0


@compiled
def _takes_place(w: World, t: Tables, p: int, j: int, wait_s: float) -> bool:
    """Whether a job takes its best candidate now, which the partition notes."""
    if not w.rule.ahead or w.jobs[j].size < 0:
        _, loss = _appraise_visible(w, t, p, j)
        return _is_good(w, t, p, j, loss, wait_s)
    tier = 0
    if w.masks:
        tier = find_tier(w, t, p, j)
        hide_others(w, t, p, j)
    _, eff = find_best_candidate(w, t, p, j)
    t.partitions[p].base = t.partitions[p].least
    takes = t.partitions[p].running == 0 or not _had_better_wait(w, t, p, j, eff, tier)
    t.partitions[p].base = 0.0
    if w.masks:
        show_others(t, p)
    return takes


@compiled
def _had_better_wait(w: World, t: Tables, p: int, j: int, eff: float, tier: int) -> bool:
    """Whether a job would be done sooner on a place that it can have once some running jobs have ended."""
    partition, service, waits = t.partitions[p], t.service[j], False
    anchor, way, gpu = partition.anchor, partition.way, partition.gpu
    if service.reach == 0.0 or w.masks:
        _keep(w, t, p)
        _empty(w, t, p, j, tier)
        _, service.reach = find_best_candidate(w, t, p, j)
        _restore(w, t, p)
    if quantise(service.reach) < quantise(eff):
        estimate_ends(w, t, p)  # others who asked may have left out some
        _keep(w, t, p)
        waits = _pays_to_wait(w, t, p, j, eff, tier)
        _restore(w, t, p)
    partition.anchor, partition.way, partition.gpu = anchor, way, gpu
    return waits


@compiled
def _pays_to_wait(w: World, t: Tables, p: int, j: int, eff: float, tier: int) -> bool:
    """Whether a job is done sooner if it waits for some running jobs to end; `eff`: its `loss` if it does not wait."""
    estimate_s, reach, after_s = max(w.jobs[j].estimate_s, 1e-9), t.service[j].reach, 0.0
    waited_s = (t.numbers[BOUNDARY] - w.jobs[j].arrival) * w.interval_s / t.partitions[p].queued
    if w.asks:
        _copy_free(t, p)
    while True:
        end_s = np.inf
        for i in range(t.partitions[p].running):
            if t.scratch.end_s[i] > after_s and w.jobs[t.running[p, i].job].size > 0:
                end_s = min(end_s, t.scratch.end_s[i])
        waits = (waited_s + max(end_s, w.interval_s)) / estimate_s
        if quantise(waits + reach) >= quantise(eff):
            return False
        _let_end(w, t, p, after_s, end_s, j, tier)
        after_s = end_s
        _, then = find_best_candidate(w, t, p, j)
        if quantise(waits + then) < quantise(eff):
            return True


@compiled
def _copy_free(t: Tables, p: int) -> None:
    """Fill `without` and `spare` of `Scratch` with what is free of a partition, hidden or not."""
    for a in range(t.free.shape[1]):
        t.scratch.without[a] = t.free[p, a] + t.scratch.hidden[a]
    for s in range(len(t.scratch.spare)):
        t.scratch.spare[s, 0], t.scratch.spare[s, 1] = t.spare[p, s, 0], t.spare[p, s, 1]


@inlined
def _find_wire(w: World, t: Tables, p: int, i: int) -> int:
    """Of the wires that a partition's jobs may use: QPI and NICs of its servers, then its links."""
    own = 2 * w.site.servers.shape[1]
    return p * own + i if i < own else 2 * w.site.servers.size + w.site.link_id[p, i - own]


@compiled
def _keep(w: World, t: Tables, p: int) -> None:
    """Note what looking ahead changes."""
    for a in range(t.free.shape[1]):
        on, kept = t.on_group[p, a], t.kept.groups[a]
        kept.users, kept.cpu, kept.pcie = on.users, on.cpu, on.pcie
        t.kept.free[a] = t.free[p, a]
    for i in range(len(t.kept.wires)):
        wired, kept_wire = t.on_wire[_find_wire(w, t, p, i)], t.kept.wires[i]
        kept_wire.users, kept_wire.use = wired.users, wired.use
    for i in range(t.partitions[p].running):
        t.kept.left_s[i], t.kept.rate[i] = t.scratch.left_s[i], t.shared.rate[i]
    for s in range(len(t.scratch.exit_s)):
        t.kept.exit_s[s] = t.scratch.exit_s[s]


@compiled
def _restore(w: World, t: Tables, p: int) -> None:
    """Make it the present again."""
    for a in range(t.free.shape[1]):
        on, kept = t.on_group[p, a], t.kept.groups[a]
        on.users, on.cpu, on.pcie = kept.users, kept.cpu, kept.pcie
        t.free[p, a] = t.kept.free[a]
    for i in range(len(t.kept.wires)):
        wired, kept_wire = t.on_wire[_find_wire(w, t, p, i)], t.kept.wires[i]
        wired.users, wired.use = kept_wire.users, kept_wire.use
    for i in range(t.partitions[p].running):
        t.scratch.left_s[i], t.shared.rate[i] = t.kept.left_s[i], t.kept.rate[i]
    for s in range(len(t.scratch.exit_s)):
        t.scratch.exit_s[s] = t.kept.exit_s[s]


@compiled
def _empty(w: World, t: Tables, p: int, j: int, tier: int) -> None:
    """As if nothing ran anywhere, and all servers were there."""
    for a in range(t.free.shape[1]):
        on = t.on_group[p, a]
        on.users, on.cpu, on.pcie = 0, 0.0, 0.0
        t.free[p, a] = w.site.groups[p, a].gpus if is_at_tier(w, p, a, j, tier) else 0
    if w.asks:
        see_gpus(w, t, p, j, tier, w.site.group_gpus[p], w.site.reservable[p])
    for i in range(len(t.kept.wires)):
        wired = t.on_wire[_find_wire(w, t, p, i)]
        wired.users, wired.use = 0, 0.0
    t.scratch.left_s[:] = 0.0
    t.scratch.exit_s[:] = 0.0


@compiled
def _let_end(w: World, t: Tables, p: int, after_s: float, until_s: float, j: int, tier: int) -> None:
    """As it will be once the jobs with whole GPUs that end after one time, and up to another, are gone."""
    for i in range(t.partitions[p].running):
        job = w.jobs[t.running[p, i].job]
        if job.size > 0 and after_s < t.scratch.end_s[i] <= until_s:
            _take_away(w, t, p, i, j, tier)
    if w.asks:
        see_gpus(w, t, p, j, tier, t.scratch.without, t.scratch.spare)
    for i in range(t.partitions[p].running):
        run = t.running[p, i]
        left = 1.0 - until_s / t.scratch.end_s[i] if t.scratch.end_s[i] > until_s else 0.0
        t.scratch.left_s[i] = left * t.kept.left_s[i]
        if left > 0.0 and is_affected(t, p, run.slot):
            t.shared.rate[i] = compute_slowdown(w, t, p, run.slot, run.job, t.shared.believed)
    for s in range(len(t.scratch.exit_s)):
        t.scratch.exit_s[s] = max(t.kept.exit_s[s] - until_s, 0.0)
    mark_none(t, p)


@compiled
def _take_away(w: World, t: Tables, p: int, i: int, j: int, tier: int) -> None:
    """A running job with whole GPUs is gone, for as long as it is looked ahead for job `j`, which sees that tier."""
    slot, wide = t.running[p, i].slot, w.jobs[t.running[p, i].job].wide
    for g in range(t.slots[p, slot].groups):
        group = t.groups[p, slot, g]
        if is_at_tier(w, p, group.group, j, tier):
            t.free[p, group.group] += group.workers * wide
        if w.asks:
            t.scratch.without[group.group] += group.workers * wide
            reserve(w, t.scratch.spare, group.group, t.running[p, i].job, -group.workers)
        on = t.on_group[p, group.group]
        on.users -= 1
        on.cpu, on.pcie = (on.cpu - group.cpu, on.pcie - group.pcie) if on.users > 0 else (0.0, 0.0)
        mark_affected(t, p, p * t.free.shape[1] + group.group)
    for m in range(t.slots[p, slot].wires):
        wire = t.wires[p, slot, m]
        wired = t.on_wire[wire.wire]
        wired.users -= 1
        wired.use = wired.use - wire.use if wired.users > 0 else 0.0
        mark_affected(t, p, wire.row)
