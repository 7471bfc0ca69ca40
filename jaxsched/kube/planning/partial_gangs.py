"""Pods that the policy is not asked about: the rest of gangs that have started, and pods beyond a gang's minimum."""

from collections.abc import Sequence

import numpy as np

from jaxsched.kube.planning.free_capacity import FreeCapacity, Target
from jaxsched.kube.planning.gangs import Gang
from jaxsched.kube.planning.objects import Pod, Refusal
from jaxsched.kube.planning.placement import Assignment, Placement, decision_id


def place_rest(capacity: FreeCapacity, gang: Gang) -> Placement | Refusal:
    """Place the unbound pods that a gang which has started cannot do without, all or none.

    If they do not fit, one node for each that would fit without our other pods takes no other gang until they do.
    """
    targets = _targets(capacity, gang.together, _rows(capacity, gang.bound))
    placement = capacity.placement(gang, targets, "rest") if len(targets) == len(gang.together) else None
    if placement is not None:
        return placement
    free, then = capacity.free_gpus(), capacity.ledger_without_own_pods(gang.bound)
    for pod in gang.workers:
        able = [row for row in np.flatnonzero(capacity.eligible(pod)) if then.fits(pod, int(row))]
        if able:
            capacity.keep(max(able, key=lambda row: (free[row], -row)), gang)
    short = len(gang.together) - len(targets)
    return Refusal(
        "GangIncomplete", f"{len(gang.bound)} pods run, {short} of the other {len(gang.together)} fit nowhere"
    )


def place_extra(capacity: FreeCapacity, gang: Gang, placed: Placement | None) -> Placement | Refusal | None:
    """Place pods beyond the gang's minimum, each where it fits; nothing is kept for the others.

    `placed` is where the plan puts the minimum, None if that runs already. None if there are no such pods.
    """
    before = placed.assignments if placed is not None else ()
    nodes = {pod.node for pod in gang.bound} | {one.node for one in before}
    near = [capacity.ledger.row[name] for name in nodes if name in capacity.ledger.row]
    more: list[Assignment] = []
    for pod in gang.extra:
        row = capacity.node_near(pod, near)
        if row >= 0:
            more.append(Assignment(pod, capacity.nodes[row].name, capacity.ledger.reserve(pod, row)))
            near.append(row)
    assignments = (*before, *more)
    if assignments:
        by = placed.by if placed is not None else "extra"
        return Placement(gang, assignments, decision_id(assignments), by)
    if not gang.extra:
        return None
    text = f"{len(gang.bound)} pods run, as many as must; none of the other {len(gang.extra)} fits a node now"
    return Refusal("Insufficient", text)


def _rows(capacity: FreeCapacity, pods: Sequence[Pod]) -> list[int]:
    return [capacity.ledger.row[pod.node] for pod in pods if pod.node in capacity.ledger.row]


def _targets(capacity: FreeCapacity, pods: Sequence[Pod], near: list[int]) -> list[Target]:
    """Targets near those rows, for as many pods in order as there is room for."""
    targets: list[Target] = []
    for pod in pods:
        row = capacity.node_near(pod, near)
        if row < 0:
            break
        capacity.ledger.reserve(pod, row)
        targets.append((pod, row, ()))
    for pod, _, _ in targets:
        capacity.ledger.release(pod)
    return targets
