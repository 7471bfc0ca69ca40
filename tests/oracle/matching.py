"""`match` in the oracle (section 7 of `docs/semantics.md`): of several jobs and their places the best pair."""

import numpy as np

from tests.oracle.candidates import candidates, effect
from tests.oracle.cluster import WHOLE
from tests.oracle.filling import q
from tests.oracle.gpu_types import seen
from tests.oracle.pairs import Factors
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


def match(state: State, p: int, jobs: list[int], keys: dict[int, float], observe: bool):
    """(job, workers, its GPU) of the pair that costs least for its length, or None; `jobs` are those that may start."""
    jobs = jobs[:JOBS]
    if not jobs:
        return None
    believed: Factors | None = state.believed(observe)
    before, now = state.total_use(), state.slowdowns_by(believed)
    first = max(min(np.float32(keys[j]) for j in jobs), LOWEST)
    best = None
    for j in jobs:
        weight = float(np.sqrt(np.float32(keys[j]) / first))
        if state.jobs[j].fraction:
            places = [({a: 1}, gpu) for a, gpu in gpus_for(state, p, j)]
        else:
            places = [(w, None) for w in candidates(state, p, j) if w is not None]
        for w, gpu in places:
            _, eff, _ = effect(state, p, j, w, gpu, before, now, believed)
            score = q(weight * eff)
            if best is None or score < best[0]:
                best = score, j, w, gpu
    return None if best is None else best[1:]
