"""Shadow mode: what this policy would have done, beside what another scheduler did. Pure, writes nothing."""

import dataclasses
from typing import Any

from jaxsched.kube.capacity.free_capacity import Placement
from jaxsched.kube.plan.planner import Planner
from jaxsched.kube.read.gangs import form_gangs, gang_key
from jaxsched.kube.read.objects import Pod
from jaxsched.kube.read.snapshot import Snapshot


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
