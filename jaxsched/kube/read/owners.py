"""What controllers want: how many pods of a Job, a JobSet, a training operator's job there are when all are there.

A quota, or a slow controller, may leave some of them out for a while: that nothing more comes is no sign that all came.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jaxsched.kube.read.objects import mapping, mappings

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
    """The head and all workers."""
    groups = mappings(mapping(raw, "spec"), "workerGroupSpecs")
    return 1 + sum(_count(one.get("replicas"), 0) * max(_count(one.get("numOfHosts"), 1), 1) for one in groups)


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
