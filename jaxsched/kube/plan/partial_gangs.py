"""Pods that the policy is not asked about: of gangs that have started, or whose workers differ, or beyond a minimum."""

from collections.abc import Sequence

import numpy as np

from jaxsched.kube.capacity.free_capacity import FreeCapacity, Target
from jaxsched.kube.capacity.placement import Assignment, Placement, decision_id
from jaxsched.kube.plan.domains import domains_of_mixed
from jaxsched.kube.plan.explain import fits_nowhere
from jaxsched.kube.read.gangs import Gang
from jaxsched.kube.read.objects import Pod, Refusal


def place_rest(capacity: FreeCapacity, gang: Gang) -> Placement | Refusal:
    """Place the unbound pods that a gang which has started cannot do without, all or none.

    If they do not fit, one node for each that would fit without our other pods takes no other gang until they do.
    """
    targets, problem = _targets(capacity, gang.together, _rows(capacity, {pod.node for pod in gang.bound}))
    placement = None if problem else capacity.placement(gang, targets, "rest")
    if placement is not None:
        return placement
    _keep_nodes(capacity, gang)
    short = len(gang.together) - len(targets)
    return Refusal(
        "GangIncomplete",
        f"{len(gang.bound)} pods run, {short} of the other {len(gang.together)} fit nowhere: {problem}",
    )


def place_each(capacity: FreeCapacity, gang: Gang, keep: bool) -> Placement | Refusal:
    """Place a gang whose workers differ, those that fewest nodes may take first, then the largest; all or none.

    `keep`: if they do not fit, keep nodes as for the rest of a gang that has started.
    """
    workers = sorted(
        gang.workers, key=lambda pod: (int(capacity.allowed(pod).sum()), -pod.units(capacity.settings.gpu_resource))
    )
    targets, problem = _targets(capacity, [*workers, *gang.ps, *gang.helpers], [])
    placement = None if problem else capacity.placement(gang, targets, "each")
    if placement is not None:
        return placement
    if keep:
        _keep_nodes(capacity, gang)
    return Refusal("Insufficient", f"its workers differ; {len(targets)} of {len(gang.together)} pods fit, {problem}")


def place_each_in_domain(capacity: FreeCapacity, gang: Gang, keep: bool) -> tuple[Gang, Placement | Refusal]:
    """The same in the first domain that holds it, and the gang in that domain. `keep`: else nodes of the nearest."""
    found = domains_of_mixed(capacity, gang)
    if not found:
        return gang, Refusal("NoNodeAllowed", f"no node that it may use has the label {gang.topology}")
    for there in found:
        placed = place_each(capacity, there, keep=False)
        if isinstance(placed, Placement):
            return there, placed
    why = place_each(capacity, found[0], keep)
    if isinstance(why, Refusal):
        value = found[0].workers[0].selector[gang.topology]
        text = f"{gang.topology}: no one of {len(found)} domains holds it; in {value}: {why.message}"
        why = Refusal(why.reason, text)
    return found[0], why


def place_extra(capacity: FreeCapacity, gang: Gang, placed: Placement | None) -> Placement | Refusal | None:
    """Place pods beyond the gang's minimum, each where it fits; nothing is kept for the others.

    `placed` is where the plan puts the minimum, None if that runs already. None if there are no such pods.
    """
    before = placed.assignments if placed is not None else ()
    near = _rows(capacity, {pod.node for pod in gang.bound} | {one.node for one in before})
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
    why = fits_nowhere(capacity, gang.extra[0])
    return Refusal("Insufficient", f"{len(gang.bound)} pods run, as many as must; of {len(gang.extra)} others {why}")


def _keep_nodes(capacity: FreeCapacity, gang: Gang) -> None:
    free, then = capacity.free_gpus(), capacity.ledger_without_own_pods(gang.bound)
    for pod in gang.workers:
        able = [row for row in np.flatnonzero(capacity.eligible(pod)) if then.fits(pod, int(row))]
        if able:
            capacity.keep(max(able, key=lambda row: (free[row], -row)), gang)


def _rows(capacity: FreeCapacity, names: set[str]) -> list[int]:
    return [capacity.ledger.row[name] for name in sorted(names) if name in capacity.ledger.row]


def _targets(capacity: FreeCapacity, pods: Sequence[Pod], near: list[int]) -> tuple[list[Target], str]:
    """Targets near those rows and near each other, for as many pods in order as there is room for; what has none."""
    targets: list[Target] = []
    problem, near = "", list(near)
    for pod in pods:
        row = capacity.node_near(pod, near)
        if row < 0:
            problem = fits_nowhere(capacity, pod)
            break
        capacity.ledger.reserve(pod, row)
        targets.append((pod, row, ()))
        near.append(row)
    for pod, _, _ in targets:
        capacity.ledger.release(pod)
    return targets, problem
