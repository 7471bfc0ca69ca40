"""What the ranks of a plan send over the wires of a placement (docs/semantics.md, section 3, "Plans")."""

from jaxsched.event_loop._kernel.jit import compiled
from jaxsched.event_loop._kernel.records import Tables, World
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
