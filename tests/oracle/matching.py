"""`match` in the oracle (section 7 of `docs/semantics.md`): of several jobs and their places the best pair."""

import numpy as np

from tests.oracle.candidates import Look, candidates
from tests.oracle.cluster import WHOLE
from tests.oracle.filling import q
from tests.oracle.gpu_types import seen
from tests.oracle.state import State

JOBS, SHARED, OPENED = 16, 20, 4
LOWEST = np.float32(1e-9)


def gpus_for(state: State, p: int, j: int) -> list[tuple[int, int]]:
    """(group, index of its GPU) that a fraction may get: shared ones that have enough left, then free ones."""
    free, cap = seen(state, p, j)
    groups = [a for a, x in enumerate(cap) if x > 0]
    used = {a: state.shared(p, a) for a in groups}
    enough = [(a, s) for a in groups for s in sorted(used[a]) if used[a][s] + state.jobs[j].milli <= WHOLE]
    fewest = sorted((a for a in groups if free[a] > 0), key=lambda a: (free[a], a))[:OPENED]
    return enough[:SHARED] + [(a, state.new_gpu(p, a)) for a in fewest]


def match(
    state: State,
    p: int,
    jobs: list[int],
    keys: dict[int, float],
    threshold: float,
    patience: float,
    lifetime: bool,
    observe: bool,
    preempt: bool = False,
):
    """(job, workers, its GPU) of the pair that costs least for the job's length, or None; `jobs` may start."""
    jobs = jobs[:JOBS]
    if preempt:  # section 8: those of the first one's level, all alike
        jobs = [j for j in jobs if keys[j] == keys[jobs[0]]]
    look, best = Look(state, p, lifetime, observe, alike=preempt), None
    first = max(min((np.float32(keys[j]) for j in jobs), default=LOWEST), LOWEST)
    for j in jobs:
        fraction = state.jobs[j].fraction
        if fraction:
            places = [({a: 1}, gpu) for a, gpu in gpus_for(state, p, j)]
        else:
            places = [(w, None) for w in candidates(state, p, j) if w is not None]
        cost, loss, place, _ = look.best(j, places)
        if fraction or preempt or not state.running[p] or look.is_good(j, loss, threshold, patience):
            root = 1.0 if preempt else float(np.sqrt(np.float32(keys[j]) / first))
            score = q(root * cost)
            if best is None or score < best[0]:
                best = score, j, *place
    return None if best is None else best[1:]
