"""What is placed without asking the policy, or in one topology domain at a time.

Pods of gangs that have started, whose workers differ, beyond a minimum, or over several partitions. A gang that wants
one value of a node label is tried in one domain after the other: there it is like any gang whose pods select its nodes.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Int

from jaxsched.kube.capacity.free_capacity import Assignment, FreeCapacity, Placement, Target, decision_id
from jaxsched.kube.plan.explain import Explanations, blame, explain_no_node
from jaxsched.kube.read.gangs import Gang
from jaxsched.kube.read.objects import Pod, Refusal


def restrict_to_domain(gang: Gang, value: str) -> Gang:
    """The gang with its pods selecting the nodes of one domain."""

    def there(pods: tuple[Pod, ...]) -> tuple[Pod, ...]:
        return tuple(dataclasses.replace(pod, selector={**pod.selector, gang.topology: value}) for pod in pods)

    parts = {name: there(getattr(gang, name)) for name in ("pending", "workers", "ps", "helpers", "extra")}
    return dataclasses.replace(gang, **parts)


def restrict_to_bound_pods(capacity: FreeCapacity, gang: Gang) -> Gang | Refusal:
    """The gang in the domain in which some of its pods run."""
    rows = [capacity.ledger.row.get(pod.node, -1) for pod in gang.bound]
    values = {capacity.nodes[row].labels.get(gang.topology, "") if row >= 0 else "" for row in rows}
    if len(values) > 1 or "" in values:
        text = f"its PodGroup wants one domain of {gang.topology}, but its pods run on nodes of several, or of none"
        return Refusal("TopologyBroken", text)
    return restrict_to_domain(gang, values.pop())


def list_domains(capacity: FreeCapacity, gang: Gang) -> list[Gang]:
    """The gang in each domain that has room for all its workers now, the fullest first."""
    found = [(int(capacity.workers(one).sum()), value, one) for value, one in _in_each(capacity, gang)]
    fitting = [entry for entry in found if entry[0] >= len(gang.workers)]
    return [one for _, _, one in sorted(fitting, key=lambda entry: entry[:2])]


def list_domains_of_mixed(capacity: FreeCapacity, gang: Gang) -> list[Gang]:
    """A gang whose workers differ, in each domain that some of them may use: the fewest free GPUs that suffice first.

    Domains with too few come last, the one with most of them first.
    """
    needed = sum(pod.units(capacity.settings.gpu_resource) for pod in gang.workers)
    allowed = np.any([capacity.allowed(pod) for pod in gang.workers], axis=0)
    free = np.where(allowed, np.maximum(capacity.free_gpus(), 0), 0)[: len(capacity.fleet.nodes)]
    by_value: dict[str, int] = {}
    for row in np.flatnonzero(allowed[: len(free)]):
        value = capacity.nodes[row].labels.get(gang.topology, "")
        by_value[value] = by_value.get(value, 0) + int(free[row])
    by_value.pop("", None)
    order = sorted(by_value, key=lambda one: (by_value[one] < needed, abs(by_value[one] - needed), one))
    return [restrict_to_domain(gang, value) for value in order]


def explain_no_domain(capacity: FreeCapacity, gang: Gang, policy: str) -> tuple[Gang | None, Refusal]:
    """The gang in the domain that comes nearest to holding it, None if there is no domain, and why it does not."""
    ranked = []
    for value, one in _in_each(capacity, gang):
        then = capacity.workers_without_own_pods(one).sum()
        ranked.append((min(int(then), len(gang.workers)), int(capacity.workers(one).sum()), value, one))
    if not ranked:
        return None, Refusal("NoNodeAllowed", f"no node that it may use has the label {gang.topology}")
    *_, value, best = max(ranked, key=lambda entry: entry[:3])
    reason = Explanations(capacity, policy).why_not(best)
    text = f"{gang.topology}: no one of {len(ranked)} domains holds it; nearest is {value}: {reason.message}"
    return best, Refusal(reason.reason, text)


def _in_each(capacity: FreeCapacity, gang: Gang) -> list[tuple[str, Gang]]:
    """The gang in every domain of which it may use some GPU node."""
    rows = np.flatnonzero(capacity.allowed(gang.workers[0])[: len(capacity.fleet.nodes)])
    values = {capacity.nodes[row].labels.get(gang.topology, "") for row in rows} - {""}
    return [(value, restrict_to_domain(gang, value)) for value in sorted(values)]


def place_rest(capacity: FreeCapacity, gang: Gang) -> Placement | Refusal:
    """Place the unbound pods that a gang which has started cannot do without, all or none.

    If they do not fit, one node for each that would fit without our other pods takes no other gang until they do.
    """
    targets, problem = _targets(capacity, gang.together, _rows(capacity, {pod.node for pod in gang.bound}))
    placement = None if problem else capacity.place_pods(gang, targets, "rest")
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
    placement = None if problem else capacity.place_pods(gang, targets, "each")
    if placement is not None:
        return placement
    if keep:
        _keep_nodes(capacity, gang)
    return Refusal("Insufficient", f"its workers differ; {len(targets)} of {len(gang.together)} pods fit, {problem}")


def may_fit(capacity: FreeCapacity, gang: Gang) -> bool:
    """Whether a gang for which arrays have no room may find some pod by pod; exact if its workers ask for the same.

    In arrays a worker lies in one group of its node's GPUs, and all ask for what the largest one does.
    """
    asks = [capacity.ledger.vector([pod]) for pod in {pod.requests: pod for pod in gang.workers}.values()]
    if not asks or any(one is None for one in asks):
        return False
    least = np.min(np.array(asks), axis=0)
    free = np.maximum(capacity.ledger.free[capacity.eligible(gang.workers[0])], 0)
    fitting = (free[:, least > 0] // least[least > 0]).min(1, initial=len(gang.workers)).sum()
    return bool(capacity.workers(gang).sum() < len(gang.workers) <= fitting)


def fits_pod_by_pod(capacity: FreeCapacity, gang: Gang) -> bool:
    """Whether each pod of a gang finds room; nothing is reserved."""
    _, problem = _targets(capacity, gang.together, [])
    return not problem


def place_each_in_domain(capacity: FreeCapacity, gang: Gang, keep: bool) -> tuple[Gang, Placement | Refusal]:
    """The same in the first domain that holds it, and the gang in that domain. `keep`: else nodes of the nearest."""
    found = list_domains_of_mixed(capacity, gang)
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
            more.append(Assignment(pod, capacity.nodes[row].name, capacity.ledger.take(pod, row)))
            near.append(row)
    assignments = (*before, *more)
    if assignments:
        by = placed.by if placed is not None else "extra"
        return Placement(gang, assignments, decision_id(assignments), by)
    if not gang.extra:
        return None
    why = explain_no_node(capacity, gang.extra[0])
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
            problem = explain_no_node(capacity, pod)
            break
        capacity.ledger.take(pod, row)
        targets.append((pod, row, ()))
        near.append(row)
    for pod, _, _ in targets:
        capacity.ledger.release(pod)
    return targets, problem


def span_partitions(capacity: FreeCapacity, gangs: Sequence[Gang], is_late: Callable[[Gang], bool]) -> list[Placement]:
    """Place gangs over several partitions that are too large for one, and late ones that no partition has room for.

    A partition is how agents share the work, not a wall. For the first late gang that fits nowhere, but would when
    our own pods have ended, nodes are kept free of others: those with most free GPUs, as many as it then needs.
    """
    placements, keeping = [], False
    for gang in gangs:
        with blame([gang]):
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
    return capacity.place(gang, chosen + [(pod, -1, ()) for pod in gang.ps], "span")


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
