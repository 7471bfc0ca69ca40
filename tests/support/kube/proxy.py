"""A plain-HTTP proxy in front of an API server, fake or real, that breaks what it is told to break."""

import dataclasses
import http.server
import re
import threading
import time
from typing import Any

import urllib3

from jaxsched.kube.cluster.api import ApiClient

END_S = 0.05  # how long it may take to end


@dataclasses.dataclass
class Fault:
    """Applies to the next `times` requests that match."""

    method: str
    path: str  # regular expression, searched
    times: int = 1
    status: int = 0  # answer with this and do not forward
    retry_after: str = ""
    lose_answer: bool = False  # forward, then close the connection without an answer
    late_s: float = 0.0  # forward, then answer after so long
    cut_after: int = -1  # of a watch: cut the connection after so many chunks
    hang: bool = False  # do not answer at all, keep the connection open
    freeze: bool = False  # of a watch: say nothing, keep the connection open
    body: bytes = b'{"kind":"Status","status":"Failure","message":"injected"}'
    hits: int = 0


class Proxy:
    def __init__(self, upstream: ApiClient) -> None:
        self.upstream, self.faults, self.seen = upstream, [], []
        self.lock = threading.Lock()
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(END_S,), daemon=True).start()
        self.api = ApiClient(f"http://127.0.0.1:{self.server.server_address[1]}")

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def inject(self, method: str, path: str, **what: Any) -> Fault:
        fault = Fault(method, path, **what)
        with self.lock:
            self.faults.append(fault)
        return fault

    def count(self, method: str, path: str) -> int:
        """How many requests arrived, broken ones too."""
        with self.lock:
            return sum(m == method and re.search(path, p) is not None for m, p in self.seen)

    def _fault(self, method: str, path: str) -> Fault | None:
        with self.lock:
            self.seen.append((method, path))
            for fault in self.faults:
                if fault.hits < fault.times and fault.method == method and re.search(fault.path, path):
                    fault.hits += 1
                    return fault
        return None

    def _handler(self) -> type:
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # else each answer waits 40 ms for an acknowledgement

            server_date = ""  # of the last answer

            def date_time_string(self, timestamp: float | None = None) -> str:
                return self.server_date or super().date_time_string(timestamp)

            def serve(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(length) if length else None
                fault = proxy._fault(self.command, self.path)
                if fault is not None and fault.status:
                    return self.response(fault.status, fault.body, fault.retry_after)
                if fault is not None and fault.hang:
                    time.sleep(30)
                    self.close_connection = True
                    return
                if fault is not None and fault.freeze:
                    self.begin_chunks()
                    time.sleep(30)
                    self.close_connection = True
                    return
                headers = proxy.upstream._headers()
                headers |= {k: v for k, v in self.headers.items() if k in ("Content-Type", "Impersonate-User")}
                try:
                    reply = proxy.upstream.pool.request(
                        self.command,
                        proxy.upstream.host + self.path,
                        body=body,
                        headers=headers,
                        preload_content=False,
                        retries=False,
                    )
                except urllib3.exceptions.HTTPError:
                    self.close_connection = True
                    return
                self.server_date = reply.headers.get("Date") or ""
                if "watch=true" not in self.path:
                    data = reply.data
                    time.sleep(fault.late_s if fault is not None else 0.0)
                    if fault is not None and fault.lose_answer:
                        self.close_connection = True
                        return
                    return self.response(reply.status, data, reply.headers.get("Retry-After") or "")
                if reply.status != 200:
                    return self.response(reply.status, reply.data, "")
                self.relay(reply, fault.cut_after if fault is not None else -1)

            def relay(self, reply: Any, cut_after: int) -> None:
                self.begin_chunks()
                try:
                    for number, chunk in enumerate(reply.stream(65536)):
                        if number == cut_after:
                            self.close_connection = True
                            return
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
                        self.wfile.flush()
                    self.wfile.write(b"0\r\n\r\n")
                except (OSError, urllib3.exceptions.HTTPError):
                    self.close_connection = True
                finally:
                    reply.close()

            def begin_chunks(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                self.wfile.flush()

            def response(self, status: int, data: bytes, retry_after: str) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                if retry_after:
                    self.send_header("Retry-After", retry_after)
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = serve

            def log_message(self, format: str, *args: Any) -> None:
                pass

        return Handler
