"""Bind pods: the uid in every Binding, the raw response, a rule for each way it can go wrong (docs/kubernetes.md)."""

import random
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from jaxsched.kube.capacity.free_capacity import Assignment
from jaxsched.kube.cluster.api import ApiClient, Response, Unreachable, pod_path
from jaxsched.kube.read.hints import DECISION, GROUP, POLICY
from jaxsched.kube.read.objects import mapping

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
