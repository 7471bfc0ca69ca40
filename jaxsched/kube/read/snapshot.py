"""What a plan is made from: the cluster's objects at one moment."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxsched.kube.read.objects import Node, Pod, mapping
from jaxsched.kube.read.owners import Owner
from jaxsched.kube.read.pod_groups import PodGroup
from jaxsched.kube.read.selectors import selector_matches
from jaxsched.kube.read.volumes import Volume, VolumeClaim


@dataclasses.dataclass(frozen=True)
class Budget:
    """A PodDisruptionBudget; `allowed` is 0 while its status is older than the object, as for the API server."""

    namespace: str
    name: str
    selector: Mapping[str, Any] | None  # raw; None matches nothing, an empty one everything
    allowed: int

    def concerns(self, pod: Pod) -> bool:
        """The pod counts against it."""
        return (
            pod.namespace == self.namespace
            and self.selector is not None
            and selector_matches(self.selector, pod.labels)
        )


def read_budget(raw: Mapping[str, Any]) -> Budget:
    """A budget from its JSON; what cannot be read allows nothing."""
    meta, spec, status = mapping(raw, "metadata"), mapping(raw, "spec"), mapping(raw, "status")
    generation, seen, allowed = (
        meta.get("generation"),
        status.get("observedGeneration"),
        status.get("disruptionsAllowed"),
    )
    current = isinstance(seen, int) and isinstance(generation, int) and seen >= generation
    return Budget(
        namespace=str(meta.get("namespace", "default")),
        name=str(meta.get("name", "")),
        selector=mapping(spec, "selector") if isinstance(spec.get("selector"), Mapping) else None,
        allowed=max(allowed, 0) if current and isinstance(allowed, int) else 0,
    )


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """All nodes and all pods of all schedulers that are not done. Bound pods hold resources, whoever bound them."""

    now_s: float
    nodes: tuple[Node, ...]
    pods: tuple[Pod, ...]
    groups: tuple[PodGroup, ...] = ()
    owners: tuple[Owner, ...] = ()
    served: frozenset[str] = frozenset()  # APIs of PodGroups and kinds of owners that the cluster has
    volume_claims: Mapping[str, VolumeClaim] = dataclasses.field(default_factory=dict)  # by namespace/name
    volumes: Mapping[str, Volume] = dataclasses.field(default_factory=dict)  # by name
    budgets: tuple[Budget, ...] = ()
    making_room: frozenset[str] = frozenset()  # keys of gangs for which others were evicted of late
