"""Gangs over several partitions: placed without asking the policy, whose agents see one partition each."""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Int

from jaxsched.kube.capacity.free_capacity import FreeCapacity
from jaxsched.kube.capacity.placement import Placement
from jaxsched.kube.plan.faults import about
from jaxsched.kube.read.gangs import Gang


def span_partitions(capacity: FreeCapacity, gangs: Sequence[Gang], is_late: Callable[[Gang], bool]) -> list[Placement]:
    """Place gangs over several partitions that are too large for one, and late ones that no partition has room for.

    A partition is how agents share the work, not a wall. For the first late gang that fits nowhere, but would when
    our own pods have ended, nodes are kept free of others: those with most free GPUs, as many as it then needs.
    """
    placements, keeping = [], False
    for gang in gangs:
        with about([gang]):
            workers, late = capacity.workers(gang), is_late(gang)
            here = capacity.by_partition(workers).max(initial=0)
            if here >= len(gang.workers) or not (late or capacity.largest_partition(gang) < len(gang.workers)):
                continue
            placement = span(capacity, gang, workers)
            if placement is not None:
                placements.append(placement)
            elif late and not keeping:
                keeping = keep_nodes(capacity, gang, workers)
    return placements


def span(capacity: FreeCapacity, gang: Gang, workers: Int[np.ndarray, "S K"]) -> Placement | None:
    """Fill nodes of the partition with most room first; None if the gang does not fit. `workers`: so many fit now."""
    by_partition, place = capacity.by_partition(workers), capacity.fleet.place
    score = capacity.preferences.of_all(gang.workers, capacity.allowed(gang.workers[0]))
    rank = lambda row: (-by_partition[place[row, 0]], -workers[row].sum(), -score[row], row)
    order = sorted(range(len(workers)), key=rank)
    merged = capacity.merged(gang)
    targets = [
        (row, () if merged else (group,))
        for row in order
        for group in range(workers.shape[1])
        for _ in range(int(workers[row, group]))
    ]
    if len(targets) < len(gang.workers):
        return None
    chosen = [(pod, row, groups) for pod, (row, groups) in zip(gang.workers, targets)]
    return capacity.reserve(gang, chosen + [(pod, -1, ()) for pod in gang.ps], "span")


def keep_nodes(capacity: FreeCapacity, gang: Gang, workers: Int[np.ndarray, "S K"]) -> bool:
    """Close nodes until the gang fits on them when our own pods have ended; whether that would be enough."""
    then, missing = capacity.workers_without_own_pods(gang), len(gang.workers)
    if then.sum() < missing:
        return False
    for row in sorted(np.flatnonzero(then), key=lambda row: (-workers[row].sum(), row)):
        if missing > 0:
            capacity.keep(row, gang)
            missing -= int(then[row])
    return True
