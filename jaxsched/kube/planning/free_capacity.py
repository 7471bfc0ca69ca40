"""What GPU nodes may still take while a plan is made: resources, filters, and nodes kept for gangs that go first.

Plain NumPy on the host. `S` GPU nodes, `K` GPU groups of a node.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Bool, Int, Int64

from jaxsched.kube.planning.filters import filter_reason
from jaxsched.kube.planning.fleet import Fleet
from jaxsched.kube.planning.gangs import Gang, node_rights
from jaxsched.kube.planning.ledger import Ledger, pods_that_fit
from jaxsched.kube.planning.objects import Pod
from jaxsched.kube.planning.placement import Assignment, Placement, decision_id
from jaxsched.kube.planning.settings import PlanSettings

Target = tuple[Pod, int, tuple[int, ...]]  # a pod, its node's row (-1: any, near the others), its GPU groups ((): any)


class FreeCapacity:
    """The ledger of one plan, and which part of it a pod or a gang may use; `reserve` and `closed` change it."""

    def __init__(self, fleet: Fleet, pods: Sequence[Pod], settings: PlanSettings) -> None:
        self.fleet, self.settings = fleet, settings
        self._sizes = {(max(groups), sum(groups)) for groups in fleet.groups}
        self.ledger = Ledger(fleet, pods, settings.gpu_resource)
        self.closed = np.zeros(len(fleet.nodes), bool)  # kept free for gangs that go first
        self._foreign = [pod for pod in pods if pod.scheduler != settings.scheduler_name]
        self._filtered_out: dict[str, dict[int, str]] = {}

    def filtered_out(self, pod: Pod) -> dict[int, str]:
        """Node row -> why the pod may not go there."""
        signature = node_rights(pod)
        if signature not in self._filtered_out:
            reasons = ((row, filter_reason(pod, node)) for row, node in enumerate(self.fleet.nodes))
            self._filtered_out[signature] = {row: reason for row, reason in reasons if reason}
        return self._filtered_out[signature]

    def eligible(self, pod: Pod) -> Bool[np.ndarray, "S"]:
        """Nodes that the pod may go to and that are not kept for others."""
        eligible = ~self.closed
        eligible[list(self.filtered_out(pod))] = False
        return eligible

    def merged(self, gang: Gang) -> bool:
        """Some node holds a worker only across its groups: the groups of a node count as one."""
        return any(largest < gang.gpus_per_worker <= gpus for largest, gpus in self._sizes)

    def usable(self, gang: Gang) -> Int[np.ndarray, "S K"]:
        """GPUs that the gang's workers may use."""
        return self._usable(self.ledger, gang)

    def workers(self, gang: Gang) -> Int[np.ndarray, "S K"]:
        """Workers of the gang that fit now."""
        return self.usable(gang) // max(gang.gpus_per_worker, 1)

    def workers_without_own_pods(self, gang: Gang) -> Int[np.ndarray, "S"]:
        """Workers of the gang on each node once all pods of our own have ended; others may stay for good."""
        return (self._usable(self.ledger_without_own_pods(), gang) // max(gang.gpus_per_worker, 1)).sum(1)

    def _usable(self, ledger: Ledger, gang: Gang) -> Int[np.ndarray, "S K"]:
        return ledger.usable_groups(ledger.vector(gang.workers), self.eligible(gang.workers[0]), self.merged(gang))

    def gpus(self, gang: Gang) -> Int[np.ndarray, "S K"]:
        """All GPUs of nodes that the gang may go to; in the merged view a node's are in group 0."""
        gpus = self.ledger.group_gpus
        if self.merged(gang):
            gpus = np.concatenate([gpus.sum(1, keepdims=True), np.zeros_like(gpus[:, 1:])], 1)
        return np.where(self.eligible(gang.workers[0])[:, None], gpus, 0)

    def by_partition(self, by_node: Int[np.ndarray, "S K"]) -> Int[np.ndarray, "P"]:
        """Sums over each partition's nodes and groups."""
        return self.fleet.by_slot(by_node).sum((1, 2))

    def largest_partition(self, gang: Gang) -> int:
        """The most workers of the gang that a partition holds when it is empty."""
        pods = (self.gpus(gang) // max(gang.gpus_per_worker, 1)).sum(1)
        need = self.ledger.vector(gang.workers)
        pods = np.zeros_like(pods) if need is None else np.minimum(pods, pods_that_fit(self.ledger.total, need))
        sums = np.zeros(self.fleet.shape.partitions, np.int64)
        np.add.at(sums, self.fleet.place[:, 0], pods)
        return int(sums.max(initial=0))

    def ledger_without_own_pods(self, also: Sequence[Pod] = ()) -> Ledger:
        """What is free once all pods of our own but `also` have ended."""
        return Ledger(self.fleet, [*self._foreign, *also], self.settings.gpu_resource)

    def free_gpus(self) -> Int64[np.ndarray, "S"]:
        """Free GPUs of each node."""
        return self.ledger.free[:, self.ledger.column[self.settings.gpu_resource]]

    def node_near(self, pod: Pod, near: Iterable[int]) -> int:
        """The node for a pod that the policy does not place: one of `near`, else the one with least free GPUs."""
        fits = [row for row in np.flatnonzero(self.eligible(pod)) if self.ledger.fits(pod, int(row))]
        near, free = set(near), self.free_gpus()
        return int(min(fits, key=lambda row: (row not in near, free[row], row), default=-1))

    def reserve(self, gang: Gang, targets: Sequence[Target], by: str) -> Placement | None:
        """Reserve for all pods or for none. PS that do not fit where they should, and helpers, go near the workers."""
        return self.placement(gang, [*targets, *((pod, -1, ()) for pod in gang.helpers)], by)

    def placement(self, gang: Gang, targets: Sequence[Target], by: str) -> Placement | None:
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
            done.append(Assignment(pod, self.fleet.nodes[row].name, self.ledger.reserve(pod, row, groups)))
        return Placement(gang, tuple(done), decision_id(done), by)
