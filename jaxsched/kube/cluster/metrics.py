"""Prometheus metrics, named after the default scheduler's, and the health endpoints."""

import http.server
import threading
from collections.abc import Callable
from typing import Any

from jaxsched.errors import UserError

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300, 1800)


class Metrics:
    """All metrics of one process. UserError if the Prometheus client is not installed."""

    def __init__(self) -> None:
        try:
            import prometheus_client as prometheus
        except ImportError:
            raise UserError("jaxsched kube needs the Prometheus client: pip install 'jaxsched[kube]'") from None
        self.registry = registry = prometheus.CollectorRegistry()
        prometheus.ProcessCollector(registry=registry)

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
        self.rejected = counter("kubelet_rejections", "Pods that a kubelet rejected after our Binding (OutOf...)")
        self.restarts = counter("watch_restarts", "Watches that ended, by resource and cause", "resource", "cause")
        self.compilations = gauge("policy_compilations", "Times that the policy was compiled")
        self.leader = gauge("leader", "1 while this replica leads")
        self.refused_nodes = gauge("unreadable_nodes", "Nodes that are left out because they cannot be read")
        self.unreadable = gauge("unreadable_objects", "Objects that reading raised on, by resource", "resource")

    def text(self) -> bytes:
        """The exposition format."""
        import prometheus_client

        return prometheus_client.generate_latest(self.registry)


def serve(port: int, metrics: Metrics, live: Callable[[], str], ready: Callable[[], str]) -> http.server.HTTPServer:
    """Serve /metrics, /livez, /healthz and /readyz on all addresses; `live` and `ready` say what is wrong, or "".

    UserError if the port is taken.
    """

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = self.path.partition("?")[0]
            if page == "/metrics":
                return self._answer(200, metrics.text(), "text/plain; version=0.0.4; charset=utf-8")
            checks = {"/livez": live, "/healthz": live, "/readyz": ready}
            if page not in checks:
                return self._answer(404, b"not found\n")
            trouble = checks[page]()
            self._answer(503 if trouble else 200, f"{trouble or 'ok'}\n".encode())

        def _answer(self, status: int, body: bytes, kind: str = "text/plain") -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Probes are not news."""

    try:
        server = http.server.ThreadingHTTPServer(("", port), Handler)
    except OSError as error:
        raise UserError(
            f"--metrics-port {port}: cannot be used: {error.strerror}; choose another, or 0 for any"
        ) from None
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return server
