"""What pods belong to: their controllers, and PodGroups of three APIs.

Controllers say how many pods of a Job, a JobSet, a training operator's job there are when all are there. A quota, or a
slow controller, may leave some of them out for a while: that nothing more comes is no sign that all came.

Of PodGroups some fields are honoured, and others refused by name. Upstream's has changed with every version (KEP-4671,
KEP-5732, KEP-5710): v1alpha2 in 1.36, then v1alpha3 and v1beta1. A field that is not known here may be a constraint, so
it is refused, never ignored.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jaxsched.kube.read.objects import MOST_PRIORITY, Refusal, mapping, mappings

MOST = 10**6  # pods


@dataclasses.dataclass(frozen=True)
class Owner:
    """A controller of pods."""

    kind: str  # as in OWNER_KINDS: `Job.batch`
    namespace: str
    name: str
    uid: str
    pods: int  # that are to run at the same time now; 0: it does not say
    scheduler: str = ""  # of a Volcano Job


class OwnerKind(NamedTuple):
    """An API of controllers, newest version first, and how many pods an object of it wants."""

    group: str
    versions: tuple[str, ...]
    resource: str
    kind: str
    pods: Callable[[Mapping[str, Any]], int]

    @property
    def name(self) -> str:
        """`Job.batch`: Volcano has Jobs too."""
        return f"{self.kind}.{self.group}"


def _job(raw: Mapping[str, Any]) -> int:
    """A Job runs at most `parallelism` at a time, and no more than it still has to complete."""
    spec, status = mapping(raw, "spec"), mapping(raw, "status")
    parallelism = _count(spec.get("parallelism"), 1)
    if spec.get("completions") is None:
        return parallelism
    failed = sum(_span(part) for part in str(status.get("failedIndexes") or "").split(",") if part)
    return min(parallelism, max(_count(spec["completions"], 1) - _count(status.get("succeeded"), 0) - failed, 0))


def _jobset(raw: Mapping[str, Any]) -> int:
    """All Jobs of a JobSet, unless some are made only after others have begun."""
    spec = mapping(raw, "spec")
    jobs = mappings(spec, "replicatedJobs")
    in_order = mapping(spec, "startupPolicy").get("startupPolicyOrder") == "InOrder"
    if in_order or any(job.get("dependsOn") for job in jobs):
        return 0
    status = mappings(mapping(raw, "status"), "replicatedJobsStatus")
    done = {str(one.get("name")): _count(one.get("succeeded"), 0) for one in status}
    left = [max(_count(job.get("replicas"), 1) - done.get(str(job.get("name")), 0), 0) for job in jobs]
    return sum(count * _job(mapping(job, "template")) for count, job in zip(left, jobs, strict=True))


def _training_job(raw: Mapping[str, Any]) -> int:
    """All replicas of a training operator's job. MPIJob v2beta1 has its launcher run as a Job of its own."""
    spec, status = mapping(raw, "spec"), mapping(mapping(raw, "status"), "replicaStatuses")
    roles = next((mapping(spec, key) for key in spec if str(key).lower().endswith("replicaspecs")), {})
    own_job = ("Launcher",) if str(raw.get("apiVersion", "")).endswith("/v2beta1") else ()
    ended = {str(role).lower(): _count(mapping(status, role).get("succeeded"), 0) for role in status}
    wanted = {str(role): _count(mapping(roles, role).get("replicas"), 1) for role in roles if role not in own_job}
    return sum(max(count - ended.get(role.lower(), 0), 0) for role, count in wanted.items())


def _ray_cluster(raw: Mapping[str, Any]) -> int:
    """The head and all workers that there should be now."""
    groups = mappings(mapping(raw, "spec"), "workerGroupSpecs")
    return 1 + sum(count_ray_workers(one) * max(_count(one.get("numOfHosts"), 1), 1) for one in groups)


def count_ray_workers(group: Mapping[str, Any]) -> int:
    """Replicas of a worker group as KubeRay has them: from `minReplicas` to `maxReplicas`, 0 while it is suspended."""
    wanted = max(_count(group.get("replicas"), 0), _count(group.get("minReplicas"), 0))
    return 0 if group.get("suspend") is True else min(wanted, _count(group.get("maxReplicas"), MOST))


def _leader_workers(raw: Mapping[str, Any]) -> int:
    """One group of a LeaderWorkerSet; only its leader if the workers are made when that is ready."""
    spec = mapping(raw, "spec")
    if spec.get("startupPolicy") == "LeaderReady":
        return 1
    return max(_count(mapping(spec, "leaderWorkerTemplate").get("size"), 1), 1)


def _unknown(raw: Mapping[str, Any]) -> int:
    """Volcano's Jobs have a PodGroup, which says it."""
    return 0


OWNER_KINDS = (
    OwnerKind("batch", ("v1",), "jobs", "Job", _job),
    OwnerKind("jobset.x-k8s.io", ("v1", "v1alpha2"), "jobsets", "JobSet", _jobset),
    OwnerKind("kubeflow.org", ("v1",), "pytorchjobs", "PyTorchJob", _training_job),
    OwnerKind("kubeflow.org", ("v1",), "tfjobs", "TFJob", _training_job),
    OwnerKind("kubeflow.org", ("v2beta1", "v1"), "mpijobs", "MPIJob", _training_job),
    OwnerKind("kubeflow.org", ("v1",), "jaxjobs", "JAXJob", _training_job),
    OwnerKind("kubeflow.org", ("v1",), "xgboostjobs", "XGBoostJob", _training_job),
    OwnerKind("kubeflow.org", ("v1",), "paddlejobs", "PaddleJob", _training_job),
    OwnerKind("ray.io", ("v1",), "rayclusters", "RayCluster", _ray_cluster),
    OwnerKind("leaderworkerset.x-k8s.io", ("v1",), "leaderworkersets", "LeaderWorkerSet", _leader_workers),
    OwnerKind("batch.volcano.sh", ("v1alpha1",), "jobs", "Job", _unknown),
)


def read_owner(raw: Mapping[str, Any], kind: OwnerKind) -> Owner:
    """A controller from its JSON."""
    meta = mapping(raw, "metadata")
    return Owner(
        kind=kind.name,
        namespace=str(meta.get("namespace", "default")),
        name=str(meta.get("name", "")),
        uid=str(meta.get("uid", "")),
        pods=min(kind.pods(raw), MOST),
        scheduler=str(mapping(raw, "spec").get("schedulerName") or ""),
    )


def _count(value: Any, default: int) -> int:
    """A number of pods; `default` where there is none that could be one."""
    return min(value, MOST) if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else default


def _span(part: str) -> int:
    """How many numbers `7` or `3-5` stands for."""
    match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part)
    return 0 if match is None else max(int(match[2] or match[1]) - int(match[1]) + 1, 0)


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
