"""The API server of the tests on a socket: requests in, JSON and streams of watch events out."""

import datetime
import email.utils
import http.server
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from tests.support.kube.fake import FakeServer


class Problem(Exception):
    """An answer that is an error."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        self.code, self.reason, self.message = code, reason, message


def handler_of(fake: "FakeServer") -> type[http.server.BaseHTTPRequestHandler]:
    """What answers for `fake` on a socket."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else each answer waits 40 ms for an acknowledgement

        def date_time_string(self, timestamp: float | None = None) -> str:
            return email.utils.format_datetime(datetime.datetime.fromisoformat(fake.stamp()), usegmt=True)

        def serve(self) -> None:
            url = urlsplit(self.path)
            query = {k: v[0] for k, v in parse_qs(url.query).items()}
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            user = self.headers.get("Impersonate-User") or ""
            try:
                if self.command == "GET" and query.get("watch"):
                    fake.handle("GET", url.path, query, None, user)
                    return self.stream(url.path, query)
                status, response = fake.handle(self.command, url.path, query, body, user)
            except Problem as problem:
                status = problem.code
                response = {"kind": "Status", "status": "Failure", "code": status}
                response |= {"message": problem.message, "reason": problem.reason}
            data = json.dumps(response).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def stream(self, path: str, query: dict[str, str]) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()

            def write(event: dict) -> None:
                data = json.dumps(event).encode() + b"\n"
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                self.wfile.flush()

            try:
                fake.watch(path, query, write)
                self.wfile.write(b"0\r\n\r\n")
            except OSError:
                self.close_connection = True

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = serve

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler
