"""What policies know of the work that running jobs have left (docs/semantics.md, section 7)."""

import numpy as np

from jaxsched.semantics import OVERDUE
from jaxsched.simulation.engines.compiled.jit import compiled
from jaxsched.simulation.engines.compiled.world import Tables, World


@compiled
def foresee(w: World, t: Tables, p: int) -> float:
    """Fill `Tables.left_s` and `Tables.end_s` for a partition whose slowdowns are current; the earliest of its ends."""
    earliest_s = np.inf
    for i in range(t.partitions[p].running):
        run = t.running[p, i]
        job = w.jobs[run.job]
        remaining_s = (run.finish_s - t.now_s[0]) / run.slowdown
        left_s = remaining_s + (job.estimate_s - job.duration_s)
        if left_s <= 0.0:
            left_s = OVERDUE * (job.duration_s - remaining_s)
        t.left_s[i], t.end_s[i] = left_s, left_s * run.slowdown
        earliest_s = min(earliest_s, t.end_s[i])
    return earliest_s
