"""Prometheus metrics: the default scheduler's, with its names, for what both have, and those of gangs.

Who may read them, the API server is asked, as kube-scheduler asks it: the bearer token goes into a TokenReview, the
user that it names into a SubjectAccessReview (`get` on `/metrics`).
"""

import hashlib
import threading
import time
from typing import Any

from jaxsched.errors import UserError
from jaxsched.kube.cluster.api import ApiClient, Response, Unreachable
from jaxsched.kube.read.objects import mapping

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300, 1800)
PREEMPTION_VICTIMS = tuple(2**power for power in range(7))  # kube-scheduler's buckets
UPSTREAM_SECONDS = tuple(0.001 * 2**power for power in range(15))  # kube-scheduler's buckets of an attempt


class Metrics:
    """All metrics of one process. UserError if the Prometheus client is not installed."""

    def __init__(self) -> None:
        try:
            import prometheus_client as prometheus
        except ImportError:
            raise UserError("jaxsched kube needs the Prometheus client: pip install 'jaxsched[kube]'") from None
        self.registry = registry = prometheus.CollectorRegistry()
        prometheus.ProcessCollector(registry=registry)

        # kube-scheduler's names and labels (pkg/scheduler/metrics), so that its dashboards show this scheduler
        self.pod_attempts = prometheus.Counter(
            "scheduler_schedule_attempts", "Pods planned, by result", ("result", "profile"), registry=registry
        )
        self.pod_attempt_s = prometheus.Histogram(
            "scheduler_scheduling_attempt_duration_seconds",
            "The plan that a pod was in, and its Binding",
            ("result", "profile"),
            buckets=UPSTREAM_SECONDS,
            registry=registry,
        )
        self.pending_pods = prometheus.Gauge(
            "scheduler_pending_pods", "Unbound pods, by queue", ("queue",), registry=registry
        )

        self.preemption_attempts = prometheus.Counter(
            "scheduler_preemption_attempts", "Preemptions that were begun or refused", registry=registry
        )
        self.preemption_victims = prometheus.Histogram(
            "scheduler_preemption_victims", "Pods evicted in one", buckets=PREEMPTION_VICTIMS, registry=registry
        )

        def counter(name: str, text: str, *labels: str) -> Any:
            return prometheus.Counter(f"jaxsched_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str) -> Any:
            return prometheus.Histogram(f"jaxsched_{name}", text, buckets=SECONDS, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Any:
            return prometheus.Gauge(f"jaxsched_{name}", text, labels, registry=registry)

        self.attempts = counter("schedule_attempts", "Gangs planned, by result and policy", "result", "by")
        self.binds = counter("pod_binds", "Bindings, by result", "result")
        self.gang_s = histogram("gang_scheduling_duration_seconds", "From a gang's first pod to its last Binding")
        self.decision_s = histogram("scheduling_algorithm_duration_seconds", "In the policy, per gang placed")
        self.plan_s = histogram("plan_duration_seconds", "From a snapshot to a plan")
        self.bind_s = histogram("bind_duration_seconds", "One Binding, retries included")
        self.pending = gauge("pending_gangs", "Gangs with unbound pods, by reason", "reason")
        self.partial = gauge("partial_gangs", "Gangs of which some pods are bound and others are not")
        self.fallbacks = counter("policy_failures", "Decisions that the fallback took over, by cause", "cause")
        self.set_aside = counter("gangs_set_aside", "Gangs that made planning raise")
        self.failed_turns = counter("failed_turns", "Turns of the loop that raised, and were given up")
        self.rejected = counter("kubelet_rejections", "Pods that a kubelet rejected after our Binding")
        self.restarts = counter("watch_restarts", "Watches that ended, by resource and cause", "resource", "cause")
        self.compilations = gauge("policy_compilations", "Times that the policy was compiled")
        self.policy_ready = gauge("policy_ready", "1 while the policy decides; 0: it is being compiled")
        self.leader = gauge("leader", "1 while this replica leads")
        self.refused_nodes = gauge("unreadable_nodes", "Nodes that are left out because they cannot be read")
        self.unreadable = gauge("unreadable_objects", "Objects that reading raised on, by resource", "resource")

    def count_attempts(self, pods: int, result: str, profile: str, seconds: float) -> None:
        """So many pods were tried in one plan."""
        self.pod_attempts.labels(result, profile).inc(pods)
        histogram = self.pod_attempt_s.labels(result, profile)
        for _ in range(pods):
            histogram.observe(seconds)

    def text(self) -> bytes:
        """The exposition format."""
        import prometheus_client

        return prometheus_client.generate_latest(self.registry)


KEPT_S = 10.0  # an answer counts for this long, as kube-scheduler's do
PATIENCE_S = 5.0  # with each of the two questions
MOST_KEPT = 64
LONGEST_TOKEN = 8192

ALLOWED = 200, ""
NO_TOKEN = 401, "a bearer token is needed"
UNKNOWN = 401, "the API server does not know this token"
FORBIDDEN = 403, "this token's user may not get /metrics"
NOBODY_SAYS = 503, "the API server cannot say now who may read this"


class MetricsAccess:
    """Answers are kept by a hash of the token. Who asks waits for nobody else's answer.

    The places of the server of /metrics bound how many ask at a time.
    """

    def __init__(self, api: ApiClient) -> None:
        self.api = api
        self._kept: dict[bytes, tuple[float, tuple[int, str]]] = {}
        self._lock = threading.Lock()

    def check(self, authorization: str) -> tuple[int, str]:
        """An HTTP status (200: go on) and what is wrong, for the header `Authorization`."""
        kind, _, token = authorization.partition(" ")
        token = token.strip()
        if kind.lower() != "bearer" or not token or len(token) > LONGEST_TOKEN or not token.isascii():
            return NO_TOKEN
        name = hashlib.sha256(token.encode()).digest()
        with self._lock:
            at, answer = self._kept.get(name, (0.0, NOBODY_SAYS))
        if answer != NOBODY_SAYS and time.monotonic() - at <= KEPT_S:
            return answer
        answer = self._ask(token)
        with self._lock:
            self._kept.pop(name, None)
            while len(self._kept) >= MOST_KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[name] = time.monotonic(), answer
        return answer

    def _ask(self, token: str) -> tuple[int, str]:
        try:
            review = self._create("authentication.k8s.io", "TokenReview", {"token": token})
            if not review.ok:
                return NOBODY_SAYS
            status = mapping(review.body, "status")
            if status.get("authenticated") is not True:
                return UNKNOWN
            user = mapping(status, "user")
            spec = {"user": user.get("username"), "uid": user.get("uid"), "groups": user.get("groups")}
            spec |= {"extra": user.get("extra"), "nonResourceAttributes": {"path": "/metrics", "verb": "get"}}
            review = self._create("authorization.k8s.io", "SubjectAccessReview", spec)
        except Unreachable:
            return NOBODY_SAYS
        if not review.ok:
            return NOBODY_SAYS
        return ALLOWED if mapping(review.body, "status").get("allowed") is True else FORBIDDEN

    def _create(self, group: str, kind: str, spec: dict) -> Response:
        given = {key: value for key, value in spec.items() if value}
        body = {"apiVersion": f"{group}/v1", "kind": kind, "spec": given}
        return self.api.request("POST", f"/apis/{group}/v1/{kind.lower()}s", body=body, read_s=PATIENCE_S)
