"""Gangs that are not submitted yet: the pods that the controllers of a manifest's objects would make."""

import dataclasses
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from jaxsched.errors import DoubtfulFile, UserError
from jaxsched.io.files import shorten
from jaxsched.kube.read.gangs import JOBSET_LABEL, LWS_LABELS
from jaxsched.kube.read.groups import count_ray_workers
from jaxsched.kube.read.hints import GANG_SIZE, LARGEST_GANG, LWS_SIZE, PS_LABELS
from jaxsched.kube.read.objects import Pod, mapping, mappings, read_pod
from jaxsched.kube.read.settings import PlanSettings

_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?")
MOST_PODS = 100_000  # of all documents together


class PodSet(NamedTuple):
    """Pods of one template; `metadata` has labels and annotations beside the template's own."""

    name: str
    template: Mapping[str, Any]
    path: str  # of the template in the object
    size: int
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}


PodSets = list[PodSet]  # whose pods start together


class _Object(NamedTuple):
    """One document."""

    where: str  # file and document
    name: str
    spec: Mapping[str, Any]

    def pods_in(self, parent: Mapping[str, Any], *fields: str) -> int:
        """The least of these numbers of pods; those that are missing count as 1, or not at all beside another."""
        sizes = [parent[field] for field in fields if parent.get(field) is not None]
        for size in sizes:
            if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= LARGEST_GANG:
                text = shorten(repr(size), 40)
                raise UserError(f"{self.where}: {text} pods, should be a whole number from 1 to {LARGEST_GANG}")
        return min(sizes, default=1)

    def job_pods(self, spec: Mapping[str, Any]) -> int:
        """That a Job runs at once."""
        return min(self.pods_in(spec, "parallelism"), self.pods_in(spec, "parallelism", "completions"))


def _job(one: _Object) -> Iterator[PodSets]:
    yield [PodSet(one.name, mapping(one.spec, "template"), "spec.template", one.job_pods(one.spec))]


def _alone(one: _Object) -> Iterator[PodSets]:
    for number in range(one.pods_in(one.spec, "replicas")):
        yield [PodSet(f"{one.name}-{number}", mapping(one.spec, "template"), "spec.template", 1)]


def _jobset(one: _Object) -> Iterator[PodSets]:
    jobs = []
    for job in mappings(one.spec, "replicatedJobs"):
        spec = mapping(mapping(job, "template"), "spec")
        count = one.pods_in(job, "replicas") * one.job_pods(spec)
        path, label = "spec.replicatedJobs.template.spec.template", {JOBSET_LABEL: one.name}
        jobs.append(PodSet(f"{one.name}-{job.get('name', '')}", mapping(spec, "template"), path, count, label))
    yield jobs


def _training_job(one: _Object) -> Iterator[PodSets]:
    key = next((key for key in one.spec if str(key).lower().endswith("replicaspecs")), "replicaSpecs")
    roles, replicas = mapping(one.spec, key), []
    for role in roles:
        name, path = str(role).lower(), f"spec.{key}.{role}.template"
        count, label = one.pods_in(mapping(roles, role), "replicas"), {PS_LABELS[0]: name}
        replicas.append(PodSet(f"{one.name}-{name}", mapping(mapping(roles, role), "template"), path, count, label))
    yield replicas


def _leader_workers(one: _Object) -> Iterator[PodSets]:
    """Each group by itself."""
    both = mapping(one.spec, "leaderWorkerTemplate")
    worker, size = mapping(both, "workerTemplate"), one.pods_in(both, "size")
    leader, path = mapping(both, "leaderTemplate") or worker, "spec.leaderWorkerTemplate.workerTemplate"
    for group in range(one.pods_in(one.spec, "replicas")):
        labels, name = dict(zip(LWS_LABELS, (one.name, str(group)))), f"{one.name}-{group}"
        more: dict[str, Any] = {"labels": labels, "annotations": {LWS_SIZE: str(size)}}
        pods = [PodSet(name, leader, path, 1, **more)]
        yield pods + ([PodSet(f"{name}-w", worker, path, size - 1, **more)] if size > 1 else [])


def _ray(one: _Object) -> Iterator[PodSets]:
    """A RayCluster, or that of a RayJob: its head and its workers."""
    spec, before = mapping(one.spec, "rayClusterSpec") or one.spec, "spec.headGroupSpec.template"
    pods = [PodSet(f"{one.name}-head", mapping(mapping(spec, "headGroupSpec"), "template"), before, 1)]
    for group in mappings(spec, "workerGroupSpecs"):
        if group.keys() & {"minReplicas", "maxReplicas", "suspend"}:
            for field in ("replicas", "minReplicas", "maxReplicas"):
                one.pods_in({field: group.get(field) or None}, field)  # 0 is a number, too
            group = {**group, "replicas": count_ray_workers(group)}
            if group["replicas"] == 0:
                continue
        count = one.pods_in(group, "replicas") * one.pods_in(group, "numOfHosts")
        path, name = "spec.workerGroupSpecs.template", f"{one.name}-{group.get('groupName', 'worker')}"
        pods.append(PodSet(name, mapping(group, "template"), path, count))
    yield pods


def _volcano_job(one: _Object) -> Iterator[PodSets]:
    path = "spec.tasks.template"
    tasks = ((f"{one.name}-{task.get('name', '')}", task) for task in mappings(one.spec, "tasks"))
    yield [PodSet(name, mapping(task, "template"), path, one.pods_in(task, "replicas")) for name, task in tasks]


KINDS: Mapping[str, Callable[[_Object], Iterator[PodSets]]] = {
    **{"Job": _job, "JobSet": _jobset, "LeaderWorkerSet": _leader_workers, "RayCluster": _ray, "RayJob": _ray},
    **dict.fromkeys(("PyTorchJob", "TFJob", "MPIJob", "JAXJob", "XGBoostJob", "PaddleJob"), _training_job),
    **dict.fromkeys(("Deployment", "StatefulSet", "ReplicaSet"), _alone),
}


def manifest_pods(
    documents: Iterable[Any], where: str, now_s: float, settings: PlanSettings, priority: int
) -> tuple[Pod, ...]:
    """The pods as if the objects were submitted now, to our scheduler.

    Args:
        documents: Of the file. Empty ones are left out; so are, with a warning, objects that make no pods.
        where: The file.
        now_s: Seconds since 1970.
        settings: Whose scheduler's name the pods get.
        priority: Theirs; a manifest names a class at most.

    Raises:
        UserError: On a mistake, beginning with `where`.
    """
    objects = list(_objects(documents))
    pods: list[Pod] = []
    left_out: list[str] = []
    for number, manifest in enumerate(objects, 1):
        here = where if len(objects) == 1 else f"{where}, object {number}"
        kind = manifest.get("kind") if isinstance(manifest, Mapping) else None
        if isinstance(kind, str) and (kind == "Pod" or kind in KINDS):
            pods += _pods_of(manifest, kind, f"{here} ({kind})", number, now_s, settings, priority)
        else:
            left_out.append(shorten(repr(kind), 40))
    known = ", ".join(["Pod", *KINDS])
    if not pods:
        raise UserError(f"{where}: kind {', '.join(left_out) or None} should be one of {known}")
    if left_out:
        warnings.warn(f"{where}: left out: {', '.join(left_out)}; read are {known}", DoubtfulFile, stacklevel=2)
    return tuple(pods)


def _objects(documents: Iterable[Any]) -> Iterator[Any]:
    for one in documents:
        if isinstance(one, Mapping) and str(one.get("kind")).endswith("List") and "items" in one:
            yield from mappings(one, "items")
        elif one is not None:
            yield one


def _pods_of(
    manifest: Mapping[str, Any], kind: str, where: str, number: int, now_s: float, settings: PlanSettings, priority: int
) -> Iterator[Pod]:
    meta = mapping(manifest, "metadata")
    given = meta.get("name", meta.get("generateName"))
    name = _checked_name(given.rstrip("-.") if "name" not in meta and isinstance(given, str) else given, "name", where)
    namespace = _checked_name(meta.get("namespace", "default"), "namespace", where)
    one, api = _Object(where, name, mapping(manifest, "spec")), str(manifest.get("apiVersion", ""))
    volcano = kind == "Job" and api.startswith("batch.volcano.sh/")
    gangs = [[PodSet(name, manifest, "", 1)]] if kind == "Pod" else (_volcano_job if volcano else KINDS[kind])(one)
    stands_alone = KINDS.get(kind) is _alone
    owner = {"kind": "ReplicaSet" if stands_alone else kind, "apiVersion": api or "batch/v1", "controller": True}
    owner["uid"] = f"{name} (not submitted)" if number == 1 else f"{name} (not submitted, {number})"
    made = 0
    for gang in gangs:
        count = sum(pods.size for pods in gang)
        if not gang or not count:
            raise UserError(f"{where}: spec has no pods in it")
        if count > LARGEST_GANG:
            raise UserError(f"{where}: {count} pods, should be a whole number from 1 to {LARGEST_GANG}")
        made += count
        if made > MOST_PODS:
            raise UserError(f"{where}: more than {MOST_PODS:,} pods")
        for pods in gang:
            for pod, raw in _raw_pods(pods, kind, where):
                raw["spec"] |= {"schedulerName": settings.scheduler_name, "priority": priority}
                raw["metadata"] |= {"name": pod, "namespace": namespace, "uid": f"manifest {number} {pod}"}
                raw["metadata"]["annotations"] = {GANG_SIZE: str(count), **raw["metadata"]["annotations"]}
                raw["metadata"] |= {} if kind == "Pod" else {"ownerReferences": [owner]}
                yield dataclasses.replace(read_pod(raw), created_s=now_s)


def _raw_pods(pods: PodSet, kind: str, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and a copy of the template of each."""
    if not mapping(pods.template, "spec"):
        path = f"{pods.path}.spec".lstrip(".")
        raise UserError(f"{where}: {path} is missing, should hold the containers of its pods")
    meta = mapping(pods.template, "metadata")
    single = kind == "Pod" or (pods.size == 1 and kind != "Job")
    for number in range(pods.size):
        spec = {key: value for key, value in mapping(pods.template, "spec").items() if key != "nodeName"}
        own = {
            "labels": {**mapping(meta, "labels"), **pods.labels},
            "annotations": {**mapping(meta, "annotations"), **pods.annotations},
        }
        yield pods.name if single else f"{pods.name}-{number}", {"spec": spec, "metadata": own}


def _checked_name(value: Any, field: str, where: str) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        text = shorten(repr(value), 40)
        raise UserError(f"{where}: metadata.{field}: {text} should be a name of small letters, digits, - and .")
    return value
