"""A lower bound on the mean job completion time of every policy (docs/bound.md has the statements and the proofs).

The last bound goes by prices for GPUs, the Lagrangian dual of the time-indexed program. Whatever non-negative prices
per GPU and slot are announced, no schedule has a smaller sum of starts than when every job chooses the start that
minimises its start plus what it pays, less what all GPUs would earn (bound 4). So any prices give a bound. They are
searched for on a simpler problem (few lengths of jobs, few cells of time), and the best of them are then answered by
the jobs as they are: only that answer is a bound, and it needs no more than a look. Where GPUs differ, each type has
prices of its own, and a job chooses its type, too.

Time is cut into slots of one interval: a job starts at a boundary, and the GPUs it frees are used from the next one,
so that it holds its gang for a whole number of slots. Contention, homes, partitions and topology only restrict further.
"""

import dataclasses
import heapq
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64, Int

from jaxsched.cluster.hardware import Cluster, total_gpus
from jaxsched.dynamics.reference import slowdown_by_type
from jaxsched.semantics import WORK_TOLERANCE
from jaxsched.simulation.settings import fits_somewhere
from jaxsched.workload.jobs import JobList, first_boundary, take
from jaxsched.workload.models import Profiles, profiles

CELLS, COARSE = 512, 4  # prices are constant over cells of time, at most so many, and at first over so many at once
LENGTHS = 24, 48  # different lengths of the simpler problem, at first and then
STEPS = 60, 25  # of the subgradient method, by Polyak's rule towards a target that is lowered when it is missed:
REACH = 0.05  # the first target lies so far above, as a share of the sum of lengths,
GAIN = 1e-3  # a step counts that gains this share of the way,
PATIENCE = 3  # after more misses than that in a row the target is lowered by half,
NEAR = 1e-5  # and where it is as near as this, as a share of the sum of lengths, the search ends
BLOCK = 2**16  # costs of starts that are worked out at a time: they stay in the processor's cache


@dataclasses.dataclass(frozen=True)
class Slotted:
    """Jobs in whole slots of time, in order of release, on GPUs of one type."""

    release: Float64[np.ndarray, "J"]  # slot of the first possible start, from 0
    length: Float64[np.ndarray, "J"]  # slots that the gang is held at least
    gpus: Float64[np.ndarray, "J"]  # of the gang
    capacity: float  # GPUs of the type in the cluster
    count: Float64[np.ndarray, "J"] | float = 1.0  # so many jobs are like this one
    later: Float64[np.ndarray, "J"] | float = 0.0  # slots by which it ends later than after its run on its fastest type


@dataclasses.dataclass(frozen=True)
class Kinds:
    """Jobs of one length and one gang are of a kind: they differ in their release only."""

    length: Float64[np.ndarray, "kinds"]
    gpus: Float64[np.ndarray, "kinds"]
    jobs: Int[np.ndarray, "J"]  # all jobs, kind by kind
    first: Int[np.ndarray, "kinds+1"]  # where in `jobs` each kind begins


def priced_starts(types: Sequence[Slotted], end: float, known: float) -> float:
    """The best bound found on the sum of starts and of `later`, in slots.

    Args: `types`: the same jobs on GPUs of each type; `end`: a slot by which the cluster could have done all work:
    prices are 0 after it; `known`: another bound, which sets how far the steps aim at first.
    """
    slots = max(int(np.ceil(end)), 1)
    reach = max(known - types[0].release.sum(), REACH * min(one.length.sum() for one in types))
    width = -(-slots // CELLS)
    price = np.zeros((len(types), -(-slots // (width * COARSE))))
    price, reach = _search(simpler(types, LENGTHS[0], width * COARSE), width * COARSE, price, reach, STEPS[0])
    price = np.repeat(price, COARSE, 1)[:, : -(-slots // width)]
    price, _ = _search(simpler(types, LENGTHS[1], width), width, price, 4 * reach, STEPS[1])
    return answer(types, [kinds_of(jobs) for jobs in types], width, price)[0]


def _search(
    types: Sequence[Slotted], width: int, price: Float64[np.ndarray, "types cells"], reach: float, steps: int
) -> tuple[Float64[np.ndarray, "types cells"], float]:
    """Better prices by subgradient steps, and how far the target was at the end; at first it is by `reach` higher."""
    kinds = [kinds_of(jobs) for jobs in types]
    near = NEAR * float(min((jobs.count * jobs.length).sum() for jobs in types))
    best, misses, start, excess_there = -np.inf, 0, price, price
    for _ in range(steps):
        bound, excess = answer(types, kinds, width, price)
        misses = 0 if bound > best + GAIN * reach else misses + 1
        if bound > best:
            best, start, excess_there = bound, price, excess
        if misses > PATIENCE:  # from the best prices again, with a nearer target
            reach, misses, price, excess, bound = reach / 2, 0, start, excess_there, best
        uphill = np.where((price <= 0) & (excess < 0), 0.0, excess)  # no price is below 0
        norm = float(uphill.ravel() @ uphill.ravel())
        if norm == 0 or reach < near:  # everyone is served at these prices, or there is nothing left to gain
            break
        price = np.maximum(price + (best + reach - bound) / norm * uphill, 0.0)
    return start, reach


def simpler(types: Sequence[Slotted], lengths: int, width: int) -> list[Slotted]:
    """The same with at most so many lengths, and one job for all that are released in a cell and alike otherwise.

    Neighbours count as their mean. What these jobs answer is no bound.
    """
    jobs, columns = types[0], [one.length for one in types]
    later = [np.broadcast_to(one.later, one.length.shape) for one in types]
    if len(np.unique(jobs.length)) > lengths:
        logs = np.log(jobs.length)
        bucket = np.floor((logs - logs.min()) / (np.ptp(logs) / lengths + 1e-12)).astype(int)
        like = np.stack([bucket, *(np.rint(4 * np.log2(column / jobs.length)) for column in columns[1:])])
        bucket = np.unique(like, axis=1, return_inverse=True)[1].ravel()
        mean = lambda column: (np.bincount(bucket, column) / np.maximum(np.bincount(bucket), 1))[bucket]
        columns, later = [np.rint(mean(column)) for column in columns], [mean(column) for column in later]
    cell = jobs.release // width
    alike = np.stack([cell, jobs.gpus, *columns])
    (_, gpus, *columns), which, count = np.unique(alike, axis=1, return_inverse=True, return_counts=True)
    mean_of = lambda column: np.bincount(which.ravel(), column) / count
    release, count = np.rint(mean_of(jobs.release)), count.astype(float)
    return [
        Slotted(release, length, gpus, one.capacity, count, mean_of(behind))
        for one, length, behind in zip(types, columns, later, strict=True)
    ]


def kinds_of(jobs: Slotted) -> Kinds:
    """The jobs by length and gang."""
    order = np.lexsort((jobs.gpus, jobs.length))
    length, gpus = jobs.length[order], jobs.gpus[order]
    begins = np.ones(len(order), bool)
    begins[1:] = (np.diff(length) != 0) | (np.diff(gpus) != 0)
    first = np.flatnonzero(begins)
    return Kinds(length[first], gpus[first], order, np.append(first, len(order)))


def answer(
    types: Sequence[Slotted], kinds: Sequence[Kinds], width: int, price: Float64[np.ndarray, "types cells"]
) -> tuple[float, Float64[np.ndarray, "types cells"]]:
    """The bound of these prices, in slots, and the GPU-slots asked for beyond the capacity of each type and cell.

    Args: `types`: the same jobs on GPUs of each type; `kinds`: of each; `width`: slots of a cell.
    """
    cells = price.shape[1]
    paid = np.pad(np.cumsum(price, 1) * width, ((0, 0), (1, 0)))  # by one GPU from the start to an edge
    least, chosen, start = np.full(len(types[0].release), np.inf), np.zeros(len(types[0].release), int), None
    for k, (jobs, of_type) in enumerate(zip(types, kinds, strict=True)):
        own, cost = _answers(jobs, of_type, width, paid[k])
        cost += jobs.later
        start = own if start is None else np.where(cost < least, own, start)
        chosen, least = np.where(cost < least, k, chosen), np.minimum(cost, least)
    assert start is not None
    total, excess = float(least @ np.broadcast_to(types[0].count, least.shape)), np.zeros(price.shape)
    for k, jobs in enumerate(types):
        here = np.flatnonzero(chosen == k)
        held = jobs.gpus[here] * np.broadcast_to(jobs.count, least.shape)[here]
        asked = _used(start[here], held, width, cells) - _used(start[here] + jobs.length[here], held, width, cells)
        total -= jobs.capacity * float(paid[k, -1])
        excess[k] = np.diff(asked) - jobs.capacity * width
    return total, excess


def _answers(
    jobs: Slotted, kinds: Kinds, width: int, paid: Float64[np.ndarray, "edges"]
) -> tuple[Float64[np.ndarray, "J"], Float64[np.ndarray, "J"]]:
    """The start of least cost of every job on GPUs of one type, and its cost without `later`."""
    starts, costs = np.zeros(len(jobs.release)), np.zeros(len(jobs.release))
    many = max(BLOCK // len(paid), 1)
    for one in range(0, len(kinds.length), many):
        some = slice(one, one + many)
        counts = np.diff(kinds.first[one : one + many + 1])
        of = np.repeat(np.arange(len(counts)), counts)
        own = kinds.jobs[kinds.first[one] : kinds.first[one] + len(of)]
        found = _choices(jobs.release[own], of, kinds.length[some], kinds.gpus[some], width, paid)
        starts[own], costs[own] = found
    return starts, costs


def _choices(
    release: Float64[np.ndarray, "J"],
    of: Int[np.ndarray, "J"],
    length: Float64[np.ndarray, "kinds"],
    gpus: Float64[np.ndarray, "kinds"],
    width: int,
    paid: Float64[np.ndarray, "edges"],
) -> tuple[Float64[np.ndarray, "J"], Float64[np.ndarray, "J"]]:
    """The start of least cost of each job of some kinds, and the cost; `of` is the job's kind.

    Between its kinks the cost of a start is linear: at a kink the start or the end lies on an edge. So there are the
    release itself, the edges, and the edges less the length.
    """
    edges = np.arange(len(paid)) * float(width)
    pays = np.interp(release + length[of], edges, paid) - np.interp(release, edges, paid)
    choice, cost = release.copy(), release + gpus[of] * pays
    ahead, behind = _shifted(paid, length / width)
    for pay, earlier in ((ahead - paid, np.zeros_like(length)), (paid - behind, length)):
        pay *= gpus[:, None]
        pay += edges
        least = np.ascontiguousarray(np.minimum.accumulate(pay[:, ::-1], 1)[:, ::-1])  # of all starts from here on
        first = np.ceil((release + earlier[of]) / width).astype(int)
        inside = first < len(paid)
        first = np.minimum(first, len(paid) - 1) + of * len(paid)
        other = np.where(inside, least.ravel()[first] - earlier[of], np.inf)
        better = other < cost
        own = np.flatnonzero(pay.ravel() <= least.ravel())  # where the least is reached; in every row at its end
        where = own[np.searchsorted(own, first[better])] % len(paid)
        choice[better] = edges[where] - earlier[of[better]]
        cost = np.minimum(cost, other)
    return choice, cost


def _shifted(
    paid: Float64[np.ndarray, "edges"], cells: Float64[np.ndarray, "kinds"]
) -> tuple[Float64[np.ndarray, "kinds edges"], Float64[np.ndarray, "kinds edges"]]:
    """`paid` so many cells after each edge, and before it: linear inside of cells, constant outside of all."""
    count = len(paid)
    whole = np.minimum(np.floor(cells), count).astype(int)
    part = np.where(cells < count, cells - whole, 0.0)[:, None]
    later = np.lib.stride_tricks.sliding_window_view(np.append(paid, np.full(count + 1, paid[-1])), count)
    earlier = np.lib.stride_tricks.sliding_window_view(np.append(np.full(count + 1, paid[0]), paid), count)
    ahead, behind = later[whole], earlier[count + 1 - whole]
    ahead += part * (later[whole + 1] - ahead)
    behind -= part * (behind - earlier[count - whole])
    return ahead, behind


def _used(
    start: Float64[np.ndarray, "J"], gpus: Float64[np.ndarray, "J"], width: int, cells: int
) -> Float64[np.ndarray, "edges"]:
    """GPU-slots used before each edge by gangs that start at `start` and never end."""
    after = np.minimum(np.ceil(start / width).astype(int), cells + 1)  # the first edge at or after the start
    held = np.cumsum(np.bincount(after, gpus, cells + 2))[:-1]
    return held * (np.arange(cells + 1) * float(width)) - np.cumsum(np.bincount(after, gpus * start, cells + 2))[:-1]


def jct_lower_bound_s(
    cluster: Cluster, jobs: JobList, interval_s: float, models: Profiles | None = None, *, stops: bool = False
) -> float:
    """Seconds that no policy's mean JCT over these jobs is below, with decisions every `interval_s`.

    Where GPUs differ, `models`, with the speeds of their models, are the catalogue's unless given. With `stops` also of
    policies that stop jobs: every job counts then as if all GPUs were of the type that is fastest for it.

    Jobs that no partition could hold are left out, as in `metrics`; NaN if none is left. A job counts as finished with
    a millionth of its work left, and the simulator's seconds are float32: the bound takes off twice that millionth.
    """
    kept = take(jobs, fits_somewhere(cluster, jobs))
    if not len(kept):
        return float("nan")
    boundary = first_boundary(kept.submit_s, interval_s)
    slowdown = slowdown_by_type(cluster, models or profiles(cluster.gpu_types), kept)
    work_s = {name: kept.duration_s * times * (1 - 2 * WORK_TOLERANCE) for name, times in slowdown.items()}
    least_s = np.minimum.reduce(list(work_s.values()))
    types = [
        Slotted(
            release=boundary - boundary[0],
            length=np.ceil(seconds / interval_s),
            gpus=kept.gpu_demand,
            capacity=float(total_gpus(cluster, name)),
            later=(seconds - least_s) / interval_s,
        )
        for name, seconds in work_s.items()
    ]
    waits_s = (boundary[0] * interval_s - kept.submit_s).mean()
    starts = least_starts(types, stops=stops)
    return float(starts / len(kept) * interval_s + waits_s + least_s.mean())


def least_starts(types: Sequence[Slotted], *, stops: bool = False) -> float:
    """The largest of the lower bounds on the sum of the starts, and of `later`, in slots.

    With `stops` of those that hold for jobs that may be stopped, of ends less lengths.
    """
    release, length = types[0].release, np.minimum.reduce([jobs.length for jobs in types])
    area, capacity = types[0].gpus * length, sum(jobs.capacity for jobs in types)
    completions, _, end = one_machine(release, area, capacity, by_remaining=True)
    if stops:
        return max(release.sum(), completions - length.sum())
    _, busy, _ = one_machine(release, area, capacity, by_remaining=False)
    simple = max(release.sum(), completions - length.sum(), busy - length.sum() / 2)
    if len(types) > 1:  # slower GPUs take longer: prices should last as long
        length = sum(jobs.capacity / capacity * jobs.length for jobs in types)
        end = one_machine(release, types[0].gpus * length, capacity, by_remaining=True)[2]
    return max(simple, priced_starts(types, end, simple))


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
