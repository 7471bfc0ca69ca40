"""What the ranks of a plan send over the wires of a placement, and racks over links (docs/semantics.md, section 3).

Gradients may be summed up in domains before these exchange them.
"""

from typing import Any

from jaxsched.event_loop._kernel.jit import compiled, special
from jaxsched.event_loop._kernel.records import Records, Tables, World
from jaxsched.workload.patterns import EXCHANGE, EXPERT_GRADIENTS, GRADIENTS, NEIGHBOURS, PATTERNS

KINDS = len(PATTERNS)
BOTH, ON, BACK = range(3)  # successors that are looked at: all, those further in the line, those back in it


@compiled
def is_planned(w: World, m: int) -> bool:
    """Whether a model has a plan."""
    return len(w.plans.gpus) > 0 and w.plans.gpus[m] > 0


@compiled
def line_up(w: World, t: Tables, p: int, j: int, used: int) -> None:
    """Fill `Scratch.first` with the first rank of each of the first `used` places, in order of rack, server, group.

    And `first` of their racks.
    """
    k = w.site.groups.shape[1] // w.site.servers.shape[1]
    rank, lined, rack, entered = 0, 0, -1, -1
    while lined < used:
        # All places of one rack, the next one; while racks ascend with the places, one turn is enough.
        ahead = -1
        for i in range(used):
            here = w.site.servers[p, t.scratch.place[i].group // k].rack
            if here > rack and (ahead < 0 or here < ahead):
                ahead = here
        rack = ahead
        for i in range(used):
            here = w.site.servers[p, t.scratch.place[i].group // k].rack
            if here > rack and i == lined:
                rack = here
            if here == rack:
                t.scratch.first[i] = rank
                if here != entered:
                    t.scratch.racks[here].first, entered = rank, here
                rank += t.scratch.place[i].workers * w.jobs[j].wide
                lined += 1


@compiled
def _tail(end: int, span: int, head: int) -> int:
    """How many `i` of `0 .. end - 1` have `i mod span >= head`."""
    return end // span * (span - head) + max(end % span - head, 0)


@compiled
def _count(stride: int, size: int, way: int, x: int, y: int, u: int, v: int) -> int:
    """Ranks `x .. y - 1` whose successor is one of `u .. v - 1`."""
    span, count = stride * size, 0
    head = span - stride
    if way != BACK:
        first, last = max(x, u - stride), min(y, v - stride)
        if last > first:
            count += last - first - (_tail(last, span, head) - _tail(first, span, head))
    if way != ON:
        first, last = max(x, u + head), min(y, v + head)
        if last > first:
            count += _tail(last, span, head) - _tail(first, span, head)
    return count


@compiled
def _count_exchange(stride: int, size: int, x: int, y: int, u: int, v: int) -> int:
    """Pairs of different ranks, of `x .. y - 1` and of `u .. v - 1`, of one communicator, block by block of these."""
    span, count = stride * size, min(max(x, u) - min(y, v), 0)  # without those of a rank and itself
    for start in range(max(x, u) // span * span, min(y, v), span):
        at, to = max(x, start), max(u, start)
        many, more = min(y, start + span) - at, min(v, start + span) - to
        count += _count_alike(stride, at - start, many, to - start, more)
    return count


@compiled
def _count_alike(stride: int, at: int, many: int, to: int, more: int) -> int:
    """Pairs `at <= i < at + many`, `to <= k < to + more` whose remainders modulo `stride` are the same."""
    if stride == 1:
        return many * more
    turns, others = many // stride, more // stride
    many, more, at, to = many - turns * stride, more - others * stride, at % stride, to % stride
    count = stride * turns * others + turns * more + others * many
    for turn in range(-stride, stride + 1, stride):
        count += max(min(at + many, to + more + turn) - max(at, to + turn), 0)
    return count


@compiled
def _count_kind(w: World, m: int, kind: int, x: int, y: int, u: int, v: int) -> int:
    """How often ranks of one interval send to such of another, by one pattern."""
    stride, size = w.plans.stride[m, kind], w.plans.size[m, kind]
    if kind == NEIGHBOURS:
        return _count(stride, size, ON, x, y, u, v) + _count(stride, size, ON, u, v, x, y)
    if kind == EXCHANGE:
        return _count_exchange(stride, size, x, y, u, v)
    return _count(stride, size, BOTH, x, y, u, v)


@compiled
def _count_sent(w: World, m: int, kind: int, x: int, y: int) -> int:
    """How often ranks of an interval send, to whomever: all have the same number of others, but for neighbours."""
    if kind == NEIGHBOURS:
        return _count_kind(w, m, kind, x, y, 0, w.plans.gpus[m])
    return (y - x) * (w.plans.size[m, kind] - 1 if kind == EXCHANGE else 1)


@compiled
def count_bytes_between(w: World, m: int, x: int, y: int, u: int, v: int) -> float:
    """Bytes from one interval to another."""
    total = 0.0
    for kind in range(KINDS):
        if w.plans.nbytes[m, kind] > 0.0:
            total += w.plans.nbytes[m, kind] * _count_kind(w, m, kind, x, y, u, v)
    return total


@compiled
def count_bytes_out(w: World, m: int, x: int, y: int, first: int, last: int) -> tuple[float, float]:
    """Bytes from an interval `x, y` to all ranks outside `first, last`, which holds it.

    And with those of the rings of gradients that are in it, which a GPU group sends, too.
    """
    total, of_group = 0.0, 0.0
    for kind in range(KINDS):
        if w.plans.nbytes[m, kind] > 0.0:
            count = _count_sent(w, m, kind, x, y) - _count_kind(w, m, kind, x, y, first, last)
            total += w.plans.nbytes[m, kind] * count
            if kind in (GRADIENTS, EXPERT_GRADIENTS):
                count += _count(w.plans.stride[m, kind], w.plans.size[m, kind], BACK, x, y, x, y)
            of_group += w.plans.nbytes[m, kind] * count
    return total, of_group


@compiled
def count_bytes_near(w: World, m: int, x: int, y: int, first: int, last: int) -> float:
    """Bytes from an interval `x, y` to the other ranks of `first, last`, which holds it."""
    return count_bytes_between(w, m, x, y, first, x) + count_bytes_between(w, m, x, y, y, last)


@compiled
def find_end(w: World, t: Tables, j: int, i: int) -> int:
    """The rank behind the last one of a place."""
    return t.scratch.first[i] + t.scratch.place[i].workers * w.jobs[j].wide


@compiled
def count_bytes_inside(w: World, t: Tables, j: int, first: int, last: int) -> float:
    """Bytes over QPI of the server of the places `first` to `last`: over the busiest border between two groups."""
    most, m = 0.0, w.jobs[j].model
    start, end = t.scratch.first[first], find_end(w, t, j, last)
    for i in range(first + 1, last + 1):
        border = t.scratch.first[i]
        sent = count_bytes_between(w, m, start, border, border, end)
        sent += t.scratch.shares[i].border if w.plans.summed[m, 0] > 0.0 else 0.0
        most = max(most, sent)
    return most


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


@compiled
def send(w: World, t: Tables, p: int, source: int, target: int, sent: float, crossed: int) -> int:
    """Bytes from rack to rack, over the links of the route; how many links something crosses then."""
    for h in range(w.site.path.shape[3] if sent > 0.0 else 0):
        share = w.site.path_share[p, source, target, h]
        if share == 0.0:
            break
        e = w.site.path[p, source, target, h]
        if t.scratch.sent[e] == 0.0:
            t.scratch.crossed[crossed] = e
            crossed += 1
        t.scratch.sent[e] += sent * share
    return crossed


@special
@compiled
def send_by_plan(w: World, t: Tables, p: int, j: int, used: int) -> int:
    """Bytes of a plan's ranks on the first `used` places, over the links; how many links something crosses then."""
    racks, wide, crossed, m, count = t.scratch.racks, w.jobs[j].wide, 0, w.jobs[j].model, 0
    for r in range(len(racks)):
        if racks[r].workers > 0.0:
            racks[count].used, count = r, count + 1
    for i in range(count):
        r = racks[i].used
        start = int(racks[r].first)
        end = start + int(racks[r].workers) * wide
        for o in range(count):
            q = racks[o].used
            if q != r:
                there = int(racks[q].first)
                sent = count_bytes_between(w, m, start, end, there, there + int(racks[q].workers) * wide)
                crossed = send(w, t, p, r, q, sent, crossed)
    if sums_first(w, m):
        domains = list_domains(w, t, p, j, used)
        for kind in range(GRADIENTS, EXPERT_GRADIENTS + 1):
            summed = w.plans.summed[m, kind - GRADIENTS]
            for which in range(w.plans.gpus[m] // w.plans.size[m, kind] if summed > 0.0 else 0):
                held = hold(w, m, kind, find_first(w, m, kind, which), t.scratch.domains, domains)
                crossed = _exchange_over_links(w, t, p, held, summed, int(w.plans.tree[m]), crossed)
    return crossed


@compiled
def _exchange_over_links(w: World, t: Tables, p: int, held: int, summed: float, tree: int, crossed: int) -> int:
    """What domains that hold members of a communicator send each other, over the links, as `send_by_plan`."""
    domains = t.scratch.domains
    if tree == 0:
        for i in range(held if held > 1 else 0):
            source, target = domains[domains[i].at].rack, domains[domains[(i + 1) % held].at].rack
            if source != target:
                crossed = send(w, t, p, source, target, 2.0 * (held - 1) / held * summed, crossed)
        return crossed
    for i in range(1, held):
        for turn in range(2):
            source = domains[domains[(i + turn) % held].at].rack
            target = domains[domains[(find_parent(i, held) + turn) % held].at].rack
            if source != target:
                crossed = send(w, t, p, source, target, 0.5 * summed, crossed)
                crossed = send(w, t, p, target, source, 0.5 * summed, crossed)
    return crossed
