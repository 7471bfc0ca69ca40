"""/metrics, /livez, /healthz and /readyz over HTTP, within bounds: whoever can reach the port can open connections.

A client gets one answer per connection, and little time for it. When all places are taken the oldest connection is cut,
so that clients that hold connections open do not keep the kubelet's probes out, which would end the process.
"""

import contextlib
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
from jaxsched.kube.cluster.metrics import Metrics

log = logging.getLogger("jaxsched.kube")

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
