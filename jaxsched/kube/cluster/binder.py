"""What is written about pods: Bindings of whole gangs, in parallel, and evictions.

Every Binding has the pod's uid, and there is a rule for each way it can go wrong (docs/kubernetes.md). Gangs that fail
rest for a while. Assumed pods count as bound until the watch, or a failed Binding, says more.

The Eviction API keeps PodDisruptionBudgets and pods' grace periods. Every pod is asked about with a dry run first, so
that nothing is begun that the server refuses. What is refused midway all the same is tried again until all of its gang
has ended.
"""

import concurrent.futures
import dataclasses
import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from jaxsched.kube.capacity.free_capacity import Assignment, Placement
from jaxsched.kube.cluster.api import ApiClient, Response, Unreachable, pod_path
from jaxsched.kube.cluster.informers import Informers
from jaxsched.kube.cluster.monitoring import Metrics
from jaxsched.kube.cluster.report import Reporter
from jaxsched.kube.plan.preemption import Preemption
from jaxsched.kube.read.hints import DECISION, GROUP, POLICY
from jaxsched.kube.read.objects import Pod, mapping

log = logging.getLogger("jaxsched.kube")

BOUND, ELSEWHERE, GONE, CONFLICT, DENIED, UNKNOWN = "bound", "elsewhere", "gone", "conflict", "denied", "unknown"
DEADLINE_S = 30.0  # of retries through 429, 5xx and silence; afterwards the watch tells what became of the pod
PERMANENT = (400, 401, 403, 422)


class Outcome(NamedTuple):
    """What became of a Binding: one of the constants above, and the server's words."""

    result: str
    message: str = ""


def binding(assignment: Assignment, decision: str, policy: str) -> dict[str, Any]:
    """The Binding; the annotations are merged into the pod in the same write."""
    pod = assignment.pod
    groups = "-".join(map(str, assignment.groups))
    notes = {DECISION: decision, POLICY: policy} | ({GROUP: groups} if groups else {})
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid, "annotations": notes},
        "target": {"apiVersion": "v1", "kind": "Node", "name": assignment.node},
    }


class Binder:
    """Sends Bindings; with `dry_run` the server checks them and changes nothing."""

    def __init__(
        self,
        api: ApiClient,
        dry_run: bool = False,
        deadline_s: float = DEADLINE_S,
        sleep: Callable[[float], None] = time.sleep,
        may_bind: Callable[[], bool] = lambda: True,
    ) -> None:
        self.api, self.dry_run, self.deadline_s, self.sleep, self.may_bind = api, dry_run, deadline_s, sleep, may_bind
        self.query = {"dryRun": "All"} if dry_run else None

    def bind(self, assignment: Assignment, decision: str, policy: str) -> Outcome:
        """Bind one pod; returns when it is known what happened, or after the deadline."""
        pod, body = assignment.pod, binding(assignment, decision, policy)
        path = pod_path(pod.namespace, pod.name, "binding")
        end, delay, tried = time.monotonic() + self.deadline_s, 0.2, False
        while True:
            if not self.may_bind():
                return Outcome(UNKNOWN, "no longer the leader")
            outcome, wait = None, delay
            try:
                if tried:  # the write before may have been done: read before writing again
                    outcome = self.read_back(assignment)
                if outcome is None:
                    tried = True
                    response = self.api.request("POST", path, self.query, body)
                    outcome, wait = self._judge(assignment, response), max(delay, response.retry_after_s)
            except Unreachable as error:
                outcome, tried = None, True
                last = str(error)
            else:
                last = "the API server is overloaded or failing"
            if outcome is not None:
                return outcome
            if time.monotonic() + wait > end:
                return Outcome(UNKNOWN, last)
            self.sleep(wait * random.uniform(0.5, 1.0))
            delay = min(delay * 2, 5.0)

    def read_back(self, assignment: Assignment) -> Outcome | None:
        """What the pod says; None if it is still unbound. Unreachable if nobody answers."""
        pod = assignment.pod
        response = self.api.request("GET", pod_path(pod.namespace, pod.name))
        if response.status == 404:
            return Outcome(GONE, response.message)
        if not response.ok:
            if response.status in PERMANENT:
                return Outcome(DENIED, response.message)
            raise Unreachable(response.message)
        meta, spec = mapping(response.body, "metadata"), mapping(response.body, "spec")
        if meta.get("uid") != pod.uid or meta.get("deletionTimestamp"):
            return Outcome(GONE, "the pod was deleted or replaced")
        node = spec.get("nodeName")
        if not node:
            return None
        return Outcome(BOUND) if node == assignment.node else Outcome(ELSEWHERE, f"bound to {node} already")

    def _judge(self, assignment: Assignment, response: Response) -> Outcome | None:
        """The outcome of a response; None: try again."""
        if response.ok:
            return Outcome(BOUND)
        if response.status == 404:
            return Outcome(GONE, response.message)
        if response.status == 409:
            return self.read_back(assignment) or Outcome(CONFLICT, response.message)
        if response.status in PERMANENT:
            return Outcome(DENIED, response.message)
        return None


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
            whole = all(outcome.result == BOUND for outcome in outcomes)
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
            return Outcome(UNKNOWN, "not begun: the server does not answer for another pod")
        began = time.perf_counter()
        try:
            outcome = self.binder.bind(assignment, placement.decision, placement.by)
        except Exception as error:  # a fault of ours; what the server did with this Binding is not known
            log.exception("pod %s: binding raised", assignment.pod.key)
            outcome = Outcome(UNKNOWN, f"binding raised {type(error).__name__}")
        else:
            if outcome.result == UNKNOWN:
                silent.set()
        took = time.perf_counter() - began
        self.metrics.bind_s.observe(took)
        result = "scheduled" if outcome.result == BOUND else "error"
        self.metrics.count_attempts(1, result, assignment.pod.scheduler, plan_s + took)
        self.metrics.binds.labels(outcome.result).inc()
        if outcome.result == BOUND:
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
            if outcome.result != BOUND:
                self.assumed.forget(assignment.pod.uid)
                log.warning("pod %s: %s: %s", assignment.pod.key, outcome.result, outcome.message)
            if outcome.result == DENIED:
                self.reporter.report_event(assignment.pod, "FailedBinding", outcome.message, "Warning")
        if UNKNOWN in worst or ELSEWHERE in worst:
            self.informers.relist("pods")
        _, last = self._backoff.get(placement.gang.key, (0.0, 0.0))
        delay = DENIED_S if DENIED in worst else min(max(last * 2, BACKOFF_S[0]), BACKOFF_S[1])
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


WAIT_S = 10.0  # after a refusal, unless the server says how long
REMEMBERED_S = 600.0  # how long nodes that become free are kept for a gang


class Evictor:
    """Evicts whole gangs; remembers for which gangs room is being made."""

    def __init__(
        self,
        api: ApiClient,
        reporter: Reporter,
        metrics: Metrics,
        may_evict: Callable[[], bool] = lambda: True,
        dry_run: bool = False,
    ) -> None:
        self.api, self.reporter, self.metrics, self.may_evict, self.dry_run = api, reporter, metrics, may_evict, dry_run
        self._not_before = 0.0
        self._rest: tuple[Preemption, tuple[Pod, ...]] | None = None  # one that has begun, and pods that must end yet
        self._for: dict[str, float] = {}  # gang -> when its last victim was evicted (monotonic)

    def making_room(self) -> frozenset[str]:
        """Keys of gangs for which others were evicted of late."""
        now = time.monotonic()
        self._for = {key: at for key, at in self._for.items() if now - at < REMEMBERED_S}
        return frozenset(self._for)

    def unfinished(self) -> bool:
        """Some pods of a gang that has begun to end do not end yet."""
        return self._rest is not None

    def carry_out(self, preemption: Preemption | None) -> None:
        """Evict all victims, or none if the server refuses one; but first end what has begun."""
        if time.monotonic() < self._not_before or not self.may_evict():
            return
        if self._rest is not None:
            return self._end(*self._rest)
        if preemption is None:
            return
        self.metrics.preemption_attempts.inc()
        if all(self._evict(pod, preemption, dry_run=True) for pod in preemption.pods) and not self.dry_run:
            self._end(preemption, preemption.pods)

    def _end(self, preemption: Preemption, pods: tuple[Pod, ...]) -> None:
        """Evict these, in order, until one is refused."""
        for number, pod in enumerate(pods):
            if not self.may_evict() or not self._evict(pod, preemption, dry_run=False):
                self._rest = (preemption, pods[number:]) if pods[number:] != preemption.pods else None
                return
        self._rest = None
        self.metrics.preemption_victims.observe(len(preemption.pods))
        names = ", ".join(victim.key for victim in preemption.victims)
        log.info("gang %s: evicted %s, %d pods", preemption.gang.key, names, len(preemption.pods))

    def _evict(self, pod: Pod, preemption: Preemption, dry_run: bool) -> bool:
        """One pod; whether it ends, or has ended."""
        options: dict = {"preconditions": {"uid": pod.uid}} | ({"dryRun": ["All"]} if dry_run else {})
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "deleteOptions": options}
        body["metadata"] = {"name": pod.name, "namespace": pod.namespace}
        try:
            response = self.api.request("POST", pod_path(pod.namespace, pod.name, "eviction"), body=body)
        except Unreachable as error:  # the next plan sees what became of it
            response = Response(503, {"message": str(error)})
        if response.ok and not dry_run:
            self._for[preemption.gang.key] = time.monotonic()
            why = f"for gang {preemption.gang.key}, priority {preemption.gang.priority}"
            self.reporter.report_event(pod, "Preempted", f"evicted {why}", "Warning")
        if response.ok or response.status in (404, 409):  # gone, or another pod has its name
            return True
        self._not_before = time.monotonic() + max(response.retry_after_s, WAIT_S)
        log.warning("gang %s: pod %s is not evicted: %s", preemption.gang.key, pod.key, response.message)
        return False
