"""What policies know of the work that running jobs have left (docs/semantics.md, section 7)."""

import numpy as np

from jaxsched.event_loop._kernel.jit import compiled
from jaxsched.event_loop._kernel.records import Tables, World
from jaxsched.semantics import OVERDUE


@compiled
def estimate_ends(w: World, t: Tables, p: int) -> float:
    """Fill `Tables.left_s` and `Tables.end_s` for a partition whose slowdowns are current; the earliest of its ends."""
    earliest_s = np.inf
    for i in range(t.partitions[p].running):
        run = t.running[p, i]
        left_s = left_by_estimate_s(w, run.job, remaining_s(t, p, i))
        t.scratch.left_s[i], t.scratch.end_s[i] = left_s, left_s * run.slowdown
        earliest_s = min(earliest_s, t.scratch.end_s[i])
    return earliest_s


@compiled
def remaining_s(t: Tables, p: int, i: int) -> float:
    """Ideal seconds that a running job has left; its slowdown must be current."""
    run = t.running[p, i]
    return (run.finish_s - max(t.now_s[0], run.resume_s)) / run.slowdown


@compiled
def left_by_estimate_s(w: World, j: int, remaining_s: float) -> float:
    """Ideal seconds that a job has left by its estimate, of which so many are truly left."""
    left_s = _up_to_estimate_s(w, j, remaining_s)
    return left_s if left_s > 0.0 else OVERDUE * (w.jobs[j].duration_s - remaining_s)


@compiled
def has_outlived_estimate(w: World, j: int, remaining_s: float) -> bool:
    """Whether a job of which so many ideal seconds are truly left has run for longer than its estimate."""
    return _up_to_estimate_s(w, j, remaining_s) <= 0.0


@compiled
def _up_to_estimate_s(w: World, j: int, remaining_s: float) -> float:
    return remaining_s + (w.jobs[j].estimate_s - w.jobs[j].duration_s)
