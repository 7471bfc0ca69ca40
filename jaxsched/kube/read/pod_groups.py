"""PodGroups of three APIs: what of them is honoured, and what is refused by name.

Upstream's has changed with every version (KEP-4671, KEP-5732, KEP-5710): v1alpha2 in 1.36, then v1alpha3 and v1beta1.
A field that is not known here may be a constraint, so it is refused, never ignored.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxsched.kube.read.objects import MOST_PRIORITY, Refusal, mapping, mappings

UPSTREAM, COSCHEDULING, VOLCANO = "scheduling.k8s.io", "scheduling.x-k8s.io", "scheduling.volcano.sh"
MOST_PODS = 2**31 - 1  # of a PodGroup's minimum
SCHEDULED = "PodGroupScheduled"  # upstream's condition

# Upstream's fields that are honoured, or that say nothing about where or when pods may start.
UPSTREAM_FIELDS = {
    *("schedulingPolicy", "schedulingConstraints", "disruptionMode", "priority", "priorityClassName"),
    *("preemptionPolicy", "podGroupTemplateRef", "resourceClaims"),
}


@dataclasses.dataclass(frozen=True)
class PodGroup:
    """A PodGroup of any of the three APIs."""

    api: str  # UPSTREAM, COSCHEDULING or VOLCANO
    namespace: str
    name: str
    minimum: int  # pods that must start together; further ones start as they fit
    uid: str = ""
    version: str = ""  # of the API, as the object came
    owner_uid: str = ""  # of its controller
    priority: int | None = None  # in place of its pods'
    topology: str = ""  # node label; all of its pods go to nodes with one value of it
    whole: bool = False  # no pod starts without all others that are there
    phase: str = ""  # Volcano's
    refusal: Refusal | None = None
    preempts: bool | None = None  # whether others may be evicted for it, in place of what its pods say
    preemptable: bool = True  # Volcano's; whether it may be evicted for others
    said: tuple[str, str] = ("", "")  # status and message of upstream's condition PodGroupScheduled

    @property
    def key(self) -> str:
        """The key of its gang."""
        return f"{self.namespace}/{self.api}/{self.name}"


def read_pod_group(raw: Mapping[str, Any]) -> PodGroup:
    """A PodGroup from its JSON; an unreadable minimum counts as 1, and so does upstream's policy `basic`."""
    meta, spec = mapping(raw, "metadata"), mapping(raw, "spec")
    api, _, version = str(raw.get("apiVersion", "")).partition("/")
    policy = mapping(spec, "schedulingPolicy") or mapping(spec, "policy")
    minimum = spec.get("minMember") or mapping(policy, "gang").get("minCount") or 1
    minimum = minimum if _is_whole(minimum) and minimum > 0 else 1
    tasks = [count for count in mapping(spec, "minTaskMember").values() if _is_whole(count) and count > 0]
    controller = next((o for o in mappings(meta, "ownerReferences") if o.get("controller")), {})
    constraints = mappings(mapping(spec, "schedulingConstraints"), "topology") if api == UPSTREAM else []
    return PodGroup(
        api=api,
        namespace=str(meta.get("namespace", "default")),
        name=str(meta.get("name", "")),
        minimum=min(max(minimum, sum(tasks)), MOST_PODS),
        uid=str(meta.get("uid", "")),
        version=version,
        owner_uid=str(controller.get("uid", "")),
        priority=_priority(spec.get("priority")) if api == UPSTREAM else None,
        topology=str(constraints[0].get("key", "")) if constraints else "",
        whole=bool(tasks),  # which pod is of which task is not read: all of them
        phase=str(mapping(raw, "status").get("phase") or ""),
        refusal=_refusal(api, spec),
        preempts=spec["preemptionPolicy"] != "Never" if api == UPSTREAM and "preemptionPolicy" in spec else None,
        preemptable=api != VOLCANO or spec.get("preemptable") is not False,
        said=_said(raw) if api == UPSTREAM else ("", ""),
    )


def _said(raw: Mapping[str, Any]) -> tuple[str, str]:
    conditions = mappings(mapping(raw, "status"), "conditions")
    found: Mapping[str, Any] = next((one for one in conditions if one.get("type") == SCHEDULED), {})
    return str(found.get("status", "")), str(found.get("message", ""))


def _priority(value: Any) -> int | None:
    return max(-MOST_PRIORITY, min(value, MOST_PRIORITY)) if _is_whole(value) else None


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _refusal(api: str, spec: Mapping[str, Any]) -> Refusal | None:
    """The first field that is not honoured."""
    trouble = ""
    if api == UPSTREAM:
        if spec.get("resourceClaims"):
            return Refusal("ResourceClaimsUnsupported", "its PodGroup's spec.resourceClaims (DRA) is not supported")
        constraints = spec.get("schedulingConstraints") or {}
        unknown = sorted(set(spec) - UPSTREAM_FIELDS - {"policy"})
        trouble = f"spec.{unknown[0]}" if unknown else _wrong_constraints(constraints)
        mode = spec.get("disruptionMode") or "Pod"
        name = mode if isinstance(mode, str) else "".join(map(str, mode)) if isinstance(mode, Mapping) else ""
        if not trouble and name.lower() not in ("pod", "podgroup", "single", "all"):
            trouble = f"spec.disruptionMode {name[:50]!r}"
    if api == VOLCANO:
        networks = mapping(spec, "networkTopology")
        hard = networks and networks.get("mode", "hard") != "soft"
        trouble = "spec.networkTopology" if hard else "spec.subGroupPolicy" if spec.get("subGroupPolicy") else ""
    return Refusal("PodGroupUnsupported", f"its PodGroup's {trouble} is not supported") if trouble else None


def _wrong_constraints(constraints: Any) -> str:
    """What of upstream's schedulingConstraints is not honoured; "" if all is: one label that all nodes share."""
    if not isinstance(constraints, Mapping):
        return "spec.schedulingConstraints"
    unknown = sorted(map(str, set(constraints) - {"topology"}))
    if unknown:
        return f"spec.schedulingConstraints.{unknown[0][:50]}"
    topology = constraints.get("topology") or []
    one = topology[0] if isinstance(topology, list) and topology else {"key": "-"}
    if not isinstance(topology, list) or len(topology) > 1:
        return "spec.schedulingConstraints.topology with more than one entry"
    if not isinstance(one, Mapping) or set(one) != {"key"} or not one["key"] or not isinstance(one["key"], str):
        return "spec.schedulingConstraints.topology (wanted: one entry with a key)"
    return ""
