"""What a plan comes to: for PodGroups and pods, and beside what another scheduler did (shadow mode). Writes nothing.

PodGroups and pods are told of in the terms of upstream, Volcano and the default scheduler.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Set
from typing import Any

from jaxsched.kube.capacity.free_capacity import Placement
from jaxsched.kube.plan.planner import Plan, Planner
from jaxsched.kube.read.gangs import Gang, form_gangs, gang_key
from jaxsched.kube.read.groups import UPSTREAM, VOLCANO, PodGroup
from jaxsched.kube.read.objects import DONE_PHASES, Pod, Refusal
from jaxsched.kube.read.snapshot import Snapshot

PENDING, INQUEUE, RUNNING = "Pending", "Inqueue", "Running"
QUEUES = ("active", "backoff", "gated", "unschedulable")
NOT_WHOLE = ("GangIncomplete", "PodGroupMissing", "Gated")  # why a gang without bound pods is not tried


def group_states(snapshot: Snapshot, plan: Plan, scheduler: str) -> Iterator[tuple[PodGroup, str]]:
    """Of every PodGroup with pods of this scheduler why it waits, or "" if its minimum has nodes.

    A PodGroup of which neither is true, whose pods are about to be bound or are done, is left out.
    """
    groups = [group for group in snapshot.groups if group.api == UPSTREAM]
    own = [pod for pod in snapshot.pods if pod.scheduler == scheduler] if groups else []
    bound = Counter(gang_key(pod) for pod in own if pod.node)
    waiting = {gang_key(pod) for pod in own if not pod.node}
    for group in groups:
        if bound[group.key] >= group.minimum:
            yield group, ""
        elif group.key in waiting and group.key in plan.reasons:
            reason = plan.reasons[group.key]
            yield group, f"{reason.reason}: {reason.message}"


def volcano_phases(snapshot: Snapshot, scheduler: str) -> Iterator[tuple[PodGroup, str]]:
    """Volcano's PodGroups of Jobs or pods that name this scheduler, and the phase that each should get.

    Its controller makes the pods of a Job once the PodGroup is `Inqueue`. Volcano's scheduler sets that, and does not
    look at Jobs that name another one. Here a Job is let in at once: its pods then wait like those of any other gang.
    A phase that says more is left as it is.
    """
    groups = [group for group in snapshot.groups if group.api == VOLCANO and group.phase in ("", PENDING, INQUEUE)]
    own = [pod for pod in snapshot.pods if pod.scheduler == scheduler] if groups else []
    jobs = {owner.uid for owner in snapshot.owners if owner.scheduler == scheduler}
    there, bound = {gang_key(pod) for pod in own}, Counter(gang_key(pod) for pod in own if pod.node)
    for group in groups:
        if group.key in there or group.owner_uid in jobs:
            phase = RUNNING if bound[group.key] >= group.minimum else INQUEUE
            if phase != group.phase:
                yield group, phase


def queue_of(gang: Gang, reason: Refusal) -> str:
    """The queue that pods of a gang which was not placed are in.

    Those that were not tried are gated (upstream's PreEnqueue keeps incomplete gangs there, too), or active if only
    this plan had no decision left for them.
    """
    if reason.reason == "PlanFull":
        return "active"
    return "gated" if reason.reason in NOT_WHOLE and not gang.bound else "unschedulable"


def failed_attempts(plan: Plan) -> Iterator[tuple[Gang, str]]:
    """Gangs that were tried and not placed, and the result: unschedulable, or error for a fault of ours."""
    for key, reason in plan.reasons.items():
        gang = plan.pending[key]
        if queue_of(gang, reason) == "unschedulable":
            yield gang, "error" if reason.reason == "PlanFailed" else "unschedulable"


def pending_pods(pods: Iterable[Pod], plan: Plan, backing_off: Set[str], scheduler: str) -> Counter[str]:
    """Unbound pods of our own by queue; those that the plan places are not pending any more."""
    queues = {key: queue_of(plan.pending[key], reason) for key, reason in plan.reasons.items()}
    counts: Counter[str] = Counter({queue: 0 for queue in QUEUES})
    for pod in pods:
        if pod.scheduler == scheduler and not pod.node and not pod.terminating and pod.phase not in DONE_PHASES:
            key = gang_key(pod)
            if pod.gated:
                counts["gated"] += 1
            elif key in backing_off:
                counts["backoff"] += 1
            elif key in queues:
                counts[queues[key]] += 1
    return counts


class Shadow:
    """Compares gang by gang; gangs that had started when it began are left out."""

    def __init__(self, planner: Planner) -> None:
        self.planner = planner
        self._ours: dict[str, Placement] = {}
        self._done: set[str] = set()
        self._began = False

    def step(self, snapshot: Snapshot) -> list[dict[str, Any]]:
        """One entry for each gang that the other scheduler has bound whole since the last step."""
        settings = self.planner.settings
        members: dict[str, list[Pod]] = {}
        for pod in snapshot.pods:
            if pod.scheduler == settings.scheduler_name and pod.units(settings.gpu_resource):
                members.setdefault(gang_key(pod), []).append(pod)
        if not self._began:
            self._done = {key for key, pods in members.items() if any(pod.node for pod in pods)}
            self._began = True
        self._done &= set(members)
        self._ours = {key: one for key, one in self._ours.items() if key in members}
        open_keys = {key for key in members if key not in self._done and key not in self._ours}
        reasons = {}
        if open_keys:
            plan = self.planner.plan(_as_if_unbound(snapshot, open_keys))
            self._ours |= {one.gang.key: one for one in plan.placements if one.gang.key in open_keys}
            reasons = plan.reasons
        real = form_gangs(snapshot.pods, snapshot.groups, snapshot.served, settings, snapshot.now_s, snapshot.owners)
        entries = []
        for gang in real:
            if gang.key in members and gang.key not in self._done and gang.bound and not gang.together:
                self._done.add(gang.key)
                why = reasons[gang.key].message if gang.key in reasons else ""
                entries.append(compare_placements(gang.key, self._ours.pop(gang.key, None), gang.bound, why))
        return entries


def compare_placements(key: str, ours: Placement | None, bound: tuple[Pod, ...], why_not: str) -> dict[str, Any]:
    """One gang: nodes by pod; `ours` is None where the policy placed nothing, and `why_not` says why."""
    mine = {one.pod.key: one.node for one in ours.assignments} if ours is not None else None
    theirs = {pod.key: pod.node for pod in bound}
    entry: dict[str, Any] = {"gang": key, "ours": mine, "theirs": theirs, "their_nodes": len(set(theirs.values()))}
    if mine is None:
        return entry | {"why_not": why_not or "not planned"}
    same = sorted(mine.values()) == sorted(theirs.values())
    return entry | {"our_nodes": len(set(mine.values())), "same_nodes": same, "decision": ours.decision if ours else ""}


def _as_if_unbound(snapshot: Snapshot, keys: set[str]) -> Snapshot:
    """The snapshot with these gangs still waiting."""
    pods = tuple(dataclasses.replace(pod, node="") if gang_key(pod) in keys else pod for pod in snapshot.pods)
    return dataclasses.replace(snapshot, pods=pods)
