"""Informers: each resource that plans rest on is listed and watched into a store; and a snapshot of them all.

Own code, because the client's informer has neither back-off nor a half-open timeout. Lost connections watch again from
the last version seen; 410 (which may come as an HTTP status or as an event, and does after every restart of an API
server) lists again. Waits are jittered and grow from 0.5 to 10 s.
"""

import contextlib
import functools
import logging
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxsched.errors import UserError
from jaxsched.kube.capacity.free_capacity import Placement
from jaxsched.kube.cluster.api import (
    NODES,
    POD_GROUPS,
    PODS,
    ApiClient,
    Outage,
    Refusals,
    Unreachable,
    check_permissions,
    file_granting,
    required_permissions,
)
from jaxsched.kube.read.groups import OWNER_KINDS, read_owner, read_pod_group
from jaxsched.kube.read.objects import Node, Pod, mapping, read_node, read_pod
from jaxsched.kube.read.snapshot import Snapshot, read_budget, read_volume, read_volume_claim

log = logging.getLogger("jaxsched.kube")

WATCH_S = (240, 420)  # the server ends a watch after a random time in this range
IDLE_S = 100.0  # longer than the minute between bookmarks
BACKOFF_S = (0.5, 10.0)
LIST_READ_S = 60.0


class Store:
    """Objects by uid, parsed by `read`; `on_change` is called, outside the lock, whenever a parsed object changes.

    An object that `read` raises on stays as it was last read, and is counted in `unreadable`.
    """

    def __init__(
        self,
        read: Callable[[Mapping[str, Any]], Any],
        on_change: Callable[[], None] = lambda: None,
        on_event: Callable[[str, Mapping[str, Any]], None] = lambda kind, raw: None,
    ) -> None:
        self._read, self._on_change, self._on_event = read, on_change, on_event
        self._items: dict[str, Any] = {}
        self.unreadable = 0
        self._lock = threading.Lock()

    def items(self) -> tuple:
        """All objects."""
        with self._lock:
            return tuple(self._items.values())

    def get(self, uid: str) -> Any:
        """The object with this uid, or None."""
        with self._lock:
            return self._items.get(uid)

    def put(self, kind: str, raw: Mapping[str, Any]) -> None:
        """An object that was added or modified."""
        uid = _uid(raw)
        try:
            item = self._read(raw)
        except Exception:  # whatever an object holds, the watch goes on
            self.unreadable += 1
            log.exception("object %.100r cannot be read; it stays as it was", uid)
            return
        with self._lock:
            changed = self._items.get(uid) != item
            self._items[uid] = item
        if changed:
            self._on_event(kind, raw)
            self._on_change()

    def remove(self, raw: Mapping[str, Any]) -> None:
        """An object that was deleted or no longer matches the selector."""
        with self._lock:
            known = self._items.pop(_uid(raw), None)
        if known is not None:
            self._on_event("DELETED", raw)
            self._on_change()

    def replace(self, everything: list[Mapping[str, Any]]) -> None:
        """What a list says is all there is."""
        names = {_uid(raw) for raw in everything}
        with self._lock:
            gone = [uid for uid in self._items if uid not in names]
        for raw in everything:
            self.put("ADDED", raw)
        for uid in gone:
            self.remove({"metadata": {"uid": uid}})


class Reflector:
    """A thread that keeps `store` like the server's `path`, the first of several versions' that it has.

    `live` is set while its contents are current. `outage` hears of tries that get no answer.
    """

    def __init__(
        self,
        api: ApiClient,
        path: str | Sequence[str],
        store: Store,
        query: Mapping[str, str] | None = None,
        optional: bool = False,
        count: Callable[[str], None] = lambda cause: None,
        idle_s: float = IDLE_S,
        outage: Outage | None = None,
    ) -> None:
        self.paths = (path,) if isinstance(path, str) else tuple(path)  # of versions, the best first
        self.api, self.path, self.store = api, self.paths[0], store
        self.query, self.optional, self.count, self.idle_s = dict(query or {}), optional, count, idle_s
        self._outage = outage or Outage(api.host)
        self.live, self.listed = threading.Event(), threading.Event()
        self.missing = False  # the server does not know the resource (only with `optional`)
        self._list_refusals, self._watch_refusals = Refusals(), Refusals()  # a role may grant one of the two
        self.lists = 0
        self._version = ""  # the last one seen; "": list again
        self._cancel: Callable[[], None] = lambda: None
        self._stop = threading.Event()
        self._again = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"reflector {self.path}", daemon=True)

    @property
    def denied(self) -> str:
        """The server's words if it forbids list or watch, for good; else ""."""
        return self._list_refusals.denied or self._watch_refusals.denied

    def start(self) -> "Reflector":
        """Begin; returns itself."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """End; the thread is a daemon and is not waited for."""
        self._stop.set()
        self._interrupt()

    def relist(self) -> None:
        """Make `live` false until a list newer than this call is in the store."""
        self._again.set()
        self.live.clear()
        self._interrupt()

    def _opened(self, cancel: Callable[[], None]) -> None:
        self._cancel = cancel
        self._watch_refusals.reset()
        self._outage.record_answer(self.paths[0])
        self.live.set()  # the server has answered: one that hangs does not keep the store current
        if self._again.is_set() or self._stop.is_set():  # asked for while the watch was being opened
            self.live.clear()
            self._interrupt()

    def _interrupt(self) -> None:
        """Cut the present watch: a quiet one would not notice for a minute."""
        with contextlib.suppress(OSError, RuntimeError, ValueError):  # it has just ended by itself
            self._cancel()

    def _run(self) -> None:
        delay = BACKOFF_S[0]
        while not self._stop.is_set():
            try:
                if not self._version or self._again.is_set():
                    self._version = self._list()
                    if not self._version:
                        self._stop.wait(30.0 if self.missing else BACKOFF_S[1])
                        continue
                well = self._watch()
                delay = BACKOFF_S[0] if well else min(delay * 2, BACKOFF_S[1])
                if not well and self._version:
                    self._stop.wait(delay * random.uniform(0.5, 1.0))
            except Unreachable as error:
                self.live.clear()
                if self._again.is_set() and self.listed.is_set() and self._version:
                    self._version = ""  # we cut it ourselves
                    continue
                self.count("unreachable")
                self._outage.record_failure(self.paths[0], error)
                self._stop.wait(delay * random.uniform(0.5, 1.0))
                delay = min(delay * 2, BACKOFF_S[1])
            except Exception:  # a fault of ours: the thread must not end, for nothing else would tell
                self.live.clear()
                self._version = ""
                self.count("fault")
                log.exception("watch %s: listing again", self.path)
                self._stop.wait(BACKOFF_S[1])

    def _list(self) -> str:
        """The version of a full list that is now in the store; "" if the server refuses."""
        self._again.clear()
        for path in self.paths:
            self.path = path
            response = self.api.request("GET", path, self.query, read_s=LIST_READ_S)
            if response.status != 404:
                break
        self.missing = response.status == 404 and self.optional
        if self.missing:
            self._list_refusals.reset()
            self._outage.record_answer(self.paths[0])
            self.store.replace([])
            self.listed.set()
            self.live.set()
            return ""
        if response.status in (401, 403) and self._list_refusals.record(response.message):
            self.live.clear()
            return ""
        version = _version(response.body)
        if not response.ok or not version:
            raise Unreachable(f"GET {self.path}: {response.message}")
        kind = response.body.get("apiVersion")  # items of a list do not carry it
        items = response.body.get("items")
        items = [one for one in items if isinstance(one, dict)] if isinstance(items, list) else []
        self.store.replace([{"apiVersion": kind, **item} for item in items])
        self._list_refusals.reset()
        self.lists += 1
        self.listed.set()
        return version

    def _watch(self) -> bool:
        """Follow the changes after `_version`, which stays the last one seen ("": list again); whether it went well."""
        began = time.monotonic()
        query = self.query | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(random.randint(*WATCH_S)),
        }
        self.live.clear()
        if self._again.is_set():
            return True
        for event in self.api.stream(self.path, query, self.idle_s, self._opened):
            kind, raw = event.get("type"), mapping(event, "object")
            if kind == "ERROR":
                self.live.clear()
                code = raw.get("code")
                gone = code in (404, 410) or raw.get("reason") in ("Expired", "Gone")
                refused, words = code in (401, 403), str(raw.get("message") or f"HTTP {code}")
                if refused and not self._watch_refusals.record(words):
                    raise Unreachable(f"watch {self.path}: {words}")
                self.count("gone" if gone else "error")
                if not gone and not refused:
                    self._outage.record_failure(self.paths[0], f"watch {self.path}: {words}")
                self._version = "" if gone or refused else self._version
                return gone
            if kind == "DELETED":
                self.store.remove(raw)
            elif kind in ("ADDED", "MODIFIED"):
                self.store.put(kind, raw)
            self._version = _version(raw) or self._version
            if self._stop.is_set() or self._again.is_set():
                return True
        self.count("ended")
        return time.monotonic() - began > 1.0


def _uid(raw: Mapping[str, Any]) -> str:
    return str(mapping(raw, "metadata").get("uid", ""))


def _version(raw: Mapping[str, Any]) -> str:
    return str(mapping(raw, "metadata").get("resourceVersion") or "")


LIVE_PODS = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
BUDGETS = "/apis/policy/v1/poddisruptionbudgets"
CLAIMS, VOLUMES = "/api/v1/persistentvolumeclaims", "/api/v1/persistentvolumes"
_LOOK_IDLE_S = 60.0  # a watch that says nothing for longer is opened anew
PATIENCE_S = 120.0


class Informers:
    """Reads from `start` until `stop`.

    `on_change()` and `on_event(kind, what, raw)` hear of every change, `on_restart(resource, cause)` of every watch
    that ends. `budgets`: PodDisruptionBudgets, too.
    """

    def __init__(
        self,
        api: ApiClient,
        on_change: Callable[[], None],
        on_event: Callable[[str, str, Mapping[str, Any]], None],
        on_restart: Callable[[str, str], None],
        idle_s: float,
        budgets: bool = False,
    ) -> None:
        self.clock, outage = api.clock, Outage(api.host)
        self.stores: dict[str, Store] = {}
        self.reflectors: dict[str, Reflector] = {}

        def reflect(name: str, kind: str, read: Callable, *paths: str, optional: bool = False) -> None:
            """`kind`: what a recording calls it, "" for what is not recorded."""
            heard = (lambda what, raw: on_event(kind, what, raw)) if kind else (lambda what, raw: None)
            store = Store(read, on_change, heard)
            query = LIVE_PODS if name == "pods" else {}
            self.stores[name] = store
            self.reflectors[name] = Reflector(
                api, paths, store, query, optional, lambda cause: on_restart(name, cause), idle_s, outage
            )

        reflect("nodes", "nodes", read_node, NODES)
        reflect("pods", "pods", read_pod, PODS)
        reflect("persistentvolumeclaims", "persistentvolumeclaims", read_volume_claim, CLAIMS)
        reflect("persistentvolumes", "persistentvolumes", read_volume, VOLUMES)
        if budgets:
            reflect("poddisruptionbudgets", "", read_budget, BUDGETS)
        for group, versions in POD_GROUPS.items():
            paths = (f"/apis/{group}/{version}/podgroups" for version in versions)
            reflect(group, "podgroups", read_pod_group, *paths, optional=True)
        for owner in OWNER_KINDS:
            paths = (f"/apis/{owner.group}/{version}/{owner.resource}" for version in owner.versions)
            reflect(owner.name, "", functools.partial(read_owner, kind=owner), *paths, optional=True)

    def start(self, on_wait: Callable[[], None]) -> None:
        """Return when all is read; `on_wait` is called meanwhile. UserError if something may not be read."""
        for reflector in self.reflectors.values():
            reflector.start()
        while not all(reflector.listed.wait(0.1) for reflector in self.reflectors.values()):
            self.check_denied()
            on_wait()

    def stop(self) -> None:
        """End all watches."""
        for reflector in self.reflectors.values():
            reflector.stop()

    def check_denied(self) -> None:
        """UserError if a permission is missing."""
        for reflector in self.reflectors.values():
            if reflector.denied:
                group = reflector.path.split("/")[2] if reflector.path.startswith("/apis/") else ""
                file = file_granting(group, reflector.path.rpartition("/")[2])
                raise UserError(f"RBAC: {reflector.denied}; {file} grants what is needed")

    def is_live(self) -> bool:
        """All that is here is current."""
        return all(reflector.live.is_set() for reflector in self.reflectors.values())

    def relist(self, *resources: str) -> None:
        """List these again before anything else is planned."""
        for name in resources:
            self.reflectors[name].relist()

    def pods(self) -> tuple[Pod, ...]:
        """All pods that are not done."""
        return self.stores["pods"].items()

    def snapshot(self, pods: tuple[Pod, ...]) -> Snapshot:
        """The cluster now, with `pods` for its pods."""
        optional = [*POD_GROUPS, *(owner.name for owner in OWNER_KINDS)]
        return Snapshot(
            now_s=self.clock.now_s(),
            nodes=self.stores["nodes"].items(),
            pods=pods,
            groups=tuple(group for name in POD_GROUPS for group in self.stores[name].items()),
            owners=tuple(one for kind in OWNER_KINDS for one in self.stores[kind.name].items()),
            served=frozenset(name for name in optional if not self.reflectors[name].missing),
            volume_claims=dict(self.stores["persistentvolumeclaims"].items()),
            volumes=dict(self.stores["persistentvolumes"].items()),
            budgets=self.stores["poddisruptionbudgets"].items() if "poddisruptionbudgets" in self.stores else (),
        )

    def allows(self, placement: Placement) -> bool:
        """Nothing that the placement rests on has changed since the snapshot."""
        usable = {node.name for node in self.stores["nodes"].items() if isinstance(node, Node) and node.usable}
        for one in placement.assignments:
            pod = self.stores["pods"].get(one.pod.uid)
            if one.node not in usable or pod is None or pod.node or pod.terminating:
                return False
        return True


def live_snapshot(api: ApiClient) -> Snapshot:
    """The cluster now. UserError if something may not be read, or is not within `PATIENCE_S`."""
    check_permissions(api, required_permissions(writes=False, lease=False), "", "")
    informers = Informers(api, lambda: None, lambda kind, what, raw: None, lambda name, cause: None, _LOOK_IDLE_S)
    until_s = time.monotonic() + PATIENCE_S

    def wait() -> None:
        if time.monotonic() > until_s:
            raise UserError(f"the cluster could not be read within {PATIENCE_S:.0f} s")

    try:
        informers.start(wait)
        return informers.snapshot(informers.pods())
    finally:
        informers.stop()
