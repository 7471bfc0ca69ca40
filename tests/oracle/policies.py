"""The policies of section 7 of `docs/semantics.md` for the oracle, in plain Python from that page alone.

All but `random`, whose draws no independent implementation could share.
"""

import functools
import math
from collections.abc import Sequence

import numpy as np

from jaxsched.semantics import GRID
from tests.oracle import preemption, seeking
from tests.oracle.candidates import greedy_wait
from tests.oracle.cluster import Job
from tests.oracle.failures import room
from tests.oracle.faster import before_start, while_running
from tests.oracle.filling import Pressure, fill, ps_of, q
from tests.oracle.gpu_types import seen, tiers, waits_for_faster
from tests.oracle.matching import match
from tests.oracle.racks import in_fewest, seen_servers
from tests.oracle.state import State

RULES = ("first-fit", "pack", "load-balance", "tetris", "least-interference", "contention-aware")
NAMES = (*RULES, "greedy-wait", "match")
ORDERS = ("fifo", "sjf", "area", "tenants", *preemption.ORDERS)
MATCHED = ("sjf", "area")  # orders of `match`
FORWARDS = ("stay", "forward", "spread")


def make_policy(
    name: str,
    order: str = "fifo",
    backfill: bool = False,
    forward: str = "stay",
    threshold: float = 1.0,
    window: int = 4,
    patience: float | None = 1.0,
    lifetime: bool = False,
    reserve: bool = False,
    preempt: bool = False,
    consolidate: bool = False,
    racks: bool = False,
    hysteresis: float = 0.0,
    attained: float = 18000.0,
    faster: bool = False,
    table: list[list[int]] | None = None,
    table_margin: int = 0,
    observe: bool = False,
    seek: Sequence[float] | None = None,
    held=lambda state, j: False,
):
    """The function `policy(state, p)` of that name. A search holds back the jobs for which `held(state, j)`."""
    if name not in NAMES or order not in (*ORDERS, preemption.TABLE) or forward not in FORWARDS:
        raise ValueError((name, order, forward))
    if name == "match" and not preempt and order not in MATCHED:
        raise ValueError((name, order))
    if seek is not None and (preempt or not backfill or forward != "spread"):
        raise ValueError((preempt, backfill, forward))

    ahead = name == "greedy-wait" and patience is None and not preempt
    levels = preemption.Rule(order, backfill, hysteresis, attained, table, table_margin)

    def policy(state: State, p: int) -> tuple:
        state.consolidate, state.racks = consolidate, in_fewest if racks else None
        queues = [sorted(q, key=lambda j: (order_key(state, order, j, levels), j)) for q in state.queue]
        kept = [kept_for(state, t, queues[t]) if reserve else None for t in range(state.hw.P)]

        queue, now = queues[p], functools.cache(state.slowdowns)

        def may_start(t: int, j: int) -> bool:
            gang = kept[t]
            if (
                held(state, j)
                or not state.feasible(t, j)
                or not (gang is None or may_pass(state, order, t, j, *gang, levels=levels, ahead=ahead))
            ):
                return False
            return len(tiers(state, j)) == 1 or not waits_for_faster(state, t, j, queue.index(j) + 1, now)

        def goes(j: int) -> bool:
            return ahead and faster and before_start(state, p, j, forward, may_start, ahead) is not None

        seeks = None
        if seek is not None:
            seeks = seeking.View(seek, may_start, lambda i: (order_key(state, order, i, levels), i), now)
        allowed = queue if backfill else queue[:1]
        ready = [j for j in allowed if may_start(p, j)]
        if name == "greedy-wait":
            limits = (1, 1e9, 1e9) if preempt else (window, threshold, patience)
            chosen = greedy_wait(state, p, ready[: limits[0]], *limits[1:], lifetime, observe, goes)
        elif name == "match":
            keys = {j: order_key(state, order, j, levels) for j in ready}
            chosen = match(state, p, ready, keys, threshold, patience, lifetime, observe, preempt)
        else:
            chosen = (ready[0], place(state, p, ready[0], name)) if ready else None
        if chosen is not None:
            j, w, *gpu = chosen
            target = None if seeks is None else seeking.before_start(state, seeks, p, j)
            if target is None and faster:
                target = before_start(state, p, j, forward, may_start, ahead)
            if target is not None:
                return "forward", j, target
            gang = kept[p]
            if ahead and gang is not None:
                charge(state, p, order, j, *gang, levels=levels)
            return "place", j, w, ps_of(state.jobs[j], w), *gpu
        action = forward_action(state, p, queue, forward, may_start)
        if seeks is not None and action == ("wait",) and seeking.news(state):
            found = seeking.while_waiting(state, seeks, p, queue)
            action = action if found is None else ("forward", *found)
        if preempt and action == ("wait",):
            stopped = preemption.displaced(state, p, queue, levels)
            if faster and not stopped:
                stopped = while_running(state, p, forward)
            return ("stop", stopped) if stopped else action
        return action

    return policy


# -------------------------------------------------------------------------------------------------- order and forward


def order_key(state: State, order: str, j: int, levels: preemption.Rule | None = None) -> float:
    """Lower is earlier; ties by submit order are the caller's."""
    job = state.jobs[j]
    if order in (*preemption.ORDERS, preemption.TABLE):
        assert levels is not None
        return preemption.level(state, levels, j)
    if order == "fifo":
        return 0.0
    if order == "sjf":
        return float(np.float32(state.estimate_s(j)))
    if order == "area":
        return float(np.float32(job.W * job.g) * share(job) * np.float32(state.estimate_s(j)))
    received = sum(reserved(i) * n * state.interval_s for i, n in zip(state.jobs, state.ran) if i.tenant == job.tenant)
    for r in (r for runs in state.running for r in runs):
        if state.jobs[r.job].tenant == job.tenant:
            received += reserved(state.jobs[r.job]) * (state.now - r.start_s)
    for r, finish in state.finished:
        if state.jobs[r.job].tenant == job.tenant:
            received += reserved(state.jobs[r.job]) * (finish - r.start_s)
    return float(np.float32(received))


def share(job: Job) -> np.float32:
    """The fraction of a GPU that a job wants, 1 for whole ones."""
    return np.float32(job.milli) * np.float32(0.001)


def reserved(job: Job) -> float:
    """GPUs that a job holds."""
    return float(job.W * job.g * share(job))


def kept_for(state: State, p: int, queue: list[int]) -> tuple[int, float, int] | None:
    """The first gang that is blocked here, seconds until it could start, GPUs that are spare then."""
    j = next((j for j in queue if state.jobs[j].W * state.jobs[j].g > 1 and not state.feasible(p, j)), None)
    if j is None:
        return None
    need, free, ends = state.jobs[j].W * state.jobs[j].g, state.free_for(p, j), whole_ends(state, p, j)
    wait = wait_for(state, p, j, need)
    if wait == math.inf:
        return None
    return j, wait, free + sum(gpus for end, gpus in ends if q(end / wait) <= GRID) - need


def whole_ends(state: State, p: int, j: int) -> list[tuple[float, int]]:
    """When the jobs with whole GPUs that a job may use end in a partition, and how many these are."""
    now = state.slowdowns()
    whole = [r for r in state.running[p] if not state.jobs[r.job].fraction and state.held_for(r, j) > 0]
    return sorted((state.estimated_left_s(r) * now[r.job], state.held_for(r, j)) for r in whole)


def wait_for(state: State, p: int, j: int, need: int) -> float:
    """Seconds to the first of these ends by which so many GPUs are free that a job may use, `inf` if there is none."""
    free, ends = state.free_for(p, j), whole_ends(state, p, j)
    enough = (end for end, _ in ends if free + sum(gpus for other, gpus in ends if other <= end) >= need)
    return next(enough, math.inf)


def may_pass(
    state: State,
    order: str,
    p: int,
    j: int,
    gang: int,
    wait: float,
    spare: int,
    levels: preemption.Rule | None = None,
    ahead: bool = False,
) -> bool:
    """Whether the job may start in a partition although GPUs are kept there for a gang.

    Who looks `ahead` keeps them where that is worth it.
    """
    if share_no_gpu(state, p, j, gang):
        return True
    if (order_key(state, order, j, levels), j) < (order_key(state, order, gang, levels), gang):
        return True
    smaller = order_key(state, "area", j) <= order_key(state, "area", gang)
    if smaller or leaves_enough(state, j, wait, spare):
        return True
    if not ahead:
        return False
    both = wait_for_both(state, p, gang, j)
    held = min(both, wait + state.estimate_s(gang))
    return q((state.owed_s.get(gang, 0.0) + min(both, state.estimate_s(j)) - wait) / held) <= GRID


def share_no_gpu(state: State, p: int, j: int, other: int) -> bool:
    """Whether there is no GPU in a partition that both jobs may use."""
    return not (state.hw.usable(p, state.jobs[j]) & state.hw.usable(p, state.jobs[other])).any()


def leaves_enough(state: State, j: int, wait: float, spare: int) -> bool:
    """Whether a job is done when the gang can start, or leaves it its GPUs."""
    return q(state.estimate_s(j) / wait) <= GRID or state.jobs[j].W * state.jobs[j].g <= spare


def wait_for_both(state: State, p: int, gang: int, j: int) -> float:
    """Seconds until a partition has GPUs for a gang and another job, `inf` if it never has."""
    return wait_for(state, p, gang, sum(state.jobs[i].W * state.jobs[i].g for i in (gang, j)))


def charge(state: State, p: int, order: str, j: int, gang: int, wait: float, spare: int, levels=None) -> None:
    """A job starts that passes the gang, which may start later for it."""
    before = (order_key(state, order, j, levels), j) < (order_key(state, order, gang, levels), gang)
    if not (before or leaves_enough(state, j, wait, spare) or share_no_gpu(state, p, j, gang)):
        later = min(wait_for_both(state, p, gang, j), state.estimate_s(j)) - wait
        state.owed_after_round.append((gang, max(later, 0.0)))


def forward_action(state: State, p: int, queue: list[int], rule: str, may_start):
    """`forward`: the first job of the order that is not feasible here and has forwards left, to an idle scheduler.

    `spread`: the first such job that is feasible somewhere else, to any scheduler whose queue has a free slot.
    """
    for j in queue:
        if rule == "stay" or may_start(p, j) or state.forwards[j] >= state.max_forwards:
            continue
        targets = [t for t in range(state.hw.P) if t != p and may_start(t, j)]
        if rule == "forward":
            targets = [t for t in targets if not state.queue[t] and room(state, t) > 0]
        else:
            targets = [t for t in targets if room(state, t) > 0]
        if targets:
            return "forward", j, min(targets, key=lambda t: (-int(state.free(t).sum()), t))
        if rule == "forward":
            return ("wait",)  # "the first job ... goes to": a later one does not take its turn
    return ("wait",)


def one_by_one(cap: list[int], need: int, key) -> dict[int, int]:
    """Each worker goes to the group with the lowest `key(a, w)` (ties: lowest a) among those with capacity left."""
    w: dict[int, int] = {}
    for _ in range(need):
        a = min((a for a in range(len(cap)) if cap[a] - w.get(a, 0) > 0), key=lambda a: (key(a, w), a))
        w[a] = w.get(a, 0) + 1
    return w


def place(state: State, p: int, j: int, name: str) -> dict[int, int]:
    """The workers of a feasible job by one of the rules of the table."""
    hw, job = state.hw, state.jobs[j]
    free, cap = seen(state, p, j)
    if state.racks and not job.fraction:
        shown = seen_servers(state, p, j, free, cap)
        free = [x if a // hw.K in shown else 0 for a, x in enumerate(free)]
        cap = [x if a // hw.K in shown else 0 for a, x in enumerate(cap)]
    pressure = Pressure(state, p)
    groups = range(hw.N * hw.K)

    if name == "first-fit":
        return fill(groups, cap, job.W)
    if name == "least-interference":
        return fill(sorted(groups, key=lambda a: (q(pressure.group(a)), a)), cap, job.W)
    if name in ("pack", "contention-aware"):
        return in_container(state, p, job, free, cap, pressure, name)

    def load_balance(a: int, w: dict[int, int]):
        server = hw.groups_of(a // hw.K)
        total = sum(int(hw.gpus[p, c]) for c in server)
        left = sum(free[c] - w.get(c, 0) * job.g for c in server)
        return q((total - left) / total), -(free[a] - w.get(a, 0) * job.g)

    def tetris(a: int, w: dict[int, int]):
        s, gpus = a // hw.K, int(hw.gpus[p, a])
        left = free[a] - w.get(a, 0) * job.g

        def f(channel: str, index: int) -> float:
            return min(max(1 - pressure.of(channel, index), 0.0), 1.0)

        b = job.B if job.U > 0 else job.ring_bytes
        score = (job.g * float(share(job)) / gpus) * (left / gpus)
        score += job.g * job.cpu_cores / hw.cores[p, a] * f("cpu", a)
        score += job.g * job.input_bytes / (hw.pcie[p, a] * job.compute_s) * f("pcie", a)
        score += min(1.0, b / (hw.nic[p, s] * job.compute_s)) * f("nic", s)
        return -q(score)

    return one_by_one(cap, job.W, {"load-balance": load_balance, "tetris": tetris}[name])


def in_container(state, p, job, free, cap, pressure, name) -> dict[int, int]:
    """`pack` and `contention-aware`: choose the container, then fill it server by server."""
    hw = state.hw
    server_groups = [list(hw.groups_of(s)) for s in range(hw.N)]
    cap_s = [sum(cap[a] for a in server_groups[s]) for s in range(hw.N)]
    racks = {int(r): [s for s in range(hw.N) if hw.rack[p, s] == r] for r in sorted(set(hw.rack[p]))}

    def gpus_of(servers) -> int:
        return sum(free[a] for s in servers for a in server_groups[s])

    # In each tier: index -> (key of the container, its servers or its group), those that hold the gang.
    group = [a for a in range(len(cap)) if cap[a] >= job.W]
    server = [s for s in range(hw.N) if cap_s[s] >= job.W]
    rack = [r for r in racks if sum(cap_s[s] for s in racks[r]) >= job.W]
    pack = name == "pack"
    if group:
        a = min(group, key=lambda a: (free[a] if pack else q(pressure.group(a)), a))
        return fill([a], cap, job.W)
    if server:
        s = min(server, key=lambda s: (gpus_of([s]) if pack else q(pressure.server(s)), s))
        return fill(server_groups[s], cap, job.W)
    servers = list(range(hw.N))
    if rack:
        r = min(rack, key=lambda r: (gpus_of(racks[r]) if pack else q(sum(pressure.of("nic", s) for s in racks[r])), r))
        servers = racks[r]
    servers = sorted(servers, key=lambda s: (-cap_s[s] if pack else q(pressure.of("nic", s)), s))
    return fill([a for s in servers for a in server_groups[s]], cap, job.W)
