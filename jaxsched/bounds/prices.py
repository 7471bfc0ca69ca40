"""A lower bound on the sum of starts by prices for GPUs: the Lagrangian dual of the time-indexed program.

Whatever non-negative prices per GPU and slot are announced, no schedule has a smaller sum of starts than when every job
chooses the start that minimises its start plus what it pays, less what all GPUs would earn (docs/bound.md, bound 4). So
any prices give a bound; they are improved by subgradient steps, where too many GPUs are asked for they rise.
"""

import dataclasses

import numpy as np
from jaxtyping import Float64, Int

CELLS = 2048  # prices are constant over cells of time, at most so many
LENGTHS = 192  # different lengths that are told apart; others are rounded down
STEPS = 100  # of the subgradient method, by Polyak's rule towards a target that is lowered when it is missed:
REACH = 0.05  # the first target lies so far above, as a share of the sum of lengths,
GAIN = 1e-3  # a step counts that gains this share of the way,
PATIENCE = 3  # and after more misses than that in a row the target is lowered by half


@dataclasses.dataclass(frozen=True)
class Slotted:
    """Jobs in whole slots of time, in order of release."""

    release: Float64[np.ndarray, "J"]  # slot of the first possible start, from 0
    length: Float64[np.ndarray, "J"]  # slots that the gang is held at least
    gpus: Float64[np.ndarray, "J"]  # of the gang
    capacity: float  # GPUs of the cluster


@dataclasses.dataclass(frozen=True)
class Kind:
    """The jobs of one (rounded) length."""

    length: float
    gpus: Float64[np.ndarray, "g"]  # the different gangs, ascending
    jobs: Int[np.ndarray, "j"]  # which
    gang: Int[np.ndarray, "j"]  # index into `gpus`


def priced_starts(jobs: Slotted, end: float, known: float) -> float:
    """The best bound found on the sum of starts, in slots.

    Args: `end`: a slot by which the cluster could have done all work; prices are 0 after it. `known`: another bound,
    which sets how far the steps aim at first.
    """
    slots = max(int(np.ceil(end)), 1)
    width = -(-slots // CELLS)
    kinds, price = kinds_of(jobs), np.zeros(-(-slots // width))
    reach = max(known - jobs.release.sum(), REACH * jobs.length.sum())
    best, misses, start, excess_there = -np.inf, 0, price, price
    for _ in range(STEPS):
        bound, excess = answer(jobs, kinds, width, price)
        misses = 0 if bound > best + GAIN * reach else misses + 1
        if bound > best:
            best, start, excess_there = bound, price, excess
        if misses > PATIENCE:  # from the best prices again, with a nearer target
            reach, misses, price, excess, bound = reach / 2, 0, start, excess_there, best
        uphill = np.where((price <= 0) & (excess < 0), 0.0, excess)  # no price is below 0
        norm = float(uphill @ uphill)
        if norm == 0:  # everyone is served at these prices
            break
        price = np.maximum(price + (best + reach - bound) / norm * uphill, 0.0)
    return best


def kinds_of(jobs: Slotted) -> list[Kind]:
    """The jobs by length; of more than `LENGTHS` lengths, neighbours count as the shortest of them."""
    length = jobs.length
    if len(np.unique(length)) > LENGTHS:
        logs = np.log(length)
        bucket = np.floor((logs - logs.min()) / (np.ptp(logs) / LENGTHS + 1e-12)).astype(int)
        shortest = np.full(bucket.max() + 1, np.inf)
        np.minimum.at(shortest, bucket, length)
        length = shortest[bucket]
    kinds = []
    for one in np.unique(length):
        index = np.flatnonzero(length == one)
        gpus, gang = np.unique(jobs.gpus[index], return_inverse=True)
        kinds.append(Kind(float(one), gpus, index, gang))
    return kinds


def answer(
    jobs: Slotted, kinds: list[Kind], width: int, price: Float64[np.ndarray, "cells"]
) -> tuple[float, Float64[np.ndarray, "cells"]]:
    """The bound of these prices, and the GPU-slots asked for beyond the capacity in every cell."""
    cells = len(price)
    edges = np.arange(cells + 1) * float(width)
    paid = np.concatenate([[0.0], np.cumsum(price) * width])  # by one GPU from the start to an edge
    start, length = np.empty(len(jobs.release)), np.empty(len(jobs.release))
    total = 0.0
    for kind in kinds:
        release, gpus = jobs.release[kind.jobs], kind.gpus[kind.gang]
        pay = np.interp(release + kind.length, edges, paid) - np.interp(release, edges, paid)
        cost, choice = release + gpus * pay, release
        # Between its kinks the cost of a start is linear: at a kink the start or the end lies on an edge.
        from_edge = np.interp(edges + kind.length, edges, paid) - paid
        to_edge = paid - np.interp(edges - kind.length, edges, paid)
        for begin, pay in ((edges, from_edge), (edges - kind.length, to_edge)):
            least, where = _least_from(begin + kind.gpus[:, None] * pay)
            first = np.ceil((release - begin[0]) / width).astype(int)
            inside = first <= cells
            first = np.minimum(first, cells)
            other = np.where(inside, least[kind.gang, first], np.inf)
            choice = np.where(other < cost, begin[where[kind.gang, first]], choice)
            cost = np.minimum(cost, other)
        total += float(cost.sum())
        start[kind.jobs], length[kind.jobs] = choice, kind.length
    asked = _used(start, jobs.gpus, edges) - _used(start + length, jobs.gpus, edges)
    return total - jobs.capacity * float(paid[-1]), np.diff(asked) - jobs.capacity * width


def _least_from(cost: Float64[np.ndarray, "g k"]) -> tuple[Float64[np.ndarray, "g k"], Int[np.ndarray, "g k"]]:
    """Least of `cost[g, k:]`, and the first place of it, for every k."""
    least = np.minimum.accumulate(cost[:, ::-1], 1)[:, ::-1]
    places = np.where(cost <= least, np.arange(cost.shape[1]), cost.shape[1])
    return least, np.minimum.accumulate(places[:, ::-1], 1)[:, ::-1]


def _used(
    start: Float64[np.ndarray, "J"], gpus: Float64[np.ndarray, "J"], edges: Float64[np.ndarray, "k"]
) -> Float64[np.ndarray, "k"]:
    """GPU-slots used before each edge by gangs that start at `start` and never end."""
    after = np.searchsorted(edges, start)  # the first edge at or after the start
    count = len(edges) + 1
    held = np.cumsum(np.bincount(after, gpus, count))[:-1]
    return held * edges - np.cumsum(np.bincount(after, gpus * start, count))[:-1]
