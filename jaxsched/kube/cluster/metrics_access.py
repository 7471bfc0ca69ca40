"""Who may read /metrics: the API server is asked, as kube-scheduler asks it.

The bearer token goes into a TokenReview, the user that it names into a SubjectAccessReview (`get` on `/metrics`).
"""

import hashlib
import threading
import time

from jaxsched.kube.cluster.api import ApiClient, Response, Unreachable
from jaxsched.kube.read.objects import mapping

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
