"""A lower bound on the mean job completion time of every policy (docs/bound.md has the statements and the proofs).

Time is cut into slots of one interval: a job starts at a boundary, and the GPUs it frees are used from the next one,
so that it holds its gang for a whole number of slots. Contention, homes, partitions and topology only restrict further.
"""

import heapq

import numpy as np
from jaxtyping import Float64

from jaxsched.bounds.prices import Slotted, priced_starts
from jaxsched.cluster.hardware import Cluster, total_gpus
from jaxsched.dynamics.reference import least_slowdown
from jaxsched.semantics import WORK_TOLERANCE
from jaxsched.simulation.settings import fits_somewhere
from jaxsched.workload.jobs import JobList, first_boundary, take
from jaxsched.workload.models import Profiles, profiles


def jct_lower_bound_s(
    cluster: Cluster, jobs: JobList, interval_s: float, models: Profiles | None = None, *, stops: bool = False
) -> float:
    """Seconds that no policy's mean JCT over these jobs is below, with decisions every `interval_s`.

    Where GPUs differ every job counts as if all GPUs were of the type that is fastest for it; `models`, with the speeds
    of their models, are the catalogue's unless given. With `stops` also of policies that stop jobs.

    Jobs that no partition could hold are left out, as in `metrics`; NaN if none is left. A job counts as finished with
    a millionth of its work left, and the simulator's seconds are float32: the bound takes off twice that millionth.
    """
    kept = take(jobs, fits_somewhere(cluster, jobs))
    if not len(kept):
        return float("nan")
    fastest = least_slowdown(cluster, models or profiles(cluster.gpu_types), kept)
    work_s = kept.duration_s * fastest * (1 - 2 * WORK_TOLERANCE)
    boundary = first_boundary(kept.submit_s, interval_s)
    slotted = Slotted(
        release=boundary - boundary[0],
        length=np.ceil(work_s / interval_s),
        gpus=kept.gpu_demand,
        capacity=float(total_gpus(cluster)),
    )
    waits_s = (boundary[0] * interval_s - kept.submit_s).mean()
    starts = least_starts(slotted, stops=stops)
    return float(starts / len(kept) * interval_s + waits_s + work_s.mean())


def least_starts(jobs: Slotted, *, stops: bool = False) -> float:
    """The largest of the lower bounds on the sum of the starts, in slots.

    With `stops` of those that hold for jobs that may be stopped, of ends less lengths.
    """
    area = jobs.gpus * jobs.length
    completions, _, end = one_machine(jobs.release, area, jobs.capacity, by_remaining=True)
    if stops:
        return max(jobs.release.sum(), completions - jobs.length.sum())
    _, busy, _ = one_machine(jobs.release, area, jobs.capacity, by_remaining=False)
    simple = max(jobs.release.sum(), completions - jobs.length.sum(), busy - jobs.length.sum() / 2)
    return max(simple, priced_starts(jobs, end, simple))


def one_machine(
    release: Float64[np.ndarray, "J"], area: Float64[np.ndarray, "J"], speed: float, *, by_remaining: bool
) -> tuple[float, float, float]:
    """One machine of `speed` that may interrupt: always the job of least remaining, or of least whole, area.

    Releases ascend. Returns the sums of completion times and of mean busy times, and when all work is done. The first
    is the least possible with `by_remaining` (Schrage, 1968), the second without.
    """
    left, whole, releases = area.tolist(), area.tolist(), release.tolist()
    ready: list[tuple[float, int]] = []
    completions = busy = now = 0.0
    upcoming, count = 0, len(releases)
    while ready or upcoming < count:
        if not ready:
            now = max(now, releases[upcoming])
        while upcoming < count and releases[upcoming] <= now:
            heapq.heappush(ready, (whole[upcoming], upcoming))
            upcoming += 1
        job = ready[0][1]
        finish = now + left[job] / speed
        interrupted = upcoming < count and releases[upcoming] < finish
        until = releases[upcoming] if interrupted else finish
        busy += speed * (until - now) * (until + now) / 2 / whole[job]
        if interrupted:
            left[job] -= (until - now) * speed
            if by_remaining:
                heapq.heapreplace(ready, (left[job], job))
        else:
            heapq.heappop(ready)
            completions += finish
        now = until
    return completions, busy, now
