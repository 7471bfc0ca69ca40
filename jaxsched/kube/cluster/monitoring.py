"""Prometheus metrics, and /metrics, /livez, /healthz and /readyz over HTTP.

The metrics are the default scheduler's, with its names, for what both have, and those of gangs. Who may read them, the
API server is asked, as kube-scheduler asks it: the bearer token goes into a TokenReview, the user that it names into a
SubjectAccessReview (`get` on `/metrics`).

Whoever can reach the port can open connections, so a client gets one answer per connection, and little time for it.
When all places are taken the oldest connection is cut, so that clients that hold connections open do not keep the
kubelet's probes out, which would end the process.
"""

import contextlib
import hashlib
import http.server
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxsched.errors import UserError
from jaxsched.kube.cluster.api import ApiClient, Response, Unreachable
from jaxsched.kube.read.objects import mapping

log = logging.getLogger("jaxsched.kube")

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


MOST_CLIENTS = 16  # connections, and threads, at a time
SILENT_S = 5.0  # a client that neither sends nor takes anything for this long is cut
LONGEST_S = 10.0  # and any client after this long


class HealthServer(http.server.HTTPServer):
    """Serves at most `MOST_CLIENTS` connections at a time, each from a thread of its own."""

    request_queue_size = 2 * MOST_CLIENTS

    def __init__(
        self,
        address: str,
        port: int,
        handler: type[http.server.BaseHTTPRequestHandler],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._tls = tls
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._places = threading.Semaphore(MOST_CLIENTS)
        self._open: dict[socket.socket, float] = {}  # since when (monotonic), oldest first
        self._lock = threading.Lock()
        super().__init__((address, port), handler)

    def server_bind(self) -> None:
        """Bind without the look-up of this host's name that the base class makes."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a new connection, in the place of the oldest if there is none left."""
        if not self._places.acquire(blocking=False):
            self._cut(most=1)
            if not self._places.acquire(timeout=1.0):
                return self.shutdown_request(request)
        if self._tls is not None:  # the handshake is made by the thread that serves it
            request = self._tls.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
        with self._lock:
            self._open[request] = time.monotonic()
        threading.Thread(target=self._serve, args=(request, client_address), name="metrics client", daemon=True).start()

    def service_actions(self) -> None:
        """Called twice a second: cut those that take too long."""
        self._cut(most=MOST_CLIENTS, older_s=LONGEST_S)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that could not be served; the next one may be."""
        log.warning("a client of the metrics could not be served", exc_info=True)

    def _serve(self, request: socket.socket, client_address: Any) -> None:
        try:
            if isinstance(request, ssl.SSLSocket):
                request.settimeout(SILENT_S)
                request.do_handshake()
            self.finish_request(request, client_address)
        except OSError:
            pass  # it went away, was silent, or was cut
        except Exception:
            self.handle_error(request, client_address)
        finally:
            with self._lock:
                self._open.pop(request, None)
            self.shutdown_request(request)
            self._places.release()

    def _cut(self, most: int, older_s: float = 0.0) -> None:
        """End the oldest connections, at most so many; their threads give up their places."""
        now = time.monotonic()
        with self._lock:
            for request in [one for one, since in self._open.items() if now - since >= older_s][:most]:
                del self._open[request]
                with contextlib.suppress(OSError):  # it has ended by itself
                    request.shutdown(socket.SHUT_RDWR)


def read_certificate(folder: Path) -> ssl.SSLContext:
    """TLS with `tls.crt` and `tls.key`, as a Secret of that type is mounted. UserError if they cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(folder / "tls.crt", folder / "tls.key", password="")  # of an encrypted key: refused
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise UserError(
            f"--metrics-certificate {folder}: tls.crt and tls.key cannot be used: {why}; give a folder with both"
        ) from None
    return context


def serve(
    address: str,
    port: int,
    metrics: Metrics,
    live: Callable[[], str],
    ready: Callable[[], str],
    check: Callable[[str], tuple[int, str]] = lambda authorization: (200, ""),
    tls: ssl.SSLContext | None = None,
) -> HealthServer:
    """Serve until `shutdown`; `live` and `ready` say what is wrong, or "". Port 0: any free one.

    `check` says of the header Authorization whether it may have /metrics: 200, else a status and why.
    UserError if the address or the port cannot be used.
    """

    class Handler(http.server.BaseHTTPRequestHandler):
        timeout = SILENT_S

        def do_GET(self) -> None:
            page = self.path.partition("?")[0]
            if page == "/metrics":
                status, why = check(self.headers.get("Authorization") or "")
                if status != 200:
                    return self._answer(status, f"{why}\n".encode())
                return self._answer(200, metrics.text(), "text/plain; version=0.0.4; charset=utf-8")
            checks = {"/livez": live, "/healthz": live, "/readyz": ready}
            if page not in checks:
                return self._answer(404, b"not found\n")
            trouble = checks[page]()
            self._answer(503 if trouble else 200, f"{trouble or 'ok'}\n".encode())

        def _answer(self, status: int, body: bytes, kind: str = "text/plain") -> None:
            self.send_response(status)
            if status == 401:
                self.send_header("WWW-Authenticate", "Bearer")
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Probes are not news."""

    try:
        server = HealthServer(address, port, Handler, tls)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise UserError(
            f"--metrics-address {address} --metrics-port {port}: cannot be used: {why}; choose others, port 0 for any"
        ) from None
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return server
