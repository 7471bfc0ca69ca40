"""Pods and nodes as the core reads them, and whether selectors, tolerations and terms of affinity hold.

Raw API JSON in, small frozen records out. Nothing here raises on odd input. What is wrong with an object becomes its
`refusal`: a reason (CamelCase, as in events) and a sentence. Selectors hold by upstream's rules.
"""

import dataclasses
import datetime
import re
import warnings
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from jaxsched.errors import DoubtfulFile, UserError
from jaxsched.kube.read.hints import (
    DURATION,
    GANG_SIZE,
    GROUP,
    KUEUE_COUNT,
    LWS_SIZE,
    MODEL,
    ROLE,
    VOLCANO_GROUP,
    Hints,
    integer,
    read_hints,
)

_QUANTITY = re.compile(r"([+-]?)([0-9]+\.?[0-9]*|\.[0-9]+)(?:([eE][+-]?[0-9]{1,3})|([numkMGTPE]|[KMGTPE]i)?)", re.ASCII)
_SCALE = {"n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "": Fraction(1)}
_SCALE |= {name: Fraction(1000) ** (power + 1) for power, name in enumerate("kMGTPE")}
_SCALE |= {f"{name}i": Fraction(1024) ** (power + 1) for power, name in enumerate("KMGTPE")}
LARGEST = 2**62  # units or milli-units; above it the ledger's int64 sums could overflow
DONE_PHASES = ("Succeeded", "Failed")
KEPT_ANNOTATIONS = (MODEL, DURATION, GANG_SIZE, GROUP, ROLE, VOLCANO_GROUP, KUEUE_COUNT, LWS_SIZE)
MOST_PRIORITY = 2**31 - 1
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def parse_quantity(value: object) -> Fraction:
    """The exact value of a quantity, at least 0. UserError with the text for anything else."""
    text = str(value).strip() if isinstance(value, (str, int, float)) and not isinstance(value, bool) else ""
    match = _QUANTITY.fullmatch(text) if len(text) <= 64 else None
    if match is None:
        raise UserError(
            f"quantity {str(value)[:64]!r}: should be a number with an optional suffix, e.g. 500m, 1e3, 16Gi"
        )
    sign, digits, exponent, suffix = match.groups()
    number = Fraction(digits) * (Fraction(10) ** int(exponent[1:]) if exponent else _SCALE[suffix or ""])
    if sign == "-" and number:
        raise UserError(f"quantity {text!r}: is negative, should be at least 0")
    return number


def to_units(value: object, per_unit: int = 1) -> int:
    """A quantity in whole units (`per_unit` = 1000: milli-units), rounded up. UserError if it is malformed or huge."""
    number = parse_quantity(value) * per_unit
    units = -(-number.numerator // number.denominator)
    if units > LARGEST:
        raise UserError(f"quantity {value!r}: is more than 2^62 {'milli-' if per_unit == 1000 else ''}units")
    return units


def resource_units(name: str, value: object) -> int:
    """How the ledger counts a resource: CPU in milli-cores, everything else in whole units, rounded up."""
    return to_units(value, 1000 if name == "cpu" else 1)


class Refusal(NamedTuple):
    """Why a pod or gang is not scheduled."""

    reason: str
    message: str


@dataclasses.dataclass(frozen=True)
class Pod:
    """A pod; `spec` parts that only filters read stay raw."""

    uid: str
    namespace: str
    name: str
    scheduler: str
    node: str  # "" while unbound
    phase: str
    terminating: bool
    gated: bool
    created_s: float
    started_s: float | None  # when it was bound, by the server's clock, else when its kubelet says that it began
    priority: int
    requests: tuple[tuple[str, int], ...]  # resource -> units, sorted, zeros left out
    labels: Mapping[str, str]
    hints: Hints  # what annotations and labels say
    owner: tuple[str, str]  # kind and uid of the controller, or ("", "")
    group_ref: str  # upstream spec.schedulingGroup / workloadRef, or ""
    selector: Mapping[str, str]
    affinity: tuple  # required node affinity terms, raw
    tolerations: tuple  # raw
    volume_claims: tuple[str, ...]  # names of persistent volume claims
    refusal: Refusal | None
    owner_kind: str = ""  # of the controller, with its API group: Job.batch
    volume_affinity: tuple[tuple, ...] = ()  # node selector terms of its volumes; one of each entry must hold
    anti_affinity: tuple = ()  # required terms of pod anti-affinity, raw
    closed_domains: tuple[tuple[str, str], ...] = ()  # labels and values of nodes from which other pods keep it away
    nominated: str = ""  # the node on which a preempting scheduler makes room for it
    preferred_nodes: tuple[tuple[int, Mapping[str, Any]], ...] = ()  # weight and term of preferred node affinity, raw
    preferred_pods: tuple[tuple[int, Mapping[str, Any]], ...] = ()  # of pod affinity; anti-affinity: negative weights
    spread: tuple = ()  # topology spread constraints with ScheduleAnyway, raw
    preempts: bool = True  # its preemptionPolicy is not Never
    gone_s: float | None = None  # of one that is being deleted: when its grace period ends

    @property
    def key(self) -> str:
        """namespace/name."""
        return f"{self.namespace}/{self.name}"

    def units(self, resource: str) -> int:
        """Units of a resource that the pod asks for."""
        return dict(self.requests).get(resource, 0)


@dataclasses.dataclass(frozen=True)
class Node:
    """A node; `usable` is whether new pods may go there at all."""

    uid: str
    name: str
    usable: bool
    why_not: str  # "cordoned", "not ready" or ""
    allocatable: tuple[tuple[str, int], ...]
    labels: Mapping[str, str]
    taints: tuple  # raw, those that keep pods away
    refusal: Refusal | None
    soft_taints: tuple = ()  # raw, PreferNoSchedule


def parse_time(value: Any) -> float | None:
    """Seconds since 1970 of an RFC 3339 time; None if there is none or it cannot be read. Without a zone it is UTC."""
    try:
        time = datetime.datetime.fromisoformat(str(value)[:64].replace("Z", "+00:00"))
        if time.tzinfo is None:
            warnings.warn("times of objects without a time zone are taken as UTC", DoubtfulFile, stacklevel=2)
            time = time.replace(tzinfo=datetime.UTC)
        return time.timestamp()
    except (ValueError, OverflowError):
        return None


def read_pod(raw: Mapping[str, Any]) -> Pod:
    """A pod from its JSON."""
    meta, spec, status = mapping(raw, "metadata"), mapping(raw, "spec"), mapping(raw, "status")
    refusal = _unsupported(spec)
    try:
        requests = _pod_requests(spec)
    except (UserError, TypeError, ValueError, AttributeError) as error:
        requests, refusal = (), refusal or Refusal("BadQuantity", f"its resources cannot be read: {error}")
    annotations, labels = _strings(meta, "annotations", KEPT_ANNOTATIONS), _strings(meta, "labels")
    hints, problem = read_hints(annotations, labels)
    refusal = refusal or (Refusal("BadAnnotation", problem) if problem else None)
    controller = next((o for o in mappings(meta, "ownerReferences") if o.get("controller")), {})
    affinity = mapping(spec, "affinity")
    terms = mapping(mapping(affinity, "nodeAffinity"), REQUIRED)
    group = mapping(spec, "schedulingGroup").get("podGroupName") or mapping(spec, "workloadRef").get("name") or ""
    return Pod(
        uid=str(meta.get("uid", "")),
        namespace=str(meta.get("namespace", "default")),
        name=str(meta.get("name", "")),
        scheduler=str(spec.get("schedulerName", "default-scheduler")),
        node=str(spec.get("nodeName") or ""),
        phase=str(status.get("phase") or "Pending"),
        terminating=bool(meta.get("deletionTimestamp")),
        gated=bool(spec.get("schedulingGates")),
        created_s=parse_time(meta.get("creationTimestamp")) or 0.0,
        started_s=_bound_s(status) or parse_time(status.get("startTime")),
        priority=_priority(spec.get("priority")),
        requests=requests,
        labels=labels,
        hints=hints,
        owner=(str(controller.get("kind", "")), str(controller.get("uid", ""))),
        group_ref=str(group),
        selector=_strings(spec, "nodeSelector"),
        affinity=tuple(mappings(terms, "nodeSelectorTerms")),
        tolerations=tuple(mappings(spec, "tolerations")),
        volume_claims=_volume_claims(spec, str(meta.get("name", ""))),
        refusal=refusal,
        owner_kind=f"{controller.get('kind', '')}.{str(controller.get('apiVersion', '')).rpartition('/')[0]}",
        anti_affinity=tuple(mappings(mapping(affinity, "podAntiAffinity"), REQUIRED)),
        nominated=str(status.get("nominatedNodeName") or ""),
        preferred_nodes=_preferred(mapping(affinity, "nodeAffinity"), "preference"),
        preferred_pods=(
            *_preferred(mapping(affinity, "podAffinity"), "podAffinityTerm"),
            *_preferred(mapping(affinity, "podAntiAffinity"), "podAffinityTerm", sign=-1),
        ),
        spread=tuple(one for one in mappings(spec, "topologySpreadConstraints") if _is_wish(one)),
        preempts=spec.get("preemptionPolicy") != "Never",
        gone_s=parse_time(meta.get("deletionTimestamp")),
    )


def _bound_s(status: Mapping[str, Any]) -> float | None:
    for one in mappings(status, "conditions"):
        if one.get("type") == "PodScheduled" and one.get("status") == "True":
            return parse_time(one.get("lastTransitionTime"))
    return None


def read_node(raw: Mapping[str, Any]) -> Node:
    """A node from its JSON."""
    meta, spec, status = mapping(raw, "metadata"), mapping(raw, "spec"), mapping(raw, "status")
    ready = any(c.get("type") == "Ready" and c.get("status") == "True" for c in mappings(status, "conditions"))
    refusal = None
    try:
        allocatable = _units(mapping(status, "allocatable"))
    except UserError as error:
        allocatable, refusal = (), Refusal("BadQuantity", f"allocatable: {error}")
    why_not = "cordoned" if spec.get("unschedulable") else "" if ready else "not ready"
    why_not = "being deleted" if meta.get("deletionTimestamp") else why_not
    return Node(
        uid=str(meta.get("uid", "")),
        name=str(meta.get("name", "")),
        usable=not why_not and refusal is None,
        why_not=why_not or (refusal.message if refusal else ""),
        allocatable=allocatable,
        labels=_strings(meta, "labels"),
        taints=tuple(t for t in mappings(spec, "taints") if t.get("effect") in ("NoSchedule", "NoExecute")),
        refusal=refusal,
        soft_taints=tuple(t for t in mappings(spec, "taints") if t.get("effect") == "PreferNoSchedule"),
    )


def mapping(parent: Any, key: str) -> Mapping[str, Any]:
    """The mapping under `key`, or an empty one if there is none or `parent` is none."""
    value = parent.get(key) if isinstance(parent, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def mappings(parent: Any, key: str) -> list[Mapping[str, Any]]:
    """The mappings in the list under `key`; what is none of both is left out."""
    value = parent.get(key) if isinstance(parent, Mapping) else None
    return [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, (list, tuple)) else []


def _strings(parent: Any, key: str, only: tuple[str, ...] = ()) -> Mapping[str, str]:
    return {str(k): str(v) for k, v in mapping(parent, key).items() if not only or k in only}


def _priority(value: Any) -> int:
    """A pod's priority, a 32-bit number in Kubernetes."""
    return max(-MOST_PRIORITY, min(value, MOST_PRIORITY)) if isinstance(value, int) else 0


def _units(resources: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    units = {}
    for name, value in resources.items():
        try:
            units[str(name)] = resource_units(str(name), value)
        except UserError as error:
            raise UserError(f"{name}: {error}") from None
    return tuple(sorted((name, count) for name, count in units.items() if count))


def _requests(part: Mapping[str, Any]) -> dict[str, int]:
    """Requests of a container, limits where a request is missing (as the API server defaults them)."""
    resources = mapping(part, "resources")
    return dict(_units({**mapping(resources, "limits"), **mapping(resources, "requests")}))


def _sum(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for part in parts:
        for name, units in part.items():
            total[name] = total.get(name, 0) + units
    return total


def _max(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in {*one, *other}}


def _pod_requests(spec: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    """Containers together, or the largest init stage, plus overhead (KEP-753 for sidecars, KEP-2837 for pod level)."""
    sidecars: dict[str, int] = {}
    stage: dict[str, int] = {}
    for container in mappings(spec, "initContainers"):
        own = _requests(container)
        if container.get("restartPolicy") == "Always":
            sidecars = _sum([sidecars, own])
            stage = _max(stage, sidecars)
        else:
            stage = _max(stage, _sum([sidecars, own]))
    total = _max(_sum([*map(_requests, mappings(spec, "containers")), sidecars]), stage)
    total = _max(total, _requests(spec)) if "resources" in spec else total
    total = _sum([total, dict(_units(mapping(spec, "overhead"))), {"pods": 1}])
    return tuple(sorted((name, min(units, LARGEST)) for name, units in total.items()))  # no node has so many


def _unsupported(spec: Mapping[str, Any]) -> Refusal | None:
    """The first feature of the pod that this scheduler does not honour and must therefore refuse."""
    affinity = mapping(spec, "affinity")
    for kind in ("podAffinity", "podAntiAffinity"):
        if mappings(mapping(affinity, kind), REQUIRED):
            return Refusal("PodAffinityUnsupported", f"spec.affinity.{kind} with required terms is not supported")
    spread = mappings(spec, "topologySpreadConstraints")
    if not all(map(_is_wish, spread)):
        return Refusal(
            "TopologySpreadUnsupported", "spec.topologySpreadConstraints with DoNotSchedule is not supported"
        )
    if spec.get("resourceClaims"):
        return Refusal(
            "ResourceClaimsUnsupported", "spec.resourceClaims (DRA) is not supported: request GPUs as a resource"
        )
    containers = [*mappings(spec, "containers"), *mappings(spec, "initContainers")]
    ports = [port for container in containers for port in mappings(container, "ports")]
    if any(port.get("hostPort") for port in ports) or (spec.get("hostNetwork") and ports):
        return Refusal("HostPortsUnsupported", "host ports (hostPort, or ports with hostNetwork) are not supported")
    if not containers:
        return Refusal("MalformedPod", "spec.containers is empty")
    return None


def _is_wish(constraint: Mapping[str, Any]) -> bool:
    """A topology spread constraint that keeps no pod from starting."""
    return constraint.get("whenUnsatisfiable") == "ScheduleAnyway"


def _preferred(affinity: Mapping[str, Any], key: str, sign: int = 1) -> tuple[tuple[int, Mapping[str, Any]], ...]:
    """Weights (of 1 to 100, as upstream) and terms; what has no such weight is left out."""
    terms = ((one.get("weight"), mapping(one, key)) for one in mappings(affinity, PREFERRED))
    return tuple((sign * weight, term) for weight, term in terms if isinstance(weight, int) and 0 < weight <= 100)


def _volume_claims(spec: Mapping[str, Any], pod: str) -> tuple[str, ...]:
    names = []
    for volume in mappings(spec, "volumes"):
        if claim := mapping(volume, "persistentVolumeClaim").get("claimName"):
            names.append(str(claim))
        if "ephemeral" in volume:
            names.append(f"{pod}-{volume.get('name', '')}")
    return tuple(names)


def selector_matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """A label selector as pods and Services have it; an empty one matches everything."""
    exact = mapping(selector, "matchLabels")
    if any(labels.get(str(key)) != str(value) for key, value in exact.items()):
        return False
    return all(_holds(one, labels) for one in mappings(selector, "matchExpressions"))


def tolerates(pod: Pod, taint: Mapping[str, Any]) -> bool:
    """Some toleration of the pod is about the taint."""
    return any(_tolerates(toleration, taint) for toleration in pod.tolerations)


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if toleration.get("key") and toleration["key"] != taint.get("key"):
        return False
    match toleration.get("operator") or "Equal":
        case "Exists":
            return True
        case "Equal":
            return bool(toleration.get("key")) and (toleration.get("value") or "") == (taint.get("value") or "")
    return False


def term_matches_node(term: Mapping[str, Any], node: Node) -> bool:
    """All expressions of a term hold; a term without any matches nothing."""
    expressions = mappings(term, "matchExpressions")
    fields = mappings(term, "matchFields")
    if not expressions and not fields:
        return False
    return all(_holds(one, node.labels) for one in expressions) and all(
        _holds(one, {"metadata.name": node.name}) for one in fields
    )


def _holds(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key, values = str(expression.get("key")), expression.get("values")
    values = [str(value) for value in values] if isinstance(values, list) else []
    there = key in labels
    match expression.get("operator"):
        case "In":
            return there and labels[key] in values
        case "NotIn":
            return not there or labels[key] not in values
        case "Exists":
            return there
        case "DoesNotExist":
            return not there
        case "Gt" | "Lt" as operator:
            own, bound = integer(labels.get(key, "")), integer(values[0] if values else "")
            return own is not None and bound is not None and (own > bound if operator == "Gt" else own < bound)
    return False


def term_matches_pod(term: Mapping[str, Any], namespace: str, pod: Pod) -> bool:
    """A term of a pod in `namespace` is about the pod. Labels of namespaces are not read: a selector of them holds."""
    listed = term.get("namespaces")
    listed = [str(name) for name in listed] if isinstance(listed, list) else []
    anywhere = isinstance(term.get("namespaceSelector"), Mapping)
    named = listed or ([] if anywhere else [namespace])
    if not anywhere and pod.namespace not in named:
        return False
    return isinstance(term.get("labelSelector"), Mapping) and selector_matches(
        mapping(term, "labelSelector"), pod.labels
    )
