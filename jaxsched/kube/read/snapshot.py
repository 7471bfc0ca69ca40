"""What a plan is made from: the cluster's objects at one moment.

Of volumes: claims that are bound, and the nodes on which their volumes can be used; the rest is refused by name.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from jaxsched.kube.read.gangs import Gang
from jaxsched.kube.read.groups import Owner, PodGroup
from jaxsched.kube.read.objects import Node, Pod, Refusal, mapping, mappings, selector_matches

# Labels of volumes that bind them to a zone, as upstream's filter VolumeZone reads them; values are joined with "__".
# Of each the older name comes second, and stands for the first. A node without any of them is in every zone.
ZONE_LABELS = tuple(
    (f"topology.kubernetes.io/{kind}", f"failure-domain.beta.kubernetes.io/{kind}") for kind in ("zone", "region")
)


@dataclasses.dataclass(frozen=True)
class VolumeClaim:
    """A PersistentVolumeClaim: its volume, what stands in the way of using it ("": nothing), ReadWriteOncePod."""

    volume: str = ""
    trouble: str = ""
    one_pod: bool = False


@dataclasses.dataclass(frozen=True)
class Volume:
    """A PersistentVolume: node selector terms, of which all of one entry are alternatives and every entry must hold."""

    affinity: tuple[tuple, ...] = ()


def read_volume_claim(raw: Mapping[str, Any]) -> tuple[str, VolumeClaim]:
    """(namespace/name, the claim)."""
    meta, spec, status = mapping(raw, "metadata"), mapping(raw, "spec"), mapping(raw, "status")
    key = f"{meta.get('namespace', 'default')}/{meta.get('name', '')}"
    trouble = ""
    if status.get("phase") != "Bound":
        trouble = "is not bound (WaitForFirstConsumer is not supported: use a class that binds at once)"
    elif meta.get("deletionTimestamp"):
        trouble = "is being deleted"
    modes = spec.get("accessModes")
    return key, VolumeClaim(
        str(spec.get("volumeName") or ""), trouble, isinstance(modes, list) and "ReadWriteOncePod" in modes
    )


def read_volume(raw: Mapping[str, Any]) -> tuple[str, Volume]:
    """(name, the volume)."""
    meta, spec = mapping(raw, "metadata"), mapping(raw, "spec")
    required = mapping(mapping(spec, "nodeAffinity"), "required")
    affinity = [tuple(mappings(required, "nodeSelectorTerms"))] if required else []
    without = [{"key": label, "operator": "DoesNotExist"} for names in ZONE_LABELS for label in names]
    for label, zones in mapping(meta, "labels").items():
        for names in ZONE_LABELS:
            if label in names:
                wanted = [{"key": name, "operator": "In", "values": str(zones).split("__")} for name in names]
                affinity.append(tuple({"matchExpressions": one} for one in ([wanted[0]], [wanted[1]], without)))
    return str(meta.get("name", "")), Volume(tuple(affinity))


def add_volume_affinity(
    pods: Iterable[Pod], claims: Mapping[str, VolumeClaim], volumes: Mapping[str, Volume]
) -> tuple[Pod, ...]:
    """The pods, each with the node affinity of all its volumes."""

    def placed_by(pod: Pod) -> Pod:
        if pod.node or not pod.volume_claims:
            return pod
        own = [claims[key].volume for key in _keys(pod) if key in claims]
        terms = tuple(entry for name in own if name in volumes for entry in volumes[name].affinity)
        return dataclasses.replace(pod, volume_affinity=terms)

    return tuple(map(placed_by, pods))


def find_unusable_volume(
    gang: Gang, pods: Iterable[Pod], claims: Mapping[str, VolumeClaim], volumes: Mapping[str, Volume]
) -> Refusal | None:
    """Why the gang cannot have its volumes; None if it can. `pods`: all of the cluster."""
    for pod in gang.pending:
        for key in _keys(pod):
            claim = claims.get(key, VolumeClaim(trouble="does not exist"))
            trouble = claim.trouble
            if not trouble and claim.volume not in volumes:
                trouble = f"is bound to the volume {claim.volume!r}, which does not exist"
            if not trouble and claim.one_pod:
                others = (other for other in pods if other.uid != pod.uid and key in _keys(other))
                user = next((other for other in others if other.node or other in gang.pending), None)
                trouble = f"is ReadWriteOncePod and pod {user.key} has it" if user is not None else ""
            if trouble:
                name = key.partition("/")[2]
                return Refusal("VolumeUnsupported", f"pod {pod.key}: persistent volume claim {name} {trouble}")
    return None


def _keys(pod: Pod) -> list[str]:
    return [f"{pod.namespace}/{claim}" for claim in pod.volume_claims]


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
