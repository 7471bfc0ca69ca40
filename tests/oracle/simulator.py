"""An independent simulator: a plain NumPy event loop in float64, written from `docs/semantics.md` and nothing else.

It is slow and literal on purpose; section numbers refer to that page. A policy is a function `policy(state, p)` that
returns `("place", job, workers, ps)` (dicts group -> count), or with the index of the shared GPU behind them,
`("forward", job, partition)` or `("wait",)`.
"""

import dataclasses
import math

import numpy as np

from jaxsched.semantics import WORK_TOLERANCE
from tests.oracle.cluster import Hardware, read_jobs
from tests.oracle.contention import demand, make_interference
from tests.oracle.failures import Outage, change_servers, next_change, room
from tests.oracle.pairs import Factors, Pairs
from tests.oracle.preemption import Preemption
from tests.oracle.state import Running, State


@dataclasses.dataclass
class Result:
    """What became of each job."""

    start_s: np.ndarray  # float64[J], nan if it never started
    finish_s: np.ndarray  # float64[J], nan if it did not finish
    status: list[str]  # finished, running, queued, backlog (not in a queue yet) or rejected
    partition: np.ndarray  # int[J], where it ran or is queued, else -1
    workers: list[dict[int, int]]  # group -> count, empty if it never started
    ps: list[dict[int, int]]
    stops: np.ndarray  # int[J]
    ran: np.ndarray  # int[J], intervals of runs that were stopped
    restarting_s: np.ndarray  # float64[J]
    lost_s: np.ndarray  # float64[J], ideal seconds
    falls: np.ndarray  # int[J], stops by failures
    fallen_s: np.ndarray  # float64[J], ideal seconds that these cost
    forwards: np.ndarray  # int[J]
    pairs: Pairs | None = None  # with all that has been seen


def simulate(
    cluster,
    jobs,
    profiles,
    policy,
    *,
    interval_s,
    rounds,
    max_forwards=2,
    interference="none",
    strengths=(1, 1, 1, 1, 1, 1),
    law=None,
    queue_slots=10**9,
    running_slots=10**9,
    horizon_s=None,
    preemption: Preemption | None = None,
    outages: list[Outage] | None = None,
    history: bool = False,
    moves: bool = False,
    pair_factors: Factors | None = None,
    pairs_known: bool = False,
) -> Result:
    """Run the jobs. `running_slots` and `queue_slots` are per partition; `pair_factors` is float [models, models].

    With a horizon, boundaries before it are simulated and completions up to it count; without one, the run also ends
    when nothing can change any more (jobs are queued that the policy will never place). With `moves` the policy may
    also stop jobs where none is queued.
    """
    hw, table = Hardware(cluster), read_jobs(jobs, profiles)
    stretch = make_interference(interference, strengths)
    pairs = None if pair_factors is None else Pairs(pair_factors, pairs_known)
    limits = queue_slots, running_slots, max_forwards
    state = State(hw, table, stretch, *limits, interval_s, law, preemption, history, outages, pairs)
    result = Result(
        start_s=np.full(len(table), np.nan),
        finish_s=np.full(len(table), np.nan),
        status=["backlog"] * len(table),
        partition=np.full(len(table), -1),
        workers=[{} for _ in table],
        ps=[{} for _ in table],
        stops=np.array(state.stops),
        ran=np.array(state.ran),
        restarting_s=np.array(state.restarting_s),
        lost_s=np.array(state.lost_s),
        falls=np.array(state.falls),
        fallen_s=np.array(state.fallen_s),
        forwards=np.array(state.forwards),
        pairs=pairs,
    )

    backlog: list[int] = []  # in order of submission
    home: dict[int, int] = {}
    for j, job in enumerate(table):
        able = [p for p in ((job.home + d) % hw.P for d in range(hw.P)) if state.could_hold(p, j)]
        if able:
            home[j] = able[0]
            backlog.append(j)
        else:
            result.status[j] = "rejected"

    i = 0
    while horizon_s is None or i * interval_s < horizon_s:
        state.now, state.boundary = i * interval_s, i
        change = None
        if outages is not None:
            change_servers(state)
            change = next_change(outages, i, interval_s)
        while backlog and table[backlog[0]].submit_s <= state.now:
            if room(state, home[backlog[0]]) <= 0:
                break
            j = backlog.pop(0)
            state.queue[home[j]].append(j)

        acted = _decide(state, policy, rounds)

        anything_queued = any(state.queue)
        anything_running = any(state.running)
        later = [j for j in backlog if table[j].submit_s > state.now]
        if not anything_queued and not anything_running and not backlog:
            break
        if horizon_s is None and not anything_running and not acted and not later and change is None:
            break  # nothing will ever change
        if anything_queued or (moves and anything_running):
            i += 1
            end = i * interval_s
        elif backlog:  # skip to the boundary at which the next job arrives
            i = max(i + 1, math.floor(table[backlog[0]].submit_s / interval_s) - 1)
            while i * interval_s < table[backlog[0]].submit_s:
                i += 1
            i = i if change is None else min(i, change)
            end = i * interval_s
        elif change is not None:
            i, end = change, change * interval_s
        else:
            end = math.inf
        _advance(state, end if horizon_s is None else min(end, horizon_s))
        if end == math.inf:
            break

    for r, finish in state.finished:
        result.finish_s[r.job] = finish
    for status, runs in (
        ("running", [r for rs in state.running for r in rs]),
        ("finished", [r for r, _ in state.finished]),
    ):
        for r in runs:
            result.status[r.job], result.partition[r.job] = status, r.partition
            result.workers[r.job], result.ps[r.job] = r.w, r.u
    result.start_s[:] = state.first_start_s
    result.stops[:], result.ran[:] = state.stops, state.ran
    result.restarting_s[:], result.lost_s[:] = state.restarting_s, state.lost_s
    result.falls[:], result.fallen_s[:] = state.falls, state.fallen_s
    result.forwards[:] = state.forwards
    for p in range(hw.P):
        for j in state.queue[p]:
            result.status[j], result.partition[j] = "queued", p
    return result


def _decide(state: State, policy, rounds: int) -> bool:
    """The decisions of one boundary (section 6, step 2). Returns whether anything was placed or forwarded."""
    hw = state.hw
    waited: set[int] = set()
    acted = False
    for _ in range(rounds):
        if len(waited) == hw.P:
            break
        actions = {p: policy(state, p) for p in range(hw.P) if p not in waited}  # all on the state before the round
        for j, owed_s in state.owed_after_round:
            state.owed_s[j] = state.owed_s.get(j, 0.0) + owed_s
        state.owed_after_round.clear()
        legal = {p: _legal(state, p, action) for p, action in actions.items()}
        for p, action in actions.items():
            if legal[p] and action[0] == "stop":
                _stop(state, p, action[1])
                acted = True
        slots = [room(state, p) for p in range(hw.P)]
        for p, action in actions.items():  # in order of the scheduler's number
            if not legal[p] or action[0] == "wait":
                waited.add(p)
            elif action[0] == "stop":
                continue
            elif action[0] == "forward":
                _, j, target = action
                if slots[target] <= 0:
                    waited.add(p)
                    continue
                slots[target] -= 1
                state.queue[p].remove(j)
                state.queue[target].append(j)
                state.owed_s.pop(j, None)
                state.forwards[j] += 1
                acted = True
            else:
                j, w, u, gpu = _placement(action)
                w = {int(a): int(x) for a, x in sorted(w.items()) if x > 0}
                u = {int(a): int(x) for a, x in sorted(u.items()) if x > 0}
                state.queue[p].remove(j)
                state.running[p].append(
                    Running(
                        gpu=state.gpu_for(p, j, min(w)) if gpu is None else gpu,
                        job=j,
                        partition=p,
                        w=w,
                        u=u,
                        demand=demand(hw, p, state.jobs[j], w, u),
                        start_s=state.now,
                        remaining_s=state.left_s[j],
                        since=state.boundary,
                        restart_s=0.0,
                    )
                )
                if state.preemption is not None and state.stops[j] + state.falls[j]:
                    state.running[p][-1].restart_s = state.preemption.restart_s
                    state.restarting_s[j] += state.preemption.restart_s
                if math.isnan(state.first_start_s[j]):
                    state.first_start_s[j] = state.now
                acted = True
    return acted


def _placement(action) -> tuple[int, dict[int, int], dict[int, int], int | None]:
    """Job, workers, PS and the shared GPU that the policy names, if it names one."""
    _, j, w, u, *gpu = action
    return j, w, u, gpu[0] if gpu else None


def _stop(state: State, p: int, jobs: list[int]) -> None:
    """Section 8, what is kept."""
    assert state.preemption is not None
    for r in [r for r in state.running[p] if r.job in jobs]:
        duration, before = state.jobs[r.job].duration_s, state.left_s[r.job]
        kept = state.preemption.kept_s(duration - r.remaining_s, duration - before)
        state.left_s[r.job] = duration - kept
        state.lost_s[r.job] += state.left_s[r.job] - r.remaining_s
        state.ran[r.job] += state.boundary - r.since
        state.stops[r.job] += 1
        state.restarting_s[r.job] -= r.restart_s
        state.running[p].remove(r)
        state.queue[p].append(r.job)
    state.owed_s.pop(r.job, None)


def _legal(state: State, p: int, action) -> bool:
    """Whether scheduler `p` may do this on the present state (free slots of the target: see the caller)."""
    if action[0] == "wait":
        return True
    j = action[1]
    if action[0] == "stop":
        runs = {r.job: r for r in state.running[p]}
        room = len(state.queue[p]) + len(j) <= state.queue_slots
        return len(j) > 0 and room and all(i in runs and state.may_stop(runs[i]) for i in j)
    if j not in state.queue[p]:
        return False
    if action[0] == "forward":
        target = action[2]
        return (
            target != p
            and 0 <= target < state.hw.P
            and state.forwards[j] < state.max_forwards
            and state.could_hold(target, j)
        )
    _, w, u, gpu = _placement(action)
    job, cap = state.jobs[j], state.gpu_capacity(p, j)
    by_server = [sum(w.get(a, 0) for a in state.hw.groups_of(s)) for s in range(state.hw.N)]
    if gpu is not None and not all(job.fraction and state.may_share(p, j, a, gpu) for a, x in w.items() if x):
        return False
    return (
        len(state.running[p]) < state.running_slots
        and sum(w.values()) == job.W
        and sum(u.values()) == job.U
        and all(0 <= x <= cap[a] for a, x in w.items())
        and all(x <= state.within(p, j, s) for s, x in enumerate(by_server) if x)
        and all(0 <= x and state.hw.usable(p, job)[a] and not state.out[p, a // state.hw.K] for a, x in u.items() if x)
    )


def _advance(state: State, end: float) -> None:
    """Run until `end` (section 6, step 3): slowdowns are constant between completions."""
    while any(state.running):
        slow = state.slowdowns()
        runs = [r for rs in state.running for r in rs]
        next_s = min(state.now + r.restart_s + r.remaining_s * slow[r.job] for r in runs)
        until = min(next_s, end)
        for r in runs:
            others = state.others_on_gpu(r)
            if state.pairs is not None and others:
                state.pairs.note(state.jobs[r.job].model, others, until - state.now)
            restarting = min(r.restart_s, until - state.now)
            r.restart_s -= restarting
            r.remaining_s -= (until - state.now - restarting) / slow[r.job]
        state.now = until
        for p in range(state.hw.P):
            for r in list(state.running[p]):
                # The second test: next_s is this job's own completion, however float64 rounds a large time.
                if r.remaining_s <= WORK_TOLERANCE * state.jobs[r.job].duration_s or (
                    until == next_s and r.remaining_s * slow[r.job] <= np.spacing(until)
                ):
                    state.running[p].remove(r)
                    state.finished.append((r, state.now))
        if until == end:
            return
    if end != math.inf:
        state.now = end
