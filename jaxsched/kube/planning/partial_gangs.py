"""The rest of gangs of which some pods are bound: placed before anything else, without asking the policy."""

import dataclasses

import numpy as np

from jaxsched.kube.planning.free_capacity import FreeCapacity, Target
from jaxsched.kube.planning.gangs import Gang
from jaxsched.kube.planning.objects import Pod, Refusal
from jaxsched.kube.planning.placement import Placement


def place_rest(capacity: FreeCapacity, gang: Gang) -> Placement | Refusal:
    """Place the unbound pods of a gang that has started, all or none.

    If they do not fit, one node for each that would fit without our other pods takes no other gang until they do.
    """
    targets = _rest_targets(capacity, gang)
    if len(targets) == len(gang.pending):
        placement = capacity.reserve(dataclasses.replace(gang, helpers=()), targets, "rest")
        if placement is not None:
            return placement
    free, then = capacity.free_gpus(), capacity.ledger_without_own_pods(gang.bound)
    for pod in gang.workers:
        able = [row for row in np.flatnonzero(capacity.eligible(pod)) if then.fits(pod, int(row))]
        if able:
            capacity.closed[max(able, key=lambda row: (free[row], -row))] = True
    short = len(gang.pending) - len(targets)
    return Refusal(
        "GangIncomplete", f"{len(gang.bound)} pods run, {short} of the other {len(gang.pending)} fit nowhere"
    )


def _rest_targets(capacity: FreeCapacity, gang: Gang) -> list[Target]:
    """Targets near the pods that run, for as many pods in order as there is room for."""
    ledger = capacity.ledger
    near = [ledger.row[pod.node] for pod in gang.bound if pod.node in ledger.row]
    targets: list[Target] = []
    tried: list[Pod] = []
    for pod in (*gang.workers, *gang.ps, *gang.helpers):
        row = capacity.node_near(pod, near)
        if row < 0:
            break
        ledger.reserve(pod, row)
        tried.append(pod)
        targets.append((pod, row, ()))
    for pod in tried:
        ledger.release(pod)
    return targets
