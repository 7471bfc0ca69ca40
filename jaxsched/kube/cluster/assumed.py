"""What was decided and is not yet seen: assumed pods count as bound until the watch, or a failed Binding, says more."""

import dataclasses
import threading
from collections.abc import Iterable

from jaxsched.kube.capacity.placement import Placement
from jaxsched.kube.read.objects import Pod


class AssumedPods:
    """Assumed nodes by pod uid; safe to use from several threads."""

    def __init__(self) -> None:
        self._nodes: dict[str, tuple[str, tuple[int, ...]]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._nodes)

    def assume(self, placement: Placement) -> None:
        """Count all pods of a placement as bound."""
        with self._lock:
            for one in placement.assignments:
                self._nodes[one.pod.uid] = one.node, one.groups

    def forget(self, uid: str) -> None:
        """The pod was not bound after all."""
        with self._lock:
            self._nodes.pop(uid, None)

    def apply(self, pods: Iterable[Pod]) -> tuple[Pod, ...]:
        """The pods with assumed nodes filled in; assumptions that the pods confirm, or whose pod is gone, end."""
        pods = tuple(pods)
        unbound = {pod.uid for pod in pods if not pod.node}
        with self._lock:
            self._nodes = {uid: where for uid, where in self._nodes.items() if uid in unbound}
            return tuple(self._assumed(pod) for pod in pods)

    def _assumed(self, pod: Pod) -> Pod:
        if pod.uid not in self._nodes:
            return pod
        node, groups = self._nodes[pod.uid]
        hints = dataclasses.replace(pod.hints, gpu_groups=groups) if groups else pod.hints
        return dataclasses.replace(pod, node=node, hints=hints)
