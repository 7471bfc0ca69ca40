"""`greedy-wait` and `match`: which job takes which of its candidates (docs/semantics.md, section 7)."""

import numpy as np

from jaxsched.event_loop._kernel.candidates import believe_rates, estimate_exits, fill_around, find_best_candidate
from jaxsched.event_loop._kernel.estimates import estimate_ends
from jaxsched.event_loop._kernel.gpu_tiers import hide_others, show_others
from jaxsched.event_loop._kernel.jit import compiled, inlined
from jaxsched.event_loop._kernel.openings import may_start
from jaxsched.event_loop._kernel.queues import find_key
from jaxsched.event_loop._kernel.records import Tables, World
from jaxsched.event_loop._kernel.rules import NEVER
from jaxsched.event_loop._kernel.speed import quantise

_LOWEST_KEY = np.float32(1e-9)


@inlined
def accept(w: World, t: Tables, p: int) -> int:
    """`greedy-wait`: place in its queue of the first job that takes a placement, -1 if there is none.

    Slowdowns must be current. The partition has the placement: `take_candidate` makes it.
    """
    wait_s, seen = _prepare(w, t, p), 0
    for place in range(t.partitions[p].queued):
        j = t.queue[p, place]
        if not may_start(w, t, p, j, place):
            continue
        _, loss = _appraise_visible(w, t, p, j)
        if _is_good(w, t, p, j, loss, wait_s):
            return place
        seen += 1
        if seen == w.rule.window:
            break
    return -1


@compiled
def match(w: World, t: Tables, p: int) -> int:
    """`match`: place in its queue of the job with the pair of least cost, -1 if there is none; as `accept`."""
    partition, wait_s = t.partitions[p], _prepare(w, t, p)
    seen, lead, first, least, chosen = 0, 0.0, _LOWEST_KEY, NEVER, -1
    anchor, cap, gpu = 0, 0, -1
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
                anchor, cap, gpu = partition.anchor, partition.cap, partition.gpu
        if seen == w.rule.window:
            break
    partition.anchor, partition.cap, partition.gpu = anchor, cap, gpu
    return chosen


@compiled
def take_candidate(w: World, t: Tables, p: int, j: int) -> int:
    """Write a job's placement, as the partition has it, into `Scratch.place`; how many groups it has."""
    partition = t.partitions[p]
    if partition.gpu < 0:
        return fill_around(w, t, p, j, partition.anchor, partition.cap)
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
