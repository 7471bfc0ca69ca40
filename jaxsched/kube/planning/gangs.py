"""Pods into gangs: PodGroups of three kinds, labels, else the owner; and what a gang is to the simulator's eyes.

The one place that knows the conventions (they have changed before): upstream `spec.schedulingGroup`, the coscheduling
label and PodGroup, Volcano's, Kueue's pod groups, JobSet, and jobs by their controller.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any

from jaxsched.kube.planning.objects import DONE_PHASES, Pod, Refusal, mapping
from jaxsched.kube.planning.settings import PlanSettings
from jaxsched.workload.models import model_index

UPSTREAM, COSCHEDULING, VOLCANO = "scheduling.k8s.io", "scheduling.x-k8s.io", "scheduling.volcano.sh"
COSCHEDULING_LABEL = "scheduling.x-k8s.io/pod-group"
KUEUE_LABEL = "kueue.x-k8s.io/pod-group-name"
JOBSET_LABEL = "jobset.sigs.k8s.io/jobset-name"
ALONE = ("", "ReplicaSet", "ReplicationController", "DaemonSet", "StatefulSet", "Node")  # their pods start one by one
MOST_PODS = 2**31 - 1  # of a PodGroup's minimum


@dataclasses.dataclass(frozen=True)
class PodGroup:
    """A PodGroup of any of the three APIs."""

    api: str  # UPSTREAM, COSCHEDULING or VOLCANO
    namespace: str
    name: str
    minimum: int  # pods that must start together


@dataclasses.dataclass(frozen=True)
class Gang:
    """Pods that start together. `pending` are all to be bound in one plan; with `bound` not empty they are the rest."""

    key: str
    namespace: str
    pending: tuple[Pod, ...]  # sorted by name
    bound: tuple[Pod, ...]
    workers: tuple[Pod, ...]  # of pending: those with GPUs
    ps: tuple[Pod, ...]  # of pending: parameter servers
    helpers: tuple[Pod, ...]  # of pending: launchers and the like, not shown to the policy
    gpus_per_worker: int
    priority: int
    submit_s: float
    model: int
    duration_s: float
    refusal: Refusal | None  # it will not be scheduled as it is
    waiting: Refusal | None  # it may be scheduled later: pods are missing


def read_pod_group(raw: Mapping[str, Any]) -> PodGroup:
    """A PodGroup from its JSON; an unreadable minimum counts as 1."""
    meta, spec = mapping(raw, "metadata"), mapping(raw, "spec")
    api = str(raw.get("apiVersion", "")).partition("/")[0]
    policy = mapping(spec, "schedulingPolicy") or mapping(spec, "policy")
    minimum = spec.get("minMember") or mapping(policy, "gang").get("minCount") or 1
    minimum = minimum if isinstance(minimum, int) and not isinstance(minimum, bool) and minimum > 0 else 1
    return PodGroup(api, str(meta.get("namespace", "default")), str(meta.get("name", "")), min(minimum, MOST_PODS))


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
    kind, uid = pod.owner
    return f"{pod.namespace}/pod/{pod.name}" if kind in ALONE else f"{pod.namespace}/{kind}/{uid}"


def form_gangs(
    pods: Iterable[Pod], groups: Iterable[PodGroup], served: frozenset[str], settings: PlanSettings, now_s: float
) -> list[Gang]:
    """The gangs of the pods that are neither done nor terminating nor another scheduler's, by time of submission.

    `served` are the PodGroup APIs that the cluster has.
    """
    minimum = {f"{group.namespace}/{group.api}/{group.name}": group.minimum for group in groups}
    members: dict[str, list[Pod]] = {}
    for pod in pods:
        ours = pod.scheduler == settings.scheduler_name
        if ours and not pod.terminating and pod.phase not in DONE_PHASES:
            members.setdefault(gang_key(pod), []).append(pod)
    gangs = [_gang(key, own, minimum.get(key), served, settings, now_s) for key, own in members.items()]
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
    return str((pod.selector, pod.affinity, pod.tolerations, pod.volume_affinity))


def _gang(
    key: str, members: list[Pod], minimum: int | None, served: frozenset[str], settings: PlanSettings, now_s: float
) -> Gang:
    members = sorted(members, key=lambda pod: natural(pod.name))
    bound = tuple(pod for pod in members if pod.node)
    pending = tuple(pod for pod in members if not pod.node and not pod.gated)
    gpu = settings.gpu_resource
    workers = tuple(pod for pod in pending if pod.units(gpu))
    ps = tuple(pod for pod in pending if not pod.units(gpu) and pod.hints.is_ps)
    helpers = tuple(pod for pod in pending if not pod.units(gpu) and not pod.hints.is_ps)
    model, duration = profile_of(members, settings)
    refusal = _refusal(pending, workers, bound, gpu)
    return Gang(
        key=key,
        namespace=members[0].namespace,
        pending=pending,
        bound=bound,
        workers=workers,
        ps=ps,
        helpers=helpers,
        gpus_per_worker=workers[0].units(gpu) if workers else 0,
        priority=max(pod.priority for pod in members),
        submit_s=min(pod.created_s for pod in members),
        model=model,
        duration_s=duration,
        refusal=refusal,
        waiting=None if refusal or not pending else _missing(key, members, bound, minimum, served, settings, now_s),
    )


def _refusal(pending: tuple[Pod, ...], workers: tuple[Pod, ...], bound: tuple[Pod, ...], gpu: str) -> Refusal | None:
    for pod in pending:
        if pod.refusal is not None:
            return Refusal(pod.refusal.reason, f"pod {pod.key}: {pod.refusal.message}")
    sizes = sorted({pod.units(gpu) for pod in workers})
    if len(sizes) > 1 and not bound:
        return Refusal("MixedWorkers", f"its pods ask for different numbers of {gpu}: {', '.join(map(str, sizes))}")
    if pending and not workers and not bound:
        return Refusal("NoGpuRequested", f"none of its pods asks for {gpu}; use the default scheduler for them")
    if len({node_rights(pod) for pod in workers}) > 1 and not bound:
        return Refusal("MixedConstraints", "its workers differ in node selector, tolerations, affinity or volumes")
    return None


def _missing(
    key: str,
    members: list[Pod],
    bound: tuple[Pod, ...],
    minimum: int | None,
    served: frozenset[str],
    settings: PlanSettings,
    now_s: float,
) -> Refusal | None:
    """What the gang still waits for; None when it is complete. The rest of a gang that has started is never held."""
    if bound:
        return None
    if any(pod.gated for pod in members):
        return Refusal("Gated", "some of its pods have scheduling gates")
    api = key.split("/")[1]
    stated = minimum or max((pod.hints.gang_size for pod in members), default=0)
    if minimum is None and not stated and (api == UPSTREAM or api in served):
        return Refusal("PodGroupMissing", f"its PodGroup ({api}) does not exist")
    if len(members) < stated:
        return Refusal("GangIncomplete", f"{len(members)} of {stated} pods exist")
    newest = max(pod.created_s for pod in members)
    if not stated and api != "pod" and now_s - newest < settings.settle_s:
        return Refusal(
            "GangIncomplete", f"its size is not stated and its newest pod is under {settings.settle_s:g} s old"
        )
    return None
