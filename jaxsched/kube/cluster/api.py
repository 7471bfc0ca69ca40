"""The API server as raw HTTPS and JSON, through the official client's connection pool, credentials and proxies.

Raw, because the typed client raises after a successful Binding (the body is a Status) and lists three times slower.
Also when its silence or refusals are worth a line in the log, and what the process may and must do there: asked before
it starts, so that a missing verb is one line, no half-bound gang.
"""

import contextlib
import email.utils
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from jaxsched.errors import UserError
from jaxsched.kube.read.groups import COSCHEDULING, OWNER_KINDS, UPSTREAM, VOLCANO

log = logging.getLogger("jaxsched.kube")

CONNECT_S, READ_S = 5.0, 15.0
DEFAULT_CONFIG = "~/.kube/config"
PODS, NODES = "/api/v1/pods", "/api/v1/nodes"
RESOLUTION_S = 1.0  # of the header: the server's clock stood between Date and this much later


class Unreachable(Exception):
    """No answer: refused, cut, timed out, not TLS. Whether a write was done is unknown."""


class Response(NamedTuple):
    """An HTTP status, the decoded body ({} if it is no JSON object), and Retry-After in seconds (0: none)."""

    status: int
    body: dict[str, Any]
    retry_after_s: float = 0.0

    @property
    def ok(self) -> bool:
        """2xx."""
        return 200 <= self.status < 300

    @property
    def message(self) -> str:
        """What the server says is wrong."""
        return str(self.body.get("message") or self.body.get("reason") or f"HTTP {self.status}")


class ApiClient:
    """Requests to one API server; safe to use from several threads."""

    def __init__(self, host: str, pool: Any = None, configuration: Any = None) -> None:
        import urllib3

        self.host = host.rstrip("/")
        self.pool = pool if pool is not None else urllib3.PoolManager(maxsize=32)
        self._configuration = configuration
        self.clock = ServerClock()
        self._errors = (urllib3.exceptions.HTTPError, OSError)

    def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        content: str = "application/json",
        read_s: float = READ_S,
    ) -> Response:
        """One request, never repeated by itself. Unreachable if there is no answer."""
        headers = self._headers() | ({"Content-Type": content} if body is not None else {})
        data = None if body is None else json.dumps(body).encode()
        sent_s = time.monotonic()
        try:
            reply = self.pool.request(
                method, self._url(path, query), body=data, headers=headers, retries=False, timeout=_timeout(read_s)
            )
        except self._errors as error:
            raise Unreachable(f"{method} {path}: {type(error).__name__}: {error}") from error
        self.clock.update(reply.headers.get("Date"), sent_s, time.monotonic())
        return Response(reply.status, _decoded(reply.data), _retry_after(reply.headers))

    def stream(
        self,
        path: str,
        query: Mapping[str, Any],
        idle_s: float,
        on_open: Callable[[Callable[[], None]], None] = lambda cancel: None,
    ) -> Iterator[dict[str, Any]]:
        """The events of a watch; a status other than 200 comes as one event of type ERROR.

        Ends when the server ends it. Unreachable if it is cut, or silent for `idle_s`: a half-open connection.
        `on_open`, called when it has begun well, gets a function with which another thread can cut it.
        """
        try:
            reply = self.pool.request(
                "GET",
                self._url(path, query),
                headers=self._headers(),
                retries=False,
                preload_content=False,
                timeout=_timeout(idle_s),
            )
            try:
                if reply.status != 200:
                    body = _decoded(reply.read())
                    yield {"type": "ERROR", "object": {**body, "code": reply.status}}
                    return
                on_open(reply.shutdown)
                rest = b""
                for chunk in reply.stream(65536):
                    *lines, rest = (rest + chunk).split(b"\n")
                    yield from (_event(line) for line in lines if line.strip())
            finally:
                reply.close()  # a watch that is left early must not go back to the pool
        except (*self._errors, ValueError) as error:
            raise Unreachable(f"watch {path}: {type(error).__name__}: {error}") from error

    def close(self) -> None:
        """Close idle connections."""
        self.pool.clear()

    def _url(self, path: str, query: Mapping[str, Any] | None) -> str:
        return f"{self.host}{quote(path)}" + (f"?{urlencode(query)}" if query else "")

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json", "User-Agent": "jaxsched"}
        if self._configuration is not None:
            for name in ("authorization", "BearerToken"):  # the client's name for it changed with version 37
                if token := self._configuration.get_api_key_with_prefix(name):
                    headers["Authorization"] = token
        return headers


def connect(kubeconfig: str | None = None, context: str | None = None) -> ApiClient:
    """The API server of a kubeconfig (default: $KUBECONFIG, ~/.kube/config), or of the pod that this runs in.

    UserError if the client is not installed or no configuration is found.
    """
    try:
        from kubernetes import client
        from kubernetes.client import rest
    except ImportError:
        raise UserError("jaxsched kube needs the Kubernetes client: pip install 'jaxsched[kube]'") from None
    configuration = client.Configuration()
    configuration.connection_pool_maxsize = 32
    _read_configuration(configuration, kubeconfig, context)
    return ApiClient(configuration.host, rest.RESTClientObject(configuration).pool_manager, configuration)


def _read_configuration(configuration: Any, kubeconfig: str | None, context: str | None) -> None:
    """Fill in where the cluster is. Of a pod's own only if no other one is named: that may be a wrong one."""
    from kubernetes import config

    named = kubeconfig or os.environ.get("KUBECONFIG") or ""
    where = named or DEFAULT_CONFIG
    option = f"--kubeconfig {named}" if kubeconfig else f"KUBECONFIG={named}"
    files = [Path(os.path.expanduser(one)) for one in where.split(os.pathsep) if one]
    unusable = ""
    if not any(file.exists() for file in files):
        if named:
            raise UserError(f"{option}: no such file")
        if context is not None:
            raise UserError(f"--context {context}: there is no {where} to have it: give --kubeconfig FILE")
    else:
        try:
            return config.load_kube_config(where, context=context, client_configuration=configuration)
        except Exception as error:  # the client raises ConfigException, and KeyError or YAML's own on odd files
            names = _contexts(files)
            if context is not None and context not in names:
                raise UserError(f"no context {context!r} in {where}; it has: {', '.join(names) or 'none'}") from None
            if named or context is not None:
                raise UserError(f"{option if named else where}: cannot be used: {error}") from None
            unusable = f"{where} cannot be used ({error}); "
    try:
        config.load_incluster_config(client_configuration=configuration)
    except config.ConfigException:
        raise UserError(
            f"no cluster to talk to: {unusable}give --kubeconfig FILE, set KUBECONFIG, or run in a pod with a service "
            "account"
        ) from None


def _contexts(files: Iterable[Path]) -> list[str]:
    """Names of the contexts of kubeconfigs; of those that cannot be read, none."""
    import yaml

    names: list[str] = []
    for file in files:
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError, KeyError, yaml.YAMLError):
            names += [str(one["name"]) for one in yaml.safe_load(file.read_text())["contexts"]]
    return names


def pod_path(namespace: str, name: str, part: str = "") -> str:
    """The path of a pod or of one of its subresources."""
    return f"/api/v1/namespaces/{namespace}/pods/{name}" + (f"/{part}" if part else "")


def _timeout(read_s: float) -> Any:
    import urllib3

    return urllib3.Timeout(connect=CONNECT_S, read=read_s)


def _decoded(data: bytes) -> dict[str, Any]:
    """A JSON object; {} for anything else."""
    try:
        return _event(data)
    except ValueError:
        return {}


def _event(line: bytes) -> dict[str, Any]:
    """A JSON object; {} for what is none, or is nested deeper than can be read. ValueError if it is cut: no JSON."""
    try:
        body = json.loads(line, parse_int=_number)
    except RecursionError:
        return {}
    return body if isinstance(body, dict) else {}


def _number(text: str) -> int | float:
    """A whole number; beyond 64 bits a float, so that no object's digits cost time or raise."""
    return int(text) if len(text) <= 20 else float(text)


def _retry_after(headers: Mapping[str, str]) -> float:
    text = headers.get("Retry-After") or ""
    return min(float(text), 60.0) if text.isascii() and text.isdecimal() else 0.0


class ServerClock:
    """Bounds on the server's time less our monotonic one, which every answer narrows; safe to use from threads."""

    def __init__(self) -> None:
        self._bounds: tuple[float, float] | None = None
        self._lock = threading.Lock()

    def update(self, date: str | None, sent_s: float, received_s: float) -> None:
        """An answer with this header came `received_s` to a request of `sent_s` (monotonic)."""
        try:
            stamp = email.utils.parsedate_to_datetime(date or "").timestamp()
        except (ValueError, OverflowError):
            return
        low, high = stamp - received_s, stamp + RESOLUTION_S - sent_s
        with self._lock:
            if self._bounds is not None:
                narrow = max(low, self._bounds[0]), min(high, self._bounds[1])
                if narrow[0] <= narrow[1]:  # else one of the clocks was set, ran fast, or is another server's
                    low, high = narrow
            self._bounds = low, high

    def now_s(self) -> float:
        """Seconds since 1970 on the server; on this machine while no server has said."""
        bounds = self._bounds
        return time.time() if bounds is None else time.monotonic() + sum(bounds) / 2


TRIES = 2  # that fail in a row: a watch that was only cut is answered when it is tried again

# A fresh API server refuses whom it will permit until it has read the roles and accounts: seconds, and more on a large
# cluster or a busy machine. A permission that was really taken away is told early enough a minute later.
REFUSED_S = 60.0


class Outage:
    """Of all watches: warns once when tries in a row fail, and says once when all who tried are answered again."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._failed: dict[str, int] = {}  # tries in a row, by who tries
        self._since_s: float | None = None  # it was said
        self._lock = threading.Lock()

    def record_failure(self, who: str, why: object) -> None:
        """A try got no answer."""
        with self._lock:
            self._failed[who] = self._failed.get(who, 0) + 1
            if self._since_s is None and self._failed[who] >= TRIES:
                self._since_s = time.monotonic()
                log.warning("the API server %s does not answer: %s; nothing is planned until it does", self._host, why)

    def record_answer(self, who: str) -> None:
        """A try was answered."""
        with self._lock:
            self._failed.pop(who, None)
            if self._since_s is not None and not self._failed:
                log.info("the API server %s answers again after %.0f s", self._host, time.monotonic() - self._since_s)
                self._since_s = None


class Refusals:
    """Of one kind of request. Who was never permitted is refused for good at once, others after `REFUSED_S`.

    `denied`: the server's words once it is for good, else "".
    """

    def __init__(self) -> None:
        self.denied = ""
        self._permitted = False
        self._since_s: float | None = None

    def reset(self) -> None:
        """The server has done what was asked."""
        self.denied, self._permitted, self._since_s = "", True, None

    def record(self, words: str) -> bool:
        """The server has refused; whether that is for good."""
        now_s = time.monotonic()
        self._since_s = now_s if self._since_s is None else self._since_s
        if not self._permitted or now_s - self._since_s >= REFUSED_S:
            self.denied = words
        return bool(self.denied)


# (verb, group, resource/subresource); deploy/base/rbac.yaml grants exactly these, a test compares the two
READS = (
    ("list", "", "nodes"),
    ("watch", "", "nodes"),
    ("list", "", "pods"),
    ("watch", "", "pods"),
    ("get", "", "pods"),
    ("list", "", "persistentvolumeclaims"),
    ("watch", "", "persistentvolumeclaims"),
    ("list", "", "persistentvolumes"),
    ("watch", "", "persistentvolumes"),
)
POD_GROUPS = {  # the versions that are read, the best first
    UPSTREAM: ("v1beta1", "v1alpha3", "v1alpha2"),
    COSCHEDULING: ("v1alpha1",),
    VOLCANO: ("v1beta1",),
}
WRITES = (
    ("create", "", "pods/binding"),
    ("patch", "", "pods/status"),
    ("patch", UPSTREAM, "podgroups/status"),
    ("patch", VOLCANO, "podgroups"),
    ("create", "", "events"),
)
REVIEWS = (
    ("create", "authentication.k8s.io", "tokenreviews"),
    ("create", "authorization.k8s.io", "subjectaccessreviews"),
)
PREEMPTION = (
    ("list", "policy", "poddisruptionbudgets"),
    ("watch", "policy", "poddisruptionbudgets"),
    ("create", "", "pods/eviction"),
)
LEASE = tuple((verb, "coordination.k8s.io", "leases") for verb in ("get", "create", "update"))


def file_granting(group: str, resource: str) -> str:
    """The file that grants it."""
    if group == "coordination.k8s.io":
        return "deploy/ha/lease-rbac.yaml"
    return f"deploy/{'preemption' if group == 'policy' or resource == 'pods/eviction' else 'base'}/rbac.yaml"


def required_permissions(
    writes: bool, lease: bool, reviews: bool = False, evicts: bool = False
) -> tuple[tuple[str, str, str], ...]:
    """What a process needs; one that only looks does without `writes`, one without replicas without `lease`.

    `reviews`: it asks who may read its metrics. `evicts`: it evicts pods.
    """
    optional = [*((group, "podgroups") for group in POD_GROUPS), *((one.group, one.resource) for one in OWNER_KINDS)]
    reads = READS + tuple((verb, group, resource) for group, resource in optional for verb in ("list", "watch"))
    own = (WRITES if writes else ()) + (LEASE if lease else ())
    return reads + own + (REVIEWS if reviews else ()) + (PREEMPTION if evicts else ())


def check_permissions(
    api: ApiClient, needed: tuple[tuple[str, str, str], ...], lease_namespace: str = "", lease: str = ""
) -> None:
    """UserError that names every missing verb. Asked with SelfSubjectAccessReview, which everyone may do."""
    missing, files = [], []
    for verb, group, resource in needed:
        name, _, part = resource.partition("/")
        wanted = {"verb": verb, "group": group, "resource": name, "subresource": part}
        if resource == "leases":
            wanted |= {"namespace": lease_namespace} | ({"name": lease} if verb != "create" else {})
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": wanted},
        }
        try:
            response = api.request("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body=body)
        except Unreachable as error:
            raise UserError(f"the API server {api.host} does not answer: {error}") from None
        if response.status == 401:
            raise UserError(f"the API server {api.host} does not know these credentials (401)")
        if not response.ok:
            raise UserError(f"the API server {api.host} cannot say what is permitted: {response.message}")
        if not (response.body.get("status") or {}).get("allowed"):
            missing.append(f"{verb} {resource}" + (f" ({group})" if group else ""))
            files.append(file_granting(group, resource))
    if missing:
        grants = " and ".join(dict.fromkeys(files)) + (" grant" if len(set(files)) > 1 else " grants")
        raise UserError(f"RBAC: not permitted to {', '.join(missing)}; {grants} what is needed")
