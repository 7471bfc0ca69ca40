"""What nodes may still take while a plan is made: resources, filters, and nodes kept for gangs that go first.

Plain NumPy on the host. `S` GPU nodes, `A` all nodes, the others last, `K` GPU groups of a node.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Bool, Int, Int64

from jaxsched.kube.capacity.filters import Preferences, filter_reason
from jaxsched.kube.capacity.fleet import Fleet
from jaxsched.kube.capacity.ledger import Ledger
from jaxsched.kube.read.gangs import Gang, node_rights
from jaxsched.kube.read.objects import Node, Pod
from jaxsched.kube.read.settings import PlanSettings


@dataclasses.dataclass(frozen=True)
class Assignment:
    """Where one pod goes."""

    pod: Pod
    node: str
    groups: tuple[int, ...]  # GPU groups on that node, advice


@dataclasses.dataclass(frozen=True)
class Placement:
    """Where one gang goes; `decision` identifies it in logs, events and annotations."""

    gang: Gang
    assignments: tuple[Assignment, ...]
    decision: str
    by: str  # the policy, the fallback, `rest` (of a gang that has started) or `span` (over several partitions)


def decision_id(assignments: Sequence[Assignment]) -> str:
    """12 hexadecimal digits that depend on the pods and where they go."""
    text = "\n".join(f"{one.pod.uid} {one.node} {one.groups}" for one in assignments)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


Target = tuple[Pod, int, tuple[int, ...]]  # a pod, its node's row (-1: any, near the others), its GPU groups ((): any)


class FreeCapacity:
    """The ledger of one plan, and which part of it a pod or a gang may use; `place` and `keep` change it.

    `others`: nodes without GPUs, for pods that ask for none.
    """

    def __init__(self, fleet: Fleet, others: Sequence[Node], pods: Sequence[Pod], settings: PlanSettings) -> None:
        self.fleet, self.settings = fleet, settings
        self.nodes = (*fleet.nodes, *others)
        self._sizes = {(max(groups), sum(groups)) for groups in fleet.groups}
        self._when_empty: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._others, self._pods = others, pods
        self.ledger = self.ledger_of(pods)
        self.preferences = Preferences(self.nodes, self.ledger)
        self.kept: dict[int, Gang] = {}  # rows of nodes that are kept free, and for which gang
        self._filtered_out: dict[str, dict[int, str]] = {}

    def ledger_of(self, pods: Iterable[Pod]) -> Ledger:
        """A ledger of the same nodes with these pods on them."""
        return Ledger(self.fleet, pods, self.settings.gpu_resource, self._others)

    @functools.cached_property
    def empty_ledger(self) -> Ledger:
        """The nodes once all pods have ended. Like the next two it is made once, and not to be changed."""
        return self.ledger_of(())

    @functools.cached_property
    def ledger_without_gpu_pods(self) -> Ledger:
        """The nodes once all pods with GPUs have ended."""
        return self.ledger_of([pod for pod in self._pods if not pod.units(self.settings.gpu_resource)])

    @functools.cached_property
    def _ledger_of_others(self) -> Ledger:
        return self.ledger_without_own_pods()

    def filtered_out(self, pod: Pod) -> dict[int, str]:
        """Node row -> why the pod may not go there."""
        signature = node_rights(pod)
        if signature not in self._filtered_out:
            reasons = ((row, filter_reason(pod, node)) for row, node in enumerate(self.nodes))
            self._filtered_out[signature] = {row: reason for row, reason in reasons if reason}
        return self._filtered_out[signature]

    def allowed(self, pod: Pod) -> Bool[np.ndarray, "A"]:
        """Nodes that the pod may go to."""
        allowed = np.ones(len(self.nodes), bool)
        allowed[list(self.filtered_out(pod))] = False
        return allowed

    def eligible(self, pod: Pod) -> Bool[np.ndarray, "A"]:
        """Nodes that the pod may go to and that are not kept for others."""
        eligible = self.allowed(pod)
        eligible[list(self.kept)] = False
        return eligible

    def keep(self, row: int | np.integer, gang: Gang) -> None:
        """Keep a node free of all but the gang, which is placed later."""
        self.kept[int(row)] = gang

    def merged(self, gang: Gang) -> bool:
        """Groups of a node count as one: some node holds a worker only so, or all nodes hold so many only so."""
        each, need = gang.gpus_per_worker, len(gang.workers)
        if any(largest < each <= gpus for largest, gpus in self._sizes):
            return True
        apart, whole = self._workers_when_empty(max(each, 1))
        if (apart == whole).all() or not need:
            return False
        allowed = self.allowed(gang.workers[0])[: len(apart)]
        return bool(apart[allowed].sum() < need <= whole[allowed].sum())

    def _workers_when_empty(self, each: int) -> tuple[Int[np.ndarray, "S"], Int[np.ndarray, "S"]]:
        """Workers of so many GPUs that each node holds when it is empty, by its groups and by itself."""
        if each not in self._when_empty:
            counts = [(sum(gpus // each for gpus in groups), sum(groups) // each) for groups in self.fleet.groups]
            apart, whole = np.array(counts, np.int64).reshape(-1, 2).T
            self._when_empty[each] = apart, whole
        return self._when_empty[each]

    def usable(self, gang: Gang, merged: bool | None = None) -> Int[np.ndarray, "S K"]:
        """GPUs that the gang's workers may use; in the view that it needs, or in the one that is given."""
        return self.usable_of(gang, self.ledger, self.eligible(gang.workers[0]), merged)

    def usable_of(
        self, gang: Gang, ledger: Ledger, nodes: Bool[np.ndarray, "A"], merged: bool | None = None
    ) -> Int[np.ndarray, "S K"]:
        """GPUs that the gang's workers may use, by another ledger and on other nodes."""
        merged = self.merged(gang) if merged is None else merged
        usable = ledger.usable_groups(ledger.vector(gang.workers), nodes, merged)
        return usable[: len(self.fleet.nodes)]

    def workers(self, gang: Gang) -> Int[np.ndarray, "S K"]:
        """Workers of the gang that fit now."""
        return self.usable(gang) // max(gang.gpus_per_worker, 1)

    def workers_without_own_pods(self, gang: Gang) -> Int[np.ndarray, "S"]:
        """Workers of the gang on each node once all pods of our own have ended; others may stay for good."""
        usable = self.usable_of(gang, self._ledger_of_others, self.eligible(gang.workers[0]))
        return (usable // max(gang.gpus_per_worker, 1)).sum(1)

    def gpus(self, gang: Gang, merged: bool) -> Int[np.ndarray, "S K"]:
        """All GPUs of nodes that the gang may go to; in the merged view a node's are in group 0."""
        gpus = self.ledger.group_gpus
        if merged:
            gpus = np.concatenate([gpus.sum(1, keepdims=True), np.zeros_like(gpus[:, 1:])], 1)
        return np.where(self.eligible(gang.workers[0])[:, None], gpus, 0)[: len(self.fleet.nodes)]

    def by_partition(self, by_node: Int[np.ndarray, "S K"]) -> Int[np.ndarray, "P"]:
        """Sums over each partition's nodes and groups."""
        return self.fleet.by_slot(by_node).sum((1, 2))

    def largest_partition(self, gang: Gang) -> int:
        """The most workers of the gang that a partition holds when it is empty."""
        usable = self.usable_of(gang, self.empty_ledger, self.eligible(gang.workers[0]))
        return int(self.by_partition(usable // max(gang.gpus_per_worker, 1)).max(initial=0))

    def ledger_without_own_pods(self, also: Sequence[Pod] = ()) -> Ledger:
        """What is free once all pods of our own but `also` have ended."""
        foreign = (pod for pod in self._pods if pod.scheduler != self.settings.scheduler_name)
        return self.ledger_of([*foreign, *also])

    def free_gpus(self) -> Int64[np.ndarray, "A"]:
        """Free GPUs of each node."""
        return self.ledger.free[:, self.ledger.column[self.settings.gpu_resource]]

    def node_near(self, pod: Pod, near: Iterable[int]) -> int:
        """The node for a pod that the policy does not place.

        One of `near`, else one of the partitions of these, of those the one with least free GPUs, of those the one that
        it prefers; -1 if none fits.
        """
        fits = [row for row in np.flatnonzero(self.eligible(pod)) if self.ledger.fits(pod, int(row))]
        near, free = set(near), self.free_gpus()
        close = {self._partition(row) for row in near}
        score = self.preferences.scores(pod, self.allowed(pod))
        rank = lambda row: (row not in near, self._partition(row) not in close, free[row], -score[row], row)
        return int(min(fits, key=rank, default=-1))

    def _partition(self, row: int) -> int:
        return int(self.fleet.place[row, 0]) if row < len(self.fleet.nodes) else -1

    def place(self, gang: Gang, targets: Sequence[Target], by: str) -> Placement | None:
        """Reserve for all pods or for none. PS that do not fit where they should, and helpers, go near the workers."""
        return self.place_pods(gang, [*targets, *((pod, -1, ()) for pod in gang.helpers)], by)

    def place_pods(self, gang: Gang, targets: Sequence[Target], by: str) -> Placement | None:
        """The same for exactly those pods."""
        done: list[Assignment] = []
        near = [row for _, row, _ in targets if row >= 0]
        for pod, row, groups in targets:
            fits = row >= 0 and self.eligible(pod)[row] and self.ledger.fits(pod, row)
            if not fits and not pod.units(self.settings.gpu_resource):
                row = self.node_near(pod, near)
                fits = row >= 0
            if not fits:
                for assignment in done:
                    self.ledger.release(assignment.pod)
                return None
            done.append(Assignment(pod, self.nodes[row].name, self.ledger.take(pod, row, groups)))
        return Placement(gang, tuple(done), decision_id(done), by)
