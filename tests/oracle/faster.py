"""Jobs go where their GPUs are faster (section 8 of `docs/semantics.md`, "Faster GPUs")."""

import math
from collections.abc import Callable

import numpy as np

from jaxsched.semantics import GRID, GRID_OFFSET
from tests.oracle.failures import room
from tests.oracle.gpu_types import speed_at, tier_of
from tests.oracle.preemption import ran
from tests.oracle.state import Running, State

LEAST, RESTARTS = 1500, 5


def may_move_to(state: State, p: int, j: int, forward: str) -> list[int]:
    """The partitions to which a job may move."""
    if forward == "stay" or state.forwards[j] >= state.max_forwards:
        return []
    others = [t for t in range(state.hw.P) if t != p and room(state, t) > 0]
    return others if forward == "spread" else [t for t in others if not state.queue[t]]


def gain(state: State, j: int, there: float, here: float) -> int:
    """In thousandths of the speed here."""
    return math.floor(GRID * (speed_at(state, j, there) / speed_at(state, j, here)) + GRID_OFFSET)


def before_start(
    state: State, p: int, j: int, forward: str, may_start: Callable[[int, int], bool], ahead: bool
) -> int | None:
    """The partition to which a job goes that could start here; who looks `ahead` wants few servers there."""
    here = tier_of(state, p, j)
    assert here is not None
    found = []
    for t in may_move_to(state, p, j, forward):
        few = not ahead or state.jobs[j].fraction or (may_start(t, j) and state.consolidated(t, j))
        if few and may_start(t, j) and gain(state, j, tier_of(state, t, j), here) >= LEAST:
            found.append((-gain(state, j, tier_of(state, t, j), here), -int(state.free(t).sum()), t))
    return min(found)[-1] if found else None


def while_running(state: State, p: int, forward: str) -> list[int]:
    """The job of a partition that is stopped so that it can go on elsewhere, if there is one."""
    assert state.preemption is not None
    found = []
    for r in state.running[p]:
        most = largest_gain(state, r, forward)
        ran_s = np.float32(ran(state, r.job)) * np.float32(state.interval_s)
        needed = np.float32(RESTARTS) * np.float32(state.preemption.restart_s) * np.float32(most)
        if state.may_stop(r) and most >= LEAST and ran_s * np.float32(most - 1000) >= needed:
            found.append((-most, r.job))
    return [min(found)[1]] if found and len(state.queue[p]) < state.queue_slots else []


def largest_gain(state: State, r: Running, forward: str) -> int:
    """Of a running job, over all places where it could go on."""
    p, j = r.partition, r.job
    here = min(float(state.hw.speed[p, a]) for a in r.w)
    tiers = [tier_of(state, t, j) for t in may_move_to(state, p, j, forward) if state.feasible(t, j)]
    return max(gain(state, j, there, here) for there in (*tiers, tier_of(state, p, j, without=[j])))
