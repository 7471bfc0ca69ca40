"""Candidate placements, what they cost, and `greedy-wait`, in the oracle (section 7 of `docs/semantics.md`)."""

import copy
import itertools
import math
from collections.abc import Callable

import numpy as np

from jaxsched.semantics import ANCHORS, CAPS
from tests.oracle.contention import demand, least_slowdown, slowdown
from tests.oracle.filling import Pressure, fill, ps_of, q
from tests.oracle.gpu_types import seen, tier_of
from tests.oracle.pairs import Factors
from tests.oracle.state import State


def candidates(state: State, p: int, j: int) -> list[dict[int, int] | None]:
    """The 8 anchors x 3 caps of a job, twice where racks are unevenly far apart; None is an invalid candidate."""
    hw, job = state.hw, state.jobs[j]
    _, cap = seen(state, p, j)
    cap_s = [sum(cap[a] for a in hw.groups_of(s)) for s in range(hw.N)]
    pressure = Pressure(state, p)
    by_pack = sorted(range(hw.N), key=lambda s: (cap_s[s] if cap_s[s] >= job.W else 100000 - cap_s[s], s))[:ANCHORS]
    others = [s for s in range(hw.N) if cap_s[s] > 0 and s not in by_pack]
    by_pressure = sorted(others, key=lambda s: (q(pressure.server(s)), s))[:ANCHORS]
    anchors: list[int | None] = []
    for chosen in (by_pack, by_pressure):
        valid = [s if cap_s[s] > 0 else None for s in chosen]
        anchors += valid + [None] * (ANCHORS - len(valid))

    far = [x for x in hw.route[p].sum(-1).flat if x > 0] or [0.0]
    ways = list(itertools.product((False, True) if max(far) > min(far) + 0.01 else (False,), (None, *CAPS[1:])))
    out: list[dict[int, int] | None] = []
    for anchor in anchors:
        for row, limit in ways:
            capped = [x if limit is None else min(x, limit) for x in cap]
            if anchor is None or sum(capped) < job.W or (limit is not None and limit >= job.W):
                out.append(None)
                continue
            capped_s = [sum(capped[a] for a in hw.groups_of(s)) for s in range(hw.N)]
            if row and capped_s[anchor] >= job.W:
                out.append(None)
                continue

            def key(a: int, anchor=anchor, capped_s=capped_s, row=row):
                s = a // hw.K
                if row:
                    return (s - anchor) % hw.N, a
                return s != anchor, hw.rack[p, s] != hw.rack[p, anchor], -capped_s[s], s, a

            out.append(fill(sorted(range(hw.N * hw.K), key=key), capped, job.W))
    return out


def effect(
    state: State,
    p: int,
    j: int,
    w: dict[int, int],
    gpu: int | None,
    before: dict,
    now: dict[int, float],
    believed: Factors | None,
    alike: bool = False,
) -> tuple[float, float, float]:
    """Of a candidate: the job's own slowdown, `eff`, that and what it costs the jobs that run here, and the least that
    its GPUs allow.

    `gpu` is the shared GPU of a fraction; `before` and `now` are the present total use and slowdowns, these too with
    the factors of pairs that are `believed`. `alike`: all jobs count the same, whatever is left of them.
    """
    hw, job = state.hw, state.jobs[j]
    new = demand(hw, p, job, w, ps_of(job, w))
    after = dict(before)
    for m, x in new.use.items():
        after[m] = after.get(m, 0.0) + x
    a = min(w)
    beside = state.beside(p, a, gpu)
    on_gpu = state.gpu_stretch(p, a, job.model, [state.jobs[r.job].model for r in beside], believed)
    own = eff = slowdown(hw, p, job, new, after, state.stretch, on_gpu)
    least = least_slowdown(hw, job, new)
    for r in state.running[p]:
        if r.demand.use.keys() & new.use.keys():  # else nothing changes for it
            more = (job.model,) if any(r is x for x in beside) else ()
            on_gpu = state.on_gpu(r, believed, more)
            slower = slowdown(hw, p, state.jobs[r.job], r.demand, after, state.stretch, on_gpu)
            weight = 1.0 if alike else state.estimated_left_s(r) / state.estimate_s(j)
            eff += weight * max(slower - now[r.job], 0.0)
    return own, eff, least


def later(state: State, p: int, j: int, w: dict[int, int], own: float, ends: dict[int, float]) -> float:
    """Seconds by which the servers of a candidate become wholly free later."""
    K, seconds = state.hw.K, 0.0
    for s in {a // K for a in w}:
        exit_s = max((ends[r.job] for r in state.running[p] if any(a // K == s for a in r.w)), default=0.0)
        seconds += max(own * state.estimate_s(j) - exit_s, 0.0)
    return seconds


def greedy_wait(
    state: State,
    p: int,
    jobs: list[int],
    threshold: float,
    patience: float | None,
    lifetime: bool,
    observe: bool,
    goes: Callable[[int], bool],
):
    """(job, workers) of the first job whose best candidate is good enough, or None; without patience it looks ahead.

    A job that `goes` to faster GPUs comes first, too.
    """
    look = Look(state, p, lifetime, observe, ahead=patience is None)
    for j in jobs:
        _, loss, (w, _), least = look.best(j, offered(state, p, j))
        if not state.running[p] or goes(j):
            return j, w
        if patience is None and not state.jobs[j].fraction:
            good = not had_better_wait(look, j, loss, least)
        else:
            good = look.is_good(j, loss, threshold, 1.0 if patience is None else patience)
        if good:
            return j, w
    return None


def offered(state: State, p: int, j: int) -> list[tuple[dict[int, int], int | None]]:
    """The valid candidates of a job, and the shared GPU that a fraction would get there."""
    return [(w, state.gpu_for(p, j, min(w))) for w in candidates(state, p, j) if w is not None]


def had_better_wait(look: "Look", j: int, eff: float, base: float) -> bool:
    """Whether some place that is free later is worth the wait ("Looking ahead" of section 7).

    `base`: the least slowdown that the GPUs of the job's place now allow.
    """
    state, p = look.state, look.p
    tier = tier_of(state, p, j)
    estimate_s = state.estimate_s(j)
    reach, least = look.eff_then(math.inf, j, tier, base), eff
    if q(reach) >= q(eff):
        return False
    waited_s = (state.boundary - state.arrival(j)) * state.interval_s / len(state.queue[p])
    ends = sorted({end_s for i, end_s in look.ends.items() if not state.jobs[i].fraction})
    for end_s in ends:
        waits = (waited_s + max(end_s, state.interval_s)) / estimate_s
        if q(waits + reach) >= q(least):
            break
        least = min(least, waits + look.eff_then(end_s, j, tier, base))
    return q(least) < q(eff)


class Look:
    """A partition at one moment, as who appraises placements sees it."""

    base = 0.0  # who looks ahead: least slowdown that the GPUs of the place at hand allow, 0: that place itself

    def __init__(self, state: State, p: int, lifetime: bool, observe: bool, alike: bool = False, ahead: bool = False):
        """What is the same for all candidates."""
        self.state, self.p, self.lifetime, self.alike = state, p, lifetime, alike
        self.believed = state.believed(observe)
        self.before, self.now = state.total_use(), state.slowdowns()
        self.as_believed = state.slowdowns_by(self.believed)
        self.observe, self.ahead = observe, ahead
        self.left_s = {r.job: state.estimated_left_s(r) for r in state.running[p]}
        self.ends = {i: left * self.now[i] for i, left in self.left_s.items()}  # seconds from now
        self.wait = max(state.interval_s, min(self.ends.values(), default=0.0))

    def best(self, j: int, places: list[tuple[dict[int, int], int | None]]):
        """(cost, loss, place, least slowdown that its GPUs allow) of the candidate of least cost.

        The loss is `eff` of who looks ahead, on GPUs such as it has now.
        """
        found = []
        for w, gpu in places:
            known = self.before, self.as_believed, self.believed, self.alike
            own, cost, least = effect(self.state, self.p, j, w, gpu, *known)
            whole_ahead = self.ahead and not self.state.jobs[j].fraction
            over = least / (self.base or least) if whole_ahead else least
            loss = own / over + (cost - own)
            if self.lifetime:
                cost += later(self.state, self.p, j, w, own, self.ends) / self.state.estimate_s(j)
            found.append((cost, loss, (w, gpu), least))
        return min(found, key=lambda one: q(one[0]))

    def eff_then(self, end_s: float, j: int, tier: float | None, base: float) -> float:
        """`eff` of a job's best candidate once the jobs here that end by then are gone; `inf`: with all empty.

        As if the GPUs were such as allow the slowdown `base`.
        """
        state, p = self.state, self.p
        then = copy.copy(state)
        then.least_speed = tier
        if end_s == math.inf:
            then.running, then.out = [[] for _ in state.running], np.zeros_like(state.out)
        else:
            then.running = list(state.running)
            then.running[p] = [r for r in state.running[p] if state.jobs[r.job].fraction or self.ends[r.job] > end_s]
        here = [r.job for r in then.running[p]]
        then.left_then_s = {i: self.left_s[i] * max(1 - end_s / self.ends[i], 0.0) for i in here}
        look = Look(then, p, self.lifetime, self.observe, ahead=True)
        look.ends, look.base = {i: max(self.ends[i] - end_s, 0.0) for i in here}, base
        return look.best(j, offered(then, p, j))[1]

    def is_good(self, j: int, loss: float, threshold: float, patience: float) -> bool:
        """Whether a candidate of such a loss is good enough."""
        lost = (loss - 1) * self.state.estimate_s(j) / self.wait
        return q(loss) <= q(threshold) or q(lost) <= q(patience)
