"""Gradients that domains sum up before they exchange them (docs/semantics.md, section 3, "Plans")."""

from typing import Any

from jaxsched.event_loop._kernel.jit import compiled, special
from jaxsched.event_loop._kernel.plans.counts import find_end
from jaxsched.event_loop._kernel.records import Records, Tables, World
from jaxsched.workload.patterns import EXPERT_GRADIENTS, GRADIENTS


@compiled
def sums_first(w: World, m: int) -> bool:
    """Whether gradients of a model are no rings."""
    return w.plans.summed[m, 0] > 0.0


@compiled
def enter_domain(domains: Records, count: int, start: int, end: int, rack: int) -> int:
    """Enter the ranks of a domain, unless they are there, in the order of ranks; how many domains there are then."""
    at = count
    while at > 0 and domains[at - 1].start >= start:
        at -= 1
    if at < count and domains[at].start == start:
        return count
    for i in range(count, at, -1):
        here, before = domains[i], domains[i - 1]
        here.start, here.end, here.rack = before.start, before.end, before.rack
    domains[at].start, domains[at].end, domains[at].rack = start, end, rack
    return count + 1


@special
@compiled
def list_domains(w: World, t: Tables, p: int, j: int, used: int) -> int:
    """Fill `domains`, and the ranks of `shares`, by the first `used` places, which are lined up; how many domains."""
    k = w.site.groups.shape[1] // w.site.servers.shape[1]
    count, start, left, right = 0, 0, 0, 0
    for i in range(used):
        s = t.scratch.place[i].group // k
        site = w.site.servers[p, s]
        if i == 0 or t.scratch.place[i - 1].group // k != s:
            last = i
            while last + 1 < used and t.scratch.place[last + 1].group // k == s:
                last += 1
            left, right = t.scratch.first[i], find_end(w, t, j, last)
            start, end = left, right
            if site.block > 0 and used > 1:  # so `racks` are filled: a server of a domain is one place
                start = int(t.scratch.racks[site.rack].first)
                end = start + int(t.scratch.racks[site.rack].workers) * w.jobs[j].wide
            count = enter_domain(t.scratch.domains, count, start, end, site.rack)
        share = t.scratch.shares[i]
        share.start, share.end, share.domain = t.scratch.first[i], find_end(w, t, j, i), start
        share.left, share.right = left, right
    return count


@compiled
def _count_members(first: int, stride: int, size: int, start: int, end: int) -> int:
    """Ranks `start .. end - 1` of a communicator."""
    return min(max((end - first - 1) // stride + 1, 0), size) - min(max((start - first - 1) // stride + 1, 0), size)


@compiled
def find_first(w: World, m: int, kind: int, which: int) -> int:
    """The first rank of a pattern's communicator."""
    stride = w.plans.stride[m, kind]
    return which // stride * stride * w.plans.size[m, kind] + which % stride


@compiled
def hold(w: World, m: int, kind: int, first: int, domains: Records, count: int) -> int:
    """Count the members of a communicator in each domain; how many hold some, and `at` which each position is."""
    held = 0
    for d in range(count):
        domain = domains[d]
        domain.members = _count_members(first, w.plans.stride[m, kind], w.plans.size[m, kind], domain.start, domain.end)
        domain.out = 0.0
        if domain.members > 0:
            domains[held].at = d
            held += 1
    return held


@compiled
def find_parent(i: int, count: int) -> int:
    """Of a position above 0 in the first of the two trees."""
    lowest = i & -i
    odd = i - lowest if (i - lowest) & (2 * lowest) else i + lowest
    return odd if odd < count else i - lowest


@compiled
def _exchange(domains: Records, held: int, summed: float, tree: int) -> None:
    """Write what each domain that holds members sends to others."""
    if tree == 0:
        for i in range(held if held > 1 else 0):
            domains[domains[i].at].out = 2.0 * (held - 1) / held * summed
        return
    for i in range(1, held):
        for turn in range(2):
            domains[domains[(i + turn) % held].at].out += 0.5 * summed
            domains[domains[(find_parent(i, held) + turn) % held].at].out += 0.5 * summed


@compiled
def write_shares(w: World, m: int, domains: Records, count: int, shares: Records, used: int) -> None:
    """Write what the first `used` places send, of `count` domains, by rings in their domain and out of it."""
    for i in range(used):
        shares[i].ring = shares[i].border = shares[i].near = shares[i].out = 0.0
    for kind in range(GRADIENTS, EXPERT_GRADIENTS + 1):
        summed = w.plans.summed[m, kind - GRADIENTS]
        stride, size = w.plans.stride[m, kind], w.plans.size[m, kind]
        for which in range(w.plans.gpus[m] // size if summed > 0.0 else 0):
            first = find_first(w, m, kind, which)
            _exchange(domains, hold(w, m, kind, first, domains, count), summed, int(w.plans.tree[m]))
            d = 0
            for i in range(used):
                share = shares[i]
                if domains[d].start != share.domain:
                    d = 0
                    while domains[d].start != share.domain:
                        d += 1
                domain = domains[d]
                if domain.members > 0:
                    _add_share(share, domain, first, stride, size, summed)


@compiled
def _add_share(share: Any, domain: Any, first: int, stride: int, size: int, summed: float) -> None:
    """Add what a place sends for a communicator that its domain holds members of."""
    own = _count_members(first, stride, size, share.start, share.end)
    before = _count_members(first, stride, size, share.left, share.start)
    behind = _count_members(first, stride, size, share.start, share.right)
    ring = 2.0 * (domain.members - 1) / domain.members * summed
    share.out += domain.out * own / domain.members
    share.ring += ring if own > 0 else 0.0
    share.border += ring if before > 0 and behind > 0 else 0.0
    share.near += ring if 0 < before + behind < domain.members else 0.0
