"""GPUs of different speeds, in the oracle (section 7 of `docs/semantics.md`, "GPU types"): tiers, and who waits."""

import math
from collections.abc import Collection

from jaxsched.semantics import GRID, GRID_OFFSET
from tests.oracle.state import State


def tiers(state: State, j: int) -> list[float]:
    """The different speeds of the cluster's GPUs that a job may use, fastest first."""
    return state.hw.speeds_for(state.jobs[j])


def groups_at(state: State, p: int, j: int, tier: float) -> list[int]:
    """The groups of a partition that a job may use and that are at least that fast."""
    usable = state.hw.usable(p, state.jobs[j])
    return [a for a in range(state.hw.N * state.hw.K) if state.hw.speed[p, a] >= tier and usable[a]]


def tier_of(state: State, p: int, j: int, without: Collection[int] = ()) -> float | None:
    """The highest tier at which a job fits the free GPUs of a partition now, or would without some jobs."""
    cap = state.capacity(p, j, without)
    return next((v for v in tiers(state, j) if sum(cap[a] for a in groups_at(state, p, j, v)) >= state.jobs[j].W), None)


def seen(state: State, p: int, j: int) -> tuple[list[int], list[int]]:
    """Free GPUs and capacities as rules see them: none below the job's tier."""
    tier = tier_of(state, p, j) if state.least_speed is None else state.least_speed
    at = set() if tier is None else set(groups_at(state, p, j, tier))
    free, cap = state.seen_free(p, j), state.capacity(p, j)
    return [x if a in at else 0 for a, x in enumerate(free)], [x if a in at else 0 for a, x in enumerate(cap)]


def speed_at(state: State, j: int, tier: float) -> float:
    """Speed of a job's model on the GPUs of a tier."""
    hw, job = state.hw, state.jobs[j]
    at = [(int(hw.gpu_type[p, a]), p, int(a)) for p in range(hw.P) for a in hw.usable(p, job).nonzero()[0]]
    _, p, a = min(place for place in at if hw.speed[place[1], place[2]] == tier)
    return hw.speed_of(p, a, job)


def run_s(state: State, j: int, tier: float) -> float:
    """Seconds that a job would take on GPUs of that speed, by its estimate."""
    return state.estimate_s(j) / speed_at(state, j, tier)


def waits_for_faster(state: State, p: int, j: int, turn: int, slowdowns) -> bool:
    """Whether a feasible job of that place in its queue would be done sooner if it waited for faster GPUs."""
    job, own = state.jobs[j], tier_of(state, p, j)
    if own is None:
        return False
    for tier in tiers(state, j):
        if tier <= own:
            break
        at = groups_at(state, p, j, tier)
        if sum(state.hw.empty_capacity(p, job, at)) < job.W:
            continue
        free = int(state.free(p)[at].sum())
        ends = []
        for r in state.running[p]:
            gpus = sum(x * state.jobs[r.job].g for a, x in r.w.items() if a in at)
            if gpus > 0 and r.gpu is None:
                ends.append((state.estimated_left_s(r) * slowdowns()[r.job], gpus))
        for wait, gpus in sorted(ends):
            free += gpus
            if free >= job.W * job.g:
                waited = turn * wait + run_s(state, j, tier)
                if math.floor(GRID * run_s(state, j, own) / waited + GRID_OFFSET) > GRID:
                    return True
                break
    return False
