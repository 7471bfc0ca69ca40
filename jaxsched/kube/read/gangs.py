"""Pods into gangs: PodGroups of three kinds, labels, else the owner; and what a gang is to the simulator's eyes.

The one place that knows the conventions (they have changed before): upstream `spec.schedulingGroup`, the coscheduling
label and PodGroup, Volcano's, Kueue's pod groups, JobSet, LeaderWorkerSet, and jobs by their controller. How many pods
must be there and start together is what the PodGroup, an annotation or the controller says.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jaxsched.kube.read.groups import COSCHEDULING, UPSTREAM, VOLCANO, Owner, PodGroup
from jaxsched.kube.read.objects import DONE_PHASES, Pod, Refusal
from jaxsched.kube.read.settings import PlanSettings
from jaxsched.workload.models import model_index

COSCHEDULING_LABEL = "scheduling.x-k8s.io/pod-group"
KUEUE_LABEL = "kueue.x-k8s.io/pod-group-name"
JOBSET_LABEL = "jobset.sigs.k8s.io/jobset-name"
LWS_LABELS = ("leaderworkerset.sigs.k8s.io/name", "leaderworkerset.sigs.k8s.io/group-index")
ALONE = ("", "ReplicaSet", "ReplicationController", "DaemonSet", "StatefulSet", "Node")  # their pods start one by one
BY_NAME = {"jobset": "JobSet.jobset.x-k8s.io", "lws": "LeaderWorkerSet.leaderworkerset.x-k8s.io"}  # second part of keys


@dataclasses.dataclass(frozen=True)
class GangSize:
    """The number of pods, 0 where nothing says it; `unknown` is what should say it and is not there.

    Further pods start with the others; of an `elastic` gang they start as they fit.
    """

    pods: int
    elastic: bool = False
    unknown: Refusal | None = None

    def missing(self, key: str, members: Sequence[Pod], settle_s: float, now_s: float) -> Refusal | None:
        """What a gang that has not started waits for; None when it is complete."""
        there = [pod for pod in members if not pod.gated]
        if len(there) < len(members) and not (self.elastic and self.pods <= len(there)):
            return Refusal("Gated", "some of its pods have scheduling gates")
        if self.unknown is not None:
            return self.unknown
        if len(members) < self.pods:
            return Refusal("GangIncomplete", f"{len(members)} of {self.pods} pods exist")
        newest = max(pod.created_s for pod in members)
        if not self.pods and key.split("/")[1] != "pod" and now_s - newest < settle_s:
            return Refusal("GangIncomplete", f"its size is not stated and its newest pod is under {settle_s:g} s old")
        return None


def find_size(
    key: str, members: Sequence[Pod], group: PodGroup | None, owners: Mapping[Any, Owner], served: frozenset[str]
) -> GangSize:
    """What is known. `owners`: by uid, and by kind, namespace and name."""
    api = key.split("/")[1]
    if group is not None:
        return GangSize(group.minimum, elastic=not group.whole)
    hinted = max((pod.hints.gang_size for pod in members), default=0)
    if not hinted and (api == UPSTREAM or api in served):
        return GangSize(0, unknown=Refusal("PodGroupMissing", f"its PodGroup ({api}) does not exist"))
    owner, kind = _owner(key, members[0], owners)
    if owner is not None and owner.pods:  # of a large Job that is almost done fewer are left than the annotation says
        return GangSize(min(hinted, owner.pods) if hinted else owner.pods)
    if owner is None and not hinted and kind in served:
        return GangSize(0, unknown=Refusal("GangIncomplete", f"its {kind.partition('.')[0]} is not known yet"))
    return GangSize(hinted)


def _owner(key: str, pod: Pod, owners: Mapping[Any, Owner]) -> tuple[Owner | None, str]:
    """The controller that makes all pods of the gang, and of what kind it is; of gangs by a label none is known."""
    namespace, api, name, *_ = key.split("/")
    if api in BY_NAME:
        return owners.get((BY_NAME[api], namespace, name)), BY_NAME[api]
    if api == pod.owner[0]:
        return owners.get(pod.owner[1]), pod.owner_kind
    return None, ""


@dataclasses.dataclass(frozen=True)
class Gang:
    """Pods that start together: as many as its minimum in one plan, or the rest of them; further ones as they fit."""

    key: str
    namespace: str
    pending: tuple[Pod, ...]  # sorted by name; all in `workers`, `ps`, `helpers` (to be bound whole) or `extra`
    bound: tuple[Pod, ...]
    workers: tuple[Pod, ...]  # those with GPUs
    ps: tuple[Pod, ...]  # parameter servers
    helpers: tuple[Pod, ...]  # launchers and the like, not shown to the policy
    extra: tuple[Pod, ...]  # more than must start together
    gpus_per_worker: int
    priority: int
    submit_s: float
    model: int
    duration_s: float
    refusal: Refusal | None  # it will not be scheduled as it is
    waiting: Refusal | None  # it may be scheduled later: pods are missing
    gpu_resource: str = ""
    topology: str = ""  # node label; all of its pods go to nodes with one value of it
    preempts: bool = True  # others may be evicted for it
    preemptable: bool = True  # it may be evicted for others

    @property
    def uniform(self) -> bool:
        """Its workers are alike, as those of the simulator's jobs: one policy decision is about all of them."""
        return len({(pod.units(self.gpu_resource), node_rights(pod)) for pod in self.workers}) <= 1

    @property
    def together(self) -> tuple[Pod, ...]:
        """The pods that are to be bound in one plan or not at all."""
        return (*self.workers, *self.ps, *self.helpers)


def gang_key(pod: Pod) -> str:
    """What gang a pod belongs to; pods of the same key start together."""
    if pod.group_ref:
        return f"{pod.namespace}/{UPSTREAM}/{pod.group_ref}"
    if name := pod.labels.get(COSCHEDULING_LABEL):
        return f"{pod.namespace}/{COSCHEDULING}/{name}"
    if pod.hints.volcano_group:
        return f"{pod.namespace}/{VOLCANO}/{pod.hints.volcano_group}"
    if name := pod.labels.get(KUEUE_LABEL):
        return f"{pod.namespace}/kueue/{name}"
    if name := pod.labels.get(JOBSET_LABEL):
        return f"{pod.namespace}/jobset/{name}"
    if name := pod.labels.get(LWS_LABELS[0]):  # each group of a LeaderWorkerSet starts by itself
        return f"{pod.namespace}/lws/{name}/{pod.labels.get(LWS_LABELS[1], '')}"
    kind, uid = pod.owner
    return f"{pod.namespace}/pod/{pod.name}" if kind in ALONE else f"{pod.namespace}/{kind}/{uid}"


def form_gangs(
    pods: Iterable[Pod],
    groups: Iterable[PodGroup],
    served: frozenset[str],
    settings: PlanSettings,
    now_s: float,
    owners: Iterable[Owner] = (),
) -> list[Gang]:
    """Put pods together that start together; pods that are done, terminating or another scheduler's are left out.

    Args:
        pods: Of the cluster.
        groups: PodGroups of all three APIs.
        served: APIs of PodGroups and kinds of owners that the cluster has.
        settings: Whose scheduler's pods, and what counts as a GPU.
        now_s: Seconds since 1970 on the server.
        owners: Controllers of pods.

    Returns:
        The gangs by time of submission. What keeps one from starting is in its `refusal` or `waiting`.
    """
    by_key, owners = {group.key: group for group in groups}, tuple(owners)
    owned = {owner.uid: owner for owner in owners} | {(one.kind, one.namespace, one.name): one for one in owners}
    members: dict[str, list[Pod]] = {}
    for pod in pods:
        ours = pod.scheduler == settings.scheduler_name
        if ours and not pod.terminating and pod.phase not in DONE_PHASES:
            members.setdefault(gang_key(pod), []).append(pod)
    gangs = []
    for key, own in members.items():
        own = sorted(own, key=lambda pod: natural(pod.name))
        size = find_size(key, own, by_key.get(key), owned, served)
        gangs.append(_gang(key, own, by_key.get(key), size, settings, now_s))
    return sorted(gangs, key=lambda gang: (gang.submit_s, gang.key))


def natural(name: str) -> list[tuple[int, int, str]]:
    """Sorts worker-8 before worker-10."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"([0-9]{1,18})", name)]


def profile_of(pods: Iterable[Pod], settings: PlanSettings) -> tuple[int, float]:
    """Model (index into the catalogue) and duration in seconds, from the first pod that says so, else the defaults."""
    model, duration = model_index(settings.default_model), settings.default_duration_s
    hints = [pod.hints for pod in pods]
    model = next((hint.model for hint in hints if hint.model is not None), model)
    return model, next((hint.duration_s for hint in hints if hint.duration_s is not None), duration)


def node_rights(pod: Pod) -> str:
    """All of a pod that decides which nodes it may go to; pods with the same text may go to the same ones."""
    return str((pod.selector, pod.affinity, pod.tolerations, pod.volume_affinity, pod.closed_domains))


def _gang(
    key: str, members: list[Pod], group: PodGroup | None, size: GangSize, settings: PlanSettings, now_s: float
) -> Gang:
    bound = tuple(pod for pod in members if pod.node)
    pending = tuple(pod for pod in members if not pod.node and not pod.gated)
    gpu = settings.gpu_resource
    needed = max(min(size.pods, len(members)) - len(bound), 0) if size.elastic else len(pending)
    together = _needed_first(pending, needed, gpu)
    workers = tuple(pod for pod in together if pod.units(gpu))
    model, duration = profile_of(members, settings)
    refusal = (group.refusal if group is not None else None) or _refusal(pending, workers, bound, gpu)
    stated = group.priority if group is not None else None
    preempts = group.preempts if group is not None else None
    return Gang(
        key=key,
        namespace=members[0].namespace,
        pending=pending,
        bound=bound,
        workers=workers,
        ps=tuple(pod for pod in together if not pod.units(gpu) and pod.hints.is_ps),
        helpers=tuple(pod for pod in together if not pod.units(gpu) and not pod.hints.is_ps),
        extra=tuple(pod for pod in pending if pod not in together),
        gpus_per_worker=workers[0].units(gpu) if workers else 0,
        priority=stated if stated is not None else max(pod.priority for pod in members),
        submit_s=min(pod.created_s for pod in members),
        model=model,
        duration_s=duration,
        refusal=refusal,
        waiting=None if refusal or not pending or bound else size.missing(key, members, settings.settle_s, now_s),
        gpu_resource=gpu,
        topology=group.topology if group is not None else "",
        preempts=preempts if preempts is not None else all(pod.preempts for pod in members),
        preemptable=group is None or group.preemptable,
    )


def _needed_first(pending: tuple[Pod, ...], needed: int, gpu: str) -> tuple[Pod, ...]:
    """So many of the pods: launchers and parameter servers before workers, but a worker among them, in order of names.

    So it does not matter which were there first.
    """
    workers = [pod for pod in pending if pod.units(gpu)]
    others = [pod for pod in pending if not pod.units(gpu)]
    first = others[: max(needed - 1, 0) if workers else needed]
    chosen = {pod.uid for pod in [*first, *workers[: needed - len(first)]]}
    return tuple(pod for pod in pending if pod.uid in chosen)


def _refusal(pending: tuple[Pod, ...], workers: tuple[Pod, ...], bound: tuple[Pod, ...], gpu: str) -> Refusal | None:
    for pod in pending:
        if pod.refusal is not None:
            return Refusal(pod.refusal.reason, f"pod {pod.key}: {pod.refusal.message}")
    if pending and not workers and not bound:
        return Refusal("NoGpuRequested", f"none of its pods asks for {gpu}; use the default scheduler for them")
    return None
