"""Gangs that are placed without asking the policy: the rest of those that have started, and those over partitions."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from jaxsched.kube.planning.free_capacity import FreeCapacity, Seat
from jaxsched.kube.planning.gangs import Gang
from jaxsched.kube.planning.objects import Pod, Refusal
from jaxsched.kube.planning.placement import Placement


def finish(capacity: FreeCapacity, gang: Gang) -> Placement | Refusal:
    """Place the unbound pods of a gang that has started, all or none, before anything else.

    If they do not fit, one node for each that would fit without our other pods takes no other gang until they do.
    """
    seats = _rest(capacity, gang)
    if len(seats) == len(gang.pending):
        placement = capacity.book(dataclasses.replace(gang, helpers=()), seats, "rest")
        if placement is not None:
            return placement
    free, then = capacity.free_gpus(), capacity.lasting(gang.bound)
    for pod in gang.workers:
        able = [row for row in np.flatnonzero(capacity.eligible(pod)) if then.fits(pod, int(row))]
        if able:
            capacity.closed[max(able, key=lambda row: (free[row], -row))] = True
    short = len(gang.pending) - len(seats)
    return Refusal(
        "GangIncomplete", f"{len(gang.bound)} pods run, {short} of the other {len(gang.pending)} fit nowhere"
    )


def _rest(capacity: FreeCapacity, gang: Gang) -> list[Seat]:
    """Seats near the pods that run, for as many pods in order as there is room for."""
    ledger = capacity.ledger
    near = [ledger.row[pod.node] for pod in gang.bound if pod.node in ledger.row]
    seats: list[Seat] = []
    tried: list[Pod] = []
    for pod in (*gang.workers, *gang.ps, *gang.helpers):
        row = capacity.somewhere(pod, near)
        if row < 0:
            break
        ledger.take(pod, row)
        tried.append(pod)
        seats.append((pod, row, ()))
    for pod in tried:
        ledger.give(pod)
    return seats


def span_large(capacity: FreeCapacity, gangs: Sequence[Gang], is_late: Callable[[Gang], bool]) -> list[Placement]:
    """Place gangs over several partitions that are too large for one, and late ones that no partition has room for.

    A partition is how agents share the work, not a wall. For the first late gang that fits nowhere, but would when
    our own pods have ended, nodes are kept free of others: those with most free GPUs, as many as it then needs.
    """
    placements, keeping = [], False
    for gang in gangs:
        workers, late = capacity.workers(gang), is_late(gang)
        here = capacity.by_partition(workers).max(initial=0)
        if here >= len(gang.workers) or not (late or capacity.largest_partition(gang) < len(gang.workers)):
            continue
        placement = _span(capacity, gang, workers)
        if placement is not None:
            placements.append(placement)
        elif late and not keeping:
            keeping = _keep(capacity, gang, workers)
    return placements


def _span(capacity: FreeCapacity, gang: Gang, workers: np.ndarray) -> Placement | None:
    """Fill nodes of the partition with most room first; None if the gang does not fit. `workers: int[S, K]`, free."""
    by_partition, place = capacity.by_partition(workers), capacity.fleet.place
    order = sorted(range(len(workers)), key=lambda row: (-by_partition[place[row, 0]], -workers[row].sum(), row))
    merged = capacity.merged(gang)
    seats = [
        (row, () if merged else (group,))
        for row in order
        for group in range(workers.shape[1])
        for _ in range(int(workers[row, group]))
    ]
    if len(seats) < len(gang.workers):
        return None
    chosen = [(pod, row, groups) for pod, (row, groups) in zip(gang.workers, seats)]
    return capacity.book(gang, chosen + [(pod, -1, ()) for pod in gang.ps], "span")


def _keep(capacity: FreeCapacity, gang: Gang, workers: np.ndarray) -> bool:
    """Close nodes until the gang fits on them when our own pods have ended; whether that would be enough."""
    then, missing = capacity.workers_then(gang), len(gang.workers)
    if then.sum() < missing:
        return False
    for row in sorted(np.flatnonzero(then), key=lambda row: (-workers[row].sum(), row)):
        if missing > 0:
            capacity.closed[row], missing = True, missing - int(then[row])
    return True
