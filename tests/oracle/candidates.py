"""Candidate placements, what they cost, and `greedy-wait`, in the oracle (section 7 of `docs/semantics.md`)."""

from jaxsched.semantics import ANCHORS, CAPS
from tests.oracle.contention import demand, least_slowdown, slowdown
from tests.oracle.filling import Pressure, fill, ps_of, q
from tests.oracle.gpu_types import seen
from tests.oracle.pairs import Factors
from tests.oracle.state import State


def candidates(state: State, p: int, j: int) -> list[dict[int, int] | None]:
    """The 8 anchors x 3 caps of a job; None is an invalid candidate."""
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

    out: list[dict[int, int] | None] = []
    for anchor in anchors:
        for limit in (None, *CAPS[1:]):
            capped = [x if limit is None else min(x, limit) for x in cap]
            if anchor is None or sum(capped) < job.W or (limit is not None and limit >= job.W):
                out.append(None)
                continue
            capped_s = [sum(capped[a] for a in hw.groups_of(s)) for s in range(hw.N)]

            def key(a: int, anchor=anchor, capped_s=capped_s):
                s = a // hw.K
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
    """Of a candidate: the job's own slowdown, `eff`, that and what it costs the jobs that run here, and `loss`.

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
    return own, eff, own / least + (eff - own)


def later(state: State, p: int, j: int, w: dict[int, int], own: float, now: dict[int, float]) -> float:
    """Seconds by which the servers of a candidate become wholly free later."""
    K, seconds = state.hw.K, 0.0
    for s in {a // K for a in w}:
        here = [r for r in state.running[p] if any(a // K == s for a in r.w)]
        exit_s = max((state.estimated_left_s(r) * now[r.job] for r in here), default=0.0)
        seconds += max(own * state.estimate_s(j) - exit_s, 0.0)
    return seconds


def greedy_wait(
    state: State, p: int, jobs: list[int], threshold: float, patience: float, lifetime: bool, observe: bool
):
    """(job, workers) of the first job whose best candidate is good enough, or None."""
    look = Look(state, p, lifetime, observe)
    for j in jobs:
        places = [(w, state.gpu_for(p, j, min(w))) for w in candidates(state, p, j) if w is not None]
        _, loss, (w, _) = look.best(j, places)
        if look.is_good(j, loss, threshold, patience) or not state.running[p]:
            return j, w
    return None


class Look:
    """A partition at one moment, as who appraises placements sees it."""

    def __init__(self, state: State, p: int, lifetime: bool, observe: bool, alike: bool = False):
        """What is the same for all candidates."""
        self.state, self.p, self.lifetime, self.alike = state, p, lifetime, alike
        self.believed = state.believed(observe)
        self.before, self.now = state.total_use(), state.slowdowns()
        self.as_believed = state.slowdowns_by(self.believed)
        ends = [state.estimated_left_s(r) * self.now[r.job] for r in state.running[p]]
        self.wait = max(state.interval_s, min(ends, default=0.0))

    def best(self, j: int, places: list[tuple[dict[int, int], int | None]]):
        """(cost, loss, place) of the candidate of least cost, which is `eff`, or that and `later`."""
        found = []
        for w, gpu in places:
            known = self.before, self.as_believed, self.believed, self.alike
            own, cost, loss = effect(self.state, self.p, j, w, gpu, *known)
            if self.lifetime:
                cost += later(self.state, self.p, j, w, own, self.now) / self.state.estimate_s(j)
            found.append((cost, loss, (w, gpu)))
        return min(found, key=lambda one: q(one[0]))

    def is_good(self, j: int, loss: float, threshold: float, patience: float) -> bool:
        """Whether a candidate of such a loss is good enough."""
        lost = (loss - 1) * self.state.estimate_s(j) / self.wait
        return q(loss) <= q(threshold) or q(lost) <= q(patience)
