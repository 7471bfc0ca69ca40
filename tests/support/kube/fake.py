"""A loopback API server of just enough Kubernetes for the contract suite: what it answers was seen on a real one.

Objects by (group, resource), one global version, a bounded history for watches (older versions give 410), the Binding
table, dry runs, field selectors, strategic merge of conditions, RBAC for impersonated users.
"""

import copy
import http.server
import re
import threading
import time
import uuid
from typing import Any

from tests.support.kube.fake_access import allowed, review
from tests.support.kube.fake_http import Problem, handler_of
from tests.support.kube.fake_patches import merge, selected

END_S = 0.05  # how long it may take to end
HISTORY = 1000
CLUSTER_WIDE = (
    *("nodes", "persistentvolumes", "clusterroles", "clusterrolebindings", "namespaces"),
    "customresourcedefinitions",
)
GROUPS: dict[str, tuple[str, ...]] = {
    "": ("pods", "nodes", "persistentvolumeclaims", "persistentvolumes", "events", "namespaces", "serviceaccounts"),
    "coordination.k8s.io": ("leases",),
    "rbac.authorization.k8s.io": ("clusterroles", "clusterrolebindings", "roles", "rolebindings"),
    "scheduling.k8s.io": ("podgroups",),
    "scheduling.x-k8s.io": ("podgroups",),
    "batch": ("jobs",),
    "policy": ("poddisruptionbudgets",),
    "apiextensions.k8s.io": ("customresourcedefinitions",),
}
PATH = re.compile(
    r"/(?:api/v1|apis/(?P<group>[^/]+)/(?P<version>[^/]+))(?:/namespaces/(?P<ns>[^/]+))?"
    r"/(?P<resource>[a-z]+)(?:/(?P<name>[^/]+))?(?:/(?P<part>[a-z]+))?$"
)


class FakeServer:
    def __init__(self) -> None:
        self.version, self.lock = 100, threading.Condition()
        self.objects: dict[tuple, dict] = {}
        self.history: list[tuple[int, tuple, str, dict, dict | None]] = []
        self.oldest = 0
        self.log: list[tuple[str, str]] = []
        self.cut = 0  # raised to end all watches
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler_of(self))
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(END_S,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def compact(self) -> None:
        """Forget the history: every watch from an older version gets 410."""
        with self.lock:
            self.history.clear()
            self.oldest = self.version + 1
            self.version += 1

    def stamp(self) -> str:
        """The server's clock, not that of who calls it: tests set that apart (`time.time`)."""
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())

    # Requests

    def handle(self, method: str, path: str, query: dict[str, str], body: Any, user: str) -> tuple[int, dict]:
        self.log.append((method, path))
        match = PATH.match(path)
        if match is None:
            raise Problem(404, "NotFound", f"the server could not find the requested resource {path}")
        group, ns, resource, name, part = (match[key] or "" for key in ("group", "ns", "resource", "name", "part"))
        if resource in ("selfsubjectaccessreviews",):
            wanted = body["spec"]["resourceAttributes"]
            return 201, {**body, "status": {"allowed": allowed(self.objects, user, wanted)}}
        if resource == "tokenreviews":
            return 201, {**body, "status": review(self.objects, body["spec"]["token"])}
        if resource == "subjectaccessreviews":
            return 201, {**body, "status": {"allowed": allowed(self.objects, body["spec"]["user"], body["spec"])}}
        if method == "GET":
            verb = "get" if name else "watch" if query.get("watch") else "list"
        else:
            verb = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}[method]
        wanted = {
            "verb": verb,
            "group": group,
            "resource": resource,
            "subresource": part,
            "namespace": ns,
            "name": name,
        }
        if not allowed(self.objects, user, wanted):
            full = f"{resource}/{part}" if part else resource
            raise Problem(403, "Forbidden", f'User "{user}" cannot {verb} resource "{full}" in API group "{group}"')
        if resource not in GROUPS.get(group, ()) and not self._is_custom(group, resource):
            raise Problem(404, "NotFound", "the server could not find the requested resource")
        key = (group, resource, "" if resource in CLUSTER_WIDE else ns, name)
        dry = query.get("dryRun") == "All"
        with self.lock:
            if method == "GET" and name:
                return 200, self._get(key)
            if method == "GET":
                return 200, self._list(group, resource, ns, query)
            if part == "token":
                self._get(key)
                return 201, {"status": {"token": f"token-of.{ns}.{name}"}}
            if part == "eviction":
                return 201, self._evict(key, body)
            if part == "binding":
                return 201, self._bind(key, body, dry)
            if method == "POST":
                return 201, self._create((*key[:3], body["metadata"].get("name", "")), body, resource)
            if method == "PUT":
                return 200, self._update(key, body)
            if method == "PATCH":
                return 200, self._patch(key, body, part)
            return 200, self._delete(key, body or {})

    def _is_custom(self, group: str, resource: str) -> bool:
        key = ("apiextensions.k8s.io", "customresourcedefinitions", "", f"{resource}.{group}")
        return key in self.objects

    def _get(self, key: tuple) -> dict:
        if key not in self.objects:
            raise Problem(404, "NotFound", f'{key[1]} "{key[3]}" not found')
        return self.objects[key]

    def _list(self, group: str, resource: str, ns: str, query: dict) -> dict:
        items = [
            one
            for (g, r, n, _), one in self.objects.items()
            if (g, r) == (group, resource) and ns in ("", n) and selected(one, query)
        ]
        return {"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": str(self.version)}, "items": items}

    def _store(self, key: tuple, new: dict | None, kind: str) -> dict:
        """Write, raise the version, tell the watches."""
        self.version += 1
        old = self.objects.get(key)
        kept: dict = new if new is not None else copy.deepcopy(self.objects[key])
        kept["metadata"]["resourceVersion"] = str(self.version)
        if new is None:
            self.objects.pop(key)
        else:
            self.objects[key] = new
        self.history.append((self.version, key, kind, kept, old))
        if len(self.history) > HISTORY:
            self.oldest = self.history[-HISTORY][0]
            del self.history[:-HISTORY]
        self.lock.notify_all()
        return kept

    def _create(self, key: tuple, body: dict, resource: str) -> dict:
        if key in self.objects:
            raise Problem(409, "AlreadyExists", f'{resource} "{key[3]}" already exists')
        new = copy.deepcopy(body)
        stamp = self.stamp()
        new["metadata"] |= {"uid": str(uuid.uuid4()), "creationTimestamp": stamp}
        if key[2]:
            new["metadata"]["namespace"] = key[2]
        if resource == "poddisruptionbudgets":
            new["metadata"]["generation"] = 1
        if resource == "pods":
            new["spec"].setdefault("schedulerName", "default-scheduler")
            new["spec"].setdefault("priority", 0)
            new.setdefault("status", {})["phase"] = new.get("status", {}).get("phase", "Pending")
        return self._store(key, new, "ADDED")

    def _update(self, key: tuple, body: dict) -> dict:
        old = self._get(key)
        if body["metadata"].get("resourceVersion") not in (None, old["metadata"]["resourceVersion"]):
            raise Problem(409, "Conflict", "the object has been modified")
        new = copy.deepcopy(body)
        new["metadata"] = {**old["metadata"], **new["metadata"]}
        return self._store(key, new, "MODIFIED")

    def _patch(self, key: tuple, body: dict, part: str) -> dict:
        old = self._get(key)
        if (uid := body.get("metadata", {}).get("uid")) not in (None, old["metadata"]["uid"]):
            raise Problem(409, "Conflict", f"Precondition failed: UID in precondition: {uid}")
        if "schedulerName" in body.get("spec", {}) and not part:
            raise Problem(422, "Invalid", "pod updates may not change fields other than ...")
        new = copy.deepcopy(old)
        merge(new, {"status": body.get("status", {})} if part == "status" else body)
        if new == old:
            return old
        if not new["metadata"].get("finalizers") and new["metadata"].get("deletionTimestamp"):
            self.objects[key] = new
            return self._store(key, None, "DELETED")
        return self._store(key, new, "MODIFIED")

    def _delete(self, key: tuple, body: dict) -> dict:
        old = self._get(key)
        if old["metadata"].get("finalizers"):
            new = copy.deepcopy(old)
            new["metadata"]["deletionTimestamp"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            return self._store(key, new, "MODIFIED")
        return self._store(key, None, "DELETED")

    def _evict(self, key: tuple, body: dict) -> dict:
        """Pods that run count against their budget; the body's dry run changes nothing."""
        pod, options = self._get(key), body.get("deleteOptions") or {}
        if (uid := (options.get("preconditions") or {}).get("uid")) not in (None, pod["metadata"]["uid"]):
            raise Problem(409, "Conflict", f"Precondition failed: UID in precondition: {uid}")
        dry = options.get("dryRun") == ["All"]
        labels = pod["metadata"].get("labels") or {}
        for (_, kind, namespace, _), budget in list(self.objects.items()):
            wanted = budget["spec"].get("selector", {}).get("matchLabels", {}) if kind == "poddisruptionbudgets" else {}
            if kind != "poddisruptionbudgets" or namespace != key[2] or not wanted.items() <= labels.items():
                continue
            if pod["status"].get("phase") == "Running" and not pod["metadata"].get("deletionTimestamp"):
                left = (budget.get("status") or {}).get("disruptionsAllowed", 0)
                if left < 1:
                    text = "Cannot evict pod as it would violate the pod's disruption budget."
                    raise Problem(429, "TooManyRequests", text)
                if not dry:
                    budget["status"]["disruptionsAllowed"] = left - 1
        if not dry:
            self._delete(key, options)
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}

    def _bind(self, key: tuple, body: dict, dry: bool) -> dict:
        pod = self._get(key)
        meta, name = pod["metadata"], key[3]
        conflict = f'Operation cannot be fulfilled on pods/binding "{name}": '
        if (uid := body["metadata"].get("uid")) not in (None, "", meta["uid"]):
            raise Problem(409, "Conflict", f"{conflict}Precondition failed: UID in precondition: {uid}")
        if meta.get("deletionTimestamp"):
            raise Problem(409, "Conflict", f"{conflict}pod {name} is being deleted, cannot be assigned to a host")
        if pod["spec"].get("nodeName"):
            raise Problem(
                409, "Conflict", f"{conflict}pod {name} is already assigned to node {pod['spec']['nodeName']!r}"
            )
        if pod["spec"].get("schedulingGates"):
            raise Problem(409, "Conflict", f"{conflict}pod {name} has non-empty .spec.schedulingGates")
        if not dry:
            new = copy.deepcopy(pod)
            new["spec"]["nodeName"] = body["target"]["name"]
            new["metadata"].setdefault("annotations", {}).update(body["metadata"].get("annotations") or {})
            condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": self.stamp()}
            merge(new, {"status": {"conditions": [condition]}})
            self._store(key, new, "MODIFIED")
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}

    # Watches

    def watch(self, path: str, query: dict[str, str], write: Any) -> None:
        match = PATH.match(path)
        assert match is not None
        group, resource, ns = match["group"] or "", match["resource"], match["ns"] or ""
        since, cut = int(query.get("resourceVersion") or 0), self.cut
        end = time.monotonic() + float(query.get("timeoutSeconds") or 300)
        marked = time.monotonic()
        while time.monotonic() < end and cut == self.cut:
            with self.lock:
                if since < self.oldest - 1 or since < 100:
                    text = f"too old resource version: {since} ({self.oldest})"
                    status = {"kind": "Status", "status": "Failure", "message": text, "reason": "Expired", "code": 410}
                    write({"type": "ERROR", "object": status})
                    return
                fresh = [entry for entry in self.history if entry[0] > since]
                if not fresh:
                    self.lock.wait(0.1)
                now = self.version
            for version, (g, r, n, _), kind, new, old in fresh:
                since = version
                if (g, r) != (group, resource) or ns not in ("", n):
                    continue
                was = old is not None and selected(old, query)
                fits = kind != "DELETED" and selected(new, query)
                if fits:
                    write({"type": "MODIFIED" if was else "ADDED", "object": new})
                elif was or (old is None and kind == "DELETED"):
                    gone = {**(old or new), "metadata": {**(old or new)["metadata"], "resourceVersion": str(version)}}
                    write({"type": "DELETED", "object": gone})
            if not fresh and query.get("allowWatchBookmarks") and time.monotonic() - marked > 0.5:
                marked = time.monotonic()
                write({"type": "BOOKMARK", "object": {"kind": "Object", "metadata": {"resourceVersion": str(now)}}})
