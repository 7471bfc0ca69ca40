"""What every node still has, in all resources and of all pods: what plans are checked against; and what runs there.

Plain NumPy on the host. `S` nodes, those with GPUs first, `D` resources.
"""

import copy
import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Bool, Int, Int64

from jaxsched.kube.capacity.fleet import Fleet
from jaxsched.kube.read.gangs import gang_key, profile_of
from jaxsched.kube.read.objects import DONE_PHASES, LARGEST, Node, Pod
from jaxsched.kube.read.settings import PlanSettings


class Ledger:
    """Free units of each resource and free GPUs of each group; `take` and `release` change it."""

    def __init__(self, fleet: Fleet, pods: Iterable[Pod], gpu_resource: str, others: Sequence[Node] = ()) -> None:
        self.gpu = gpu_resource
        nodes = (*fleet.nodes, *others)  # `others` have no GPUs
        self.row = {node.name: row for row, node in enumerate(nodes)}
        resources = sorted({name for node in nodes for name, _ in node.allocatable} | {gpu_resource})
        self.column = {name: column for column, name in enumerate(resources)}
        self.free = np.zeros((len(nodes), len(resources)), np.int64)
        for row, node in enumerate(nodes):
            for name, units in node.allocatable:
                self.free[row, self.column[name]] = units
        self.total = self.free.copy()
        self.group_gpus = np.zeros((len(nodes), fleet.shape.groups), np.int64)
        for row, groups in enumerate(fleet.groups):
            self.group_gpus[row, : len(groups)] = groups
        self.group_free = self.group_gpus.copy()
        self.reserved: dict[str, tuple[int, np.ndarray]] = {}  # pod uid -> node row, GPUs of each group
        self.pods: dict[str, Pod] = {}  # those that are reserved for, by uid
        bound = [pod for pod in pods if pod.node in self.row and pod.phase not in DONE_PHASES]
        for pod in sorted(bound, key=lambda pod: (not pod.hints.gpu_groups, pod.uid)):  # known groups first
            self.take(pod, self.row[pod.node], pod.hints.gpu_groups)

    def copy(self) -> "Ledger":
        """One that changes by itself."""
        other = copy.copy(self)
        other.free, other.group_free = self.free.copy(), self.group_free.copy()
        other.reserved, other.pods = dict(self.reserved), dict(self.pods)
        return other

    def vector(self, pods: Sequence[Pod]) -> Int64[np.ndarray, "D"] | None:
        """The most of each resource that any of the pods asks for; None if one asks for what no node has."""
        need = np.zeros(len(self.column), np.int64)
        for pod in pods:
            for name, units in pod.requests:
                if name not in self.column:
                    return None
                need[self.column[name]] = max(need[self.column[name]], units)
        return need

    def fits(self, pod: Pod, row: int) -> bool:
        """The node has all that the pod asks for."""
        need = self.vector([pod])
        return need is not None and bool((need <= self.free[row])[need > 0].all())

    def take(self, pod: Pod, row: int, groups: Sequence[int] = ()) -> tuple[int, ...]:
        """Reserve for the pod; returns the groups that its GPUs come from: `groups` first, then the fullest that do.

        Pods that are there already are counted whatever the node has, so `free` may go below 0.
        """
        gpus = pod.units(self.gpu)
        for name, units in pod.requests:
            if name in self.column:
                left = int(self.free[row, self.column[name]]) - units
                self.free[row, self.column[name]] = max(left, -LARGEST)  # far from where int64 wraps around
        taken = np.zeros(self.group_gpus.shape[1], np.int64)
        left = gpus
        for group in [*groups, *_best_groups(self.group_free[row], gpus)] if gpus else ():
            if left > 0 and 0 <= group < len(taken):
                part = min(left, int(self.group_free[row, group] - taken[group]))
                taken[group] += max(part, 0)
                left -= max(part, 0)
        self.group_free[row] -= taken
        self.reserved[pod.uid], self.pods[pod.uid] = (row, taken), pod
        return tuple(int(group) for group in np.flatnonzero(taken))

    def release(self, pod: Pod) -> None:
        """Undo `take`."""
        row, taken = self.reserved.pop(pod.uid)
        del self.pods[pod.uid]
        for name, units in pod.requests:
            if name in self.column:
                self.free[row, self.column[name]] += units
        self.group_free[row] += taken

    def usable_groups(
        self, need: Int64[np.ndarray, "D"] | None, eligible: Bool[np.ndarray, "S"], merged: bool
    ) -> Int64[np.ndarray, "S K"]:
        """Free GPUs as pods with that `need` may use them; 0 on nodes that are not `eligible`.

        Where a node's CPU, memory or the like holds fewer such pods than its GPUs would, GPUs are left out, so that a
        policy, which knows GPUs only, never sees more than can be used. `merged` counts all groups of a node as one.
        """
        free = np.maximum(self.group_free, 0)
        free = np.minimum(free, np.maximum(self.free[:, self.column[self.gpu]], 0)[:, None])
        if merged:
            total = np.minimum(free.sum(1), np.maximum(self.free[:, self.column[self.gpu]], 0))
            free = np.zeros_like(free)
            free[:, 0] = total
        if need is None:
            return np.zeros_like(free)
        gpus = max(int(need[self.column[self.gpu]]), 1)
        asked = need > 0
        left = pods_that_fit(self.free, need) if asked.any() else np.full(len(free), 2**31)
        usable = np.zeros_like(free)
        for group in range(free.shape[1]):
            pods = np.minimum(free[:, group] // gpus, left)
            bound = left < free[:, group] // gpus
            usable[:, group] = np.where(bound, pods * gpus, free[:, group])
            left = left - pods
        return np.where(eligible[:, None], usable, 0)


def pods_that_fit(free: Int64[np.ndarray, "S D"], need: Int64[np.ndarray, "D"]) -> Int64[np.ndarray, "S"]:
    """How many pods of that `need` (not all 0) each node's `free` units hold."""
    asked = need > 0
    return np.maximum((free[:, asked] // need[asked]).min(1), 0)


def _best_groups(free: Int64[np.ndarray, "K"], gpus: int) -> list[int]:
    """Groups in the order a pod takes them: the fullest that holds it whole, else the emptiest first."""
    whole = [group for group in range(len(free)) if free[group] >= gpus]
    best = sorted(whole, key=lambda group: (free[group], group))[:1]
    return best + sorted(range(len(free)), key=lambda group: (-free[group], group))


ENDING_S = 1.0  # at least, that a pod whose grace period is over still takes


@dataclasses.dataclass(frozen=True)
class RunningPart:
    """The part of a running gang that lies in one partition."""

    partition: int
    workers: Int[np.ndarray, "N K"]  # one per GPU
    gpus: int
    model: int
    duration_s: float
    elapsed_s: float
    namespace: str
    gang: str  # its key

    def merged_workers(self) -> Int[np.ndarray, "N K"]:
        """The same workers in the merged view, all in group 0 of their node."""
        merged = np.zeros_like(self.workers)
        merged[:, 0] = np.minimum(self.workers.sum(1), 127)
        return merged


def find_running_parts(
    fleet: Fleet, ledger: Ledger, pods: Iterable[Pod], settings: PlanSettings, now_s: float
) -> list[RunningPart]:
    """The running gangs, of all schedulers, by partition, in the split view. Pods of unknown gangs stand alone.

    All-reduce depends on where the GPUs are, not on how pods share them: a worker here is one GPU.
    """
    gangs: dict[str, list[Pod]] = {}
    for pod in pods:
        if (
            ledger.row.get(pod.node, len(fleet.nodes)) < len(fleet.nodes)
            and pod.phase not in DONE_PHASES
            and pod.units(settings.gpu_resource)
        ):
            gangs.setdefault(gang_key(pod), []).append(pod)
    found = []
    for key, members in gangs.items():
        model, duration = profile_of(members, settings)
        began = min(pod.started_s or pod.created_s for pod in members)
        if all(pod.terminating for pod in members):
            duration = max(now_s + ENDING_S, *(pod.gone_s or 0.0 for pod in members)) - began
        parts: dict[int, Int[np.ndarray, "N K"]] = {}
        for pod in members:
            row, taken = ledger.reserved[pod.uid]
            partition, slot = fleet.place[row]
            shape = (fleet.shape.servers, fleet.shape.groups)
            parts.setdefault(int(partition), np.zeros(shape, np.int64))[slot] += taken
        for partition, workers in parts.items():
            found.append(
                RunningPart(
                    partition=partition,
                    workers=np.minimum(workers, 127),
                    gpus=int(workers.sum()),
                    model=model,
                    duration_s=duration,
                    elapsed_s=max(now_s - began, 0.0),
                    namespace=members[0].namespace,
                    gang=key,
                )
            )
    return [part for part in found if part.gpus]
