"""Gangs that are planned become Bindings, in parallel; those that fail rest for a while.

Assumed pods count as bound until the watch, or a failed Binding, says more.
"""

import concurrent.futures
import dataclasses
import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jaxsched.kube.capacity.free_capacity import Assignment, Placement
from jaxsched.kube.cluster import binder as binding
from jaxsched.kube.cluster.api import ApiClient, Response, Unreachable, pod_path
from jaxsched.kube.cluster.binder import Binder, Outcome
from jaxsched.kube.cluster.informers import Informers
from jaxsched.kube.cluster.metrics import Metrics
from jaxsched.kube.cluster.report import Reporter
from jaxsched.kube.read.objects import Pod, mapping

log = logging.getLogger("jaxsched.kube")

BACKOFF_S = (1.0, 10.0)
DENIED_S = 300.0
REJECTED_S = 120.0  # a pod that ends this soon after our Binding is looked at: did the kubelet reject it?


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


def is_rejection(status: Mapping[str, Any]) -> bool:
    """A pod's status says that its kubelet did not let it start, for whatever reason (OutOfcpu, NodeAffinity, ...).

    The kubelet's `rejectPod` sets the phase and a reason; older ones leave out the words. A pod that has started has
    the status of its containers.
    """
    if status.get("phase") != "Failed" or not status.get("reason"):
        return False
    return str(status.get("message", "")).startswith("Pod was rejected") or not status.get("containerStatuses")


class GangBinder:
    """Binds with up to `threads` requests at a time, and remembers what failed and what was bound a moment ago."""

    def __init__(
        self, api: ApiClient, binder: Binder, informers: Informers, reporter: Reporter, metrics: Metrics, threads: int
    ) -> None:
        self.api, self.binder, self.informers, self.reporter, self.metrics = api, binder, informers, reporter, metrics
        self.assumed = AssumedPods()
        self._pool = concurrent.futures.ThreadPoolExecutor(threads, thread_name_prefix="bind")
        self._backoff: dict[str, tuple[float, float]] = {}  # gang -> not before (monotonic), the last delay
        self._bound_at: dict[str, tuple[float, Assignment]] = {}

    def close(self) -> None:
        """Wait for what is under way."""
        self._pool.shutdown(wait=True)

    def backing_off(self) -> set[str]:
        """Keys of gangs that are not to be tried yet; forgets delays that are long over."""
        now = time.monotonic()
        self._backoff = {key: entry for key, entry in self._backoff.items() if entry[0] + BACKOFF_S[1] * 6 > now}
        return {key for key, (until, _) in self._backoff.items() if until > now}

    def some_back_off(self) -> bool:
        """Some gang has failed of late."""
        return bool(self._backoff)

    def set_aside(self, key: str) -> None:
        """Leave a gang out of snapshots for as long as one whose Bindings are denied."""
        self._backoff[key] = time.monotonic() + DENIED_S, DENIED_S

    def bind(self, placements: Sequence[Placement], plan_s: float = 0.0) -> None:
        """Bind gangs in order, pods in parallel, and wait for all of them. `plan_s`: what planning them took.

        Once the server has not answered for one pod, no Binding of this plan is begun any more: when it answers again,
        the plan may be out of date.
        """
        silent = threading.Event()
        for placement in placements:
            self.assumed.assume(placement)
            self.reporter.withdraw([assignment.pod for assignment in placement.assignments])
        futures = [
            [self._pool.submit(self._bind_one, one, placement, plan_s, silent) for one in placement.assignments]
            for placement in placements
        ]
        for placement, own in zip(placements, futures, strict=True):
            outcomes = [future.result() for future in own]
            whole = all(outcome.result == binding.BOUND for outcome in outcomes)
            self.metrics.attempts.labels("scheduled" if whole else "error", placement.by).inc()
            if whole:
                self._succeeded(placement)
            else:
                self._settle(placement, outcomes)

    def check_rejection(self, uid: str) -> None:
        """A pod is gone from the list; if we bound it a moment ago, ask whether its kubelet rejected it."""
        now = time.monotonic()
        for old in [key for key, (at, _) in list(self._bound_at.items()) if now - at > REJECTED_S]:
            self._bound_at.pop(old, None)
        entry = self._bound_at.pop(uid, None)
        if entry is not None:
            self._pool.submit(self._was_rejected, entry[1].pod)

    def _bind_one(
        self, assignment: Assignment, placement: Placement, plan_s: float, silent: threading.Event
    ) -> Outcome:
        if silent.is_set():
            return Outcome(binding.UNKNOWN, "not begun: the server does not answer for another pod")
        began = time.perf_counter()
        try:
            outcome = self.binder.bind(assignment, placement.decision, placement.by)
        except Exception as error:  # a fault of ours; what the server did with this Binding is not known
            log.exception("pod %s: binding raised", assignment.pod.key)
            outcome = Outcome(binding.UNKNOWN, f"binding raised {type(error).__name__}")
        else:
            if outcome.result == binding.UNKNOWN:
                silent.set()
        took = time.perf_counter() - began
        self.metrics.bind_s.observe(took)
        result = "scheduled" if outcome.result == binding.BOUND else "error"
        self.metrics.count_attempts(1, result, assignment.pod.scheduler, plan_s + took)
        self.metrics.binds.labels(outcome.result).inc()
        if outcome.result == binding.BOUND:
            self._bound_at[assignment.pod.uid] = time.monotonic(), assignment
            if not self.binder.dry_run:
                where = f"bound to {assignment.node}, gang {placement.gang.key}, decision {placement.decision}"
                self.reporter.report_event(assignment.pod, "Scheduled", where)
        return outcome

    def _succeeded(self, placement: Placement) -> None:
        """All Bindings succeeded: count and log it."""
        gang = placement.gang
        self.metrics.gang_s.observe(max(self.api.clock.now_s() - gang.submit_s, 0.0))
        log.info(
            "gang %s: %d pods on %s by %s, decision %s%s",
            gang.key,
            len(placement.assignments),
            ",".join(sorted({assignment.node for assignment in placement.assignments})),
            placement.by,
            placement.decision,
            " (dry run)" if self.binder.dry_run else "",
        )
        self._backoff.pop(gang.key, None)

    def _settle(self, placement: Placement, outcomes: list[Outcome]) -> None:
        """Some Bindings failed: forget those, look again, and let the gang rest for a while."""
        worst = {outcome.result for outcome in outcomes}
        for assignment, outcome in zip(placement.assignments, outcomes, strict=True):
            if outcome.result != binding.BOUND:
                self.assumed.forget(assignment.pod.uid)
                log.warning("pod %s: %s: %s", assignment.pod.key, outcome.result, outcome.message)
            if outcome.result == binding.DENIED:
                self.reporter.report_event(assignment.pod, "FailedBinding", outcome.message, "Warning")
        if binding.UNKNOWN in worst or binding.ELSEWHERE in worst:
            self.informers.relist("pods")
        _, last = self._backoff.get(placement.gang.key, (0.0, 0.0))
        delay = DENIED_S if binding.DENIED in worst else min(max(last * 2, BACKOFF_S[0]), BACKOFF_S[1])
        self._backoff[placement.gang.key] = time.monotonic() + delay, delay

    def _was_rejected(self, pod: Pod) -> None:
        try:
            response: Response = self.api.request("GET", pod_path(pod.namespace, pod.name))
        except Unreachable:
            return
        status = mapping(response.body, "status")
        same = mapping(response.body, "metadata").get("uid") == pod.uid
        if same and is_rejection(status):
            log.error("pod %s: its kubelet rejected it: %s", pod.key, status.get("message", ""))
            self.metrics.rejected.inc()
            self.informers.relist("pods", "nodes")
