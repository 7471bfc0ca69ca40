"""What racks send each other over links (docs/semantics.md, section 3)."""

from jaxsched.event_loop._kernel.jit import compiled, special
from jaxsched.event_loop._kernel.plans.all_reduce import find_first, find_parent, hold, list_domains, sums_first
from jaxsched.event_loop._kernel.plans.counts import count_bytes_between
from jaxsched.event_loop._kernel.records import Tables, World
from jaxsched.workload.patterns import EXPERT_GRADIENTS, GRADIENTS


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
                crossed = _exchange(w, t, p, held, summed, int(w.plans.tree[m]), crossed)
    return crossed


@compiled
def _exchange(w: World, t: Tables, p: int, held: int, summed: float, tree: int, crossed: int) -> int:
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
