"""What policies know of the work that jobs have left: by estimates, or by the history (docs/semantics.md, 7 and 9)."""

import numpy as np
from jaxtyping import Float32

from jaxsched.event_loop._kernel.jit import compiled
from jaxsched.event_loop._kernel.records import BY_AREA, BY_RUN_TIME, Tables, World
from jaxsched.event_loop._kernel.shared_gpus import count_reserved_gpus
from jaxsched.semantics import (
    BINS_AHEAD,
    FIRST_BIN_S,
    OUTLIVED,
    OVERDUE,
    PARTS,
    PRIOR_JOBS,
    PRIOR_STEPS,
    SERVICE_BINS,
    STEPS,
)


@compiled
def estimate_ends(w: World, t: Tables, p: int) -> float:
    """Fill `left_s` and `end_s` of `Scratch` for a partition whose slowdowns are current; the earliest of its ends."""
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


@compiled
def until_estimate_grows_s(w: World, j: int, ran_s: float) -> float:
    """How long the estimate of a running job stays as it is: with the history until it has run for half of it."""
    return w.jobs[j].estimate_s / OUTLIVED - ran_s if w.history else np.inf


@compiled
def note_finished(w: World, t: Tables, j: int) -> None:
    """Policies that know the history learn that a job has finished."""
    if not w.history:
        return
    for stage in range(w.past.classes.shape[1]):
        index = w.past.classes[j, stage]
        t.known.jobs[index] += 1
        t.known.steps[index] += w.past.steps[j]
    t.known.served[w.past.bin[j]] += 1


@compiled
def expect(w: World, t: Tables, j: int) -> None:
    """Note the run time that the history lets one expect of a job."""
    mean = PARTS * PRIOR_STEPS
    for stage in range(w.past.classes.shape[1]):
        index = w.past.classes[j, stage]
        mean = (PARTS * t.known.steps[index] + PRIOR_JOBS * mean) // (t.known.jobs[index] + PRIOR_JOBS)
    t.service[j].expected_s = w.past.seconds[min(mean, len(w.past.seconds) - 1)]


@compiled
def estimate(w: World, j: int, expected_s: float, ran_s: float) -> None:
    """Write the estimate of a job that has held GPUs for so long, and the keys that hang on it."""
    job = w.jobs[j]
    job.estimate_s = max(expected_s, OUTLIVED * ran_s)
    job.area = np.float32(count_reserved_gpus(w, j)) * np.float32(job.estimate_s)
    if w.rule.keyed == BY_RUN_TIME:
        job.key = np.float32(job.estimate_s)
    elif w.rule.keyed == BY_AREA:
        job.key = job.area


@compiled
def rank_service_bins(w: World, t: Tables) -> None:
    """The levels of `gittins` of all bins (docs/semantics.md, section 9, "History")."""
    for own in range(SERVICE_BINS):
        beyond = 0
        for b in range(own, SERVICE_BINS):
            beyond += t.known.served[b] + 1
        ended, cost, reach, least = 0, 0, 1, np.float32(np.inf)
        for b in range(own, own + BINS_AHEAD):
            jobs = t.known.served[b] + 1 if b < SERVICE_BINS else 0
            ended, cost = ended + jobs, cost + jobs * (3 * reach - 2)
            all_in = cost + (beyond - ended) * (4 * reach - 2)
            least = min(least, np.float32(all_in) / np.float32(ended))
            reach *= 2
        t.known.levels[own] = STEPS * own + count_grid_steps(w.past.grid, least)


@compiled
def find_service_bin(service_s: float) -> int:
    """The bin of attained service in GPU-seconds."""
    return find_doubling_bin(service_s, FIRST_BIN_S, SERVICE_BINS)


@compiled
def find_doubling_bin(x: float, first: float, bins: int) -> int:
    """The bin of `x`, each but the first, which is below `first`, and the last as wide as all before."""
    own, edge = 0, first
    while own < bins - 1 and x >= edge:
        own, edge = own + 1, 2.0 * edge
    return own


@compiled
def count_grid_steps(grid: Float32[np.ndarray, "steps"], x: float | np.floating) -> int:
    """Steps of the grid that `x` has reached."""
    low, high = 0, len(grid)
    while low < high:
        middle = (low + high) // 2
        if grid[middle] <= x:
            low = middle + 1
        else:
            high = middle
    return low
