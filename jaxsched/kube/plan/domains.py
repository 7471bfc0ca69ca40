"""Gangs whose pods must share a topology domain, a value of a node label: they are tried in one after the other.

In a domain a gang is like any other whose pods select its nodes, so that nothing else need know of domains.
"""

import dataclasses

import numpy as np

from jaxsched.kube.capacity.free_capacity import FreeCapacity
from jaxsched.kube.plan.explain import Explanations
from jaxsched.kube.read.gangs import Gang
from jaxsched.kube.read.objects import Pod, Refusal


def in_domain(gang: Gang, value: str) -> Gang:
    """The gang with its pods selecting the nodes of one domain."""

    def there(pods: tuple[Pod, ...]) -> tuple[Pod, ...]:
        return tuple(dataclasses.replace(pod, selector={**pod.selector, gang.topology: value}) for pod in pods)

    parts = {name: there(getattr(gang, name)) for name in ("pending", "workers", "ps", "helpers", "extra")}
    return dataclasses.replace(gang, **parts)


def with_its_bound_pods(capacity: FreeCapacity, gang: Gang) -> Gang | Refusal:
    """The gang in the domain in which some of its pods run."""
    rows = [capacity.ledger.row.get(pod.node, -1) for pod in gang.bound]
    values = {capacity.nodes[row].labels.get(gang.topology, "") if row >= 0 else "" for row in rows}
    if len(values) > 1 or "" in values:
        text = f"its PodGroup wants one domain of {gang.topology}, but its pods run on nodes of several, or of none"
        return Refusal("TopologyBroken", text)
    return in_domain(gang, values.pop())


def domains(capacity: FreeCapacity, gang: Gang) -> list[Gang]:
    """The gang in each domain that has room for all its workers now, the fullest first."""
    found = [(int(capacity.workers(one).sum()), value, one) for value, one in _in_each(capacity, gang)]
    fitting = [entry for entry in found if entry[0] >= len(gang.workers)]
    return [one for _, _, one in sorted(fitting, key=lambda entry: entry[:2])]


def domains_of_mixed(capacity: FreeCapacity, gang: Gang) -> list[Gang]:
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
    return [in_domain(gang, value) for value in order]


def why_in_no_domain(capacity: FreeCapacity, gang: Gang, policy: str) -> tuple[Gang | None, Refusal]:
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
    return [(value, in_domain(gang, value)) for value in sorted(values)]
