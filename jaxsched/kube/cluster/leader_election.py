"""Leader election with a Lease, as client-go does it: 15 s lease, 10 s to renew, a try every 2 s.

A Lease does not fence writes: the uid in every Binding, and 409, do.
"""

import datetime
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from jaxsched.kube.cluster.api import ApiClient, Refusals, Response, Unreachable

log = logging.getLogger("jaxsched.kube")

LEASE_S, RENEW_S, RETRY_S = 15.0, 10.0, 2.0


class LeaderElector:
    """Tries to hold a Lease; `leading` tells whether it does, `lost` is set for good when it no longer does."""

    def __init__(
        self,
        api: ApiClient,
        namespace: str,
        name: str,
        identity: str,
        lease_s: float = LEASE_S,
        renew_s: float = RENEW_S,
        retry_s: float = RETRY_S,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.api, self.identity, self.name, self.namespace = api, identity, name, namespace
        self.path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self.lease_s, self.renew_s, self.retry_s, self.on_change = lease_s, renew_s, retry_s, on_change
        self.leading, self.lost = threading.Event(), threading.Event()
        self._reads, self._writes = Refusals(), Refusals()
        self._nowhere = ""  # what is wrong with the namespace
        self._seen: tuple[Any, float] = (None, 0.0)  # the record as last seen to change, and when, by our own clock
        self._renewed = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="election", daemon=True)

    @property
    def denied(self) -> str:
        """Why the Lease cannot be had, for good; else ""."""
        if refused := self._reads.denied or self._writes.denied:
            return f"{refused}; deploy/ha/lease-rbac.yaml grants what is needed"
        return self._nowhere

    def start(self) -> "LeaderElector":
        """Begin; returns itself."""
        self._thread.start()
        return self

    def holds_lease(self) -> bool:
        """Leading, and renewed recently enough that nobody else can be."""
        return self.leading.is_set() and time.monotonic() - self._renewed < self.lease_s

    def stop(self) -> None:
        """Give the Lease up, so that the next one need not wait for it to run out."""
        self._stop.set()
        if self._thread.ident is not None:  # it was started
            self._thread.join(self.renew_s)
        if self.leading.is_set():
            self.leading.clear()
            try:
                record = self.api.request("GET", f"{self.path}/{self.name}")
                if record.ok and record.body.get("spec", {}).get("holderIdentity") == self.identity:
                    self._write(record.body, "", 1)
            except Unreachable:
                pass

    def _run(self) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                held = self._try()
            except Unreachable:
                held = False
            except Exception:  # whatever the server says, the thread must not end: nobody would know that it is lost
                log.exception("the Lease %s cannot be read", self.name)
                held = False
            if held:
                self._renewed = began  # others count from the write, which may be long before its answer
                if not self.leading.is_set():
                    self.leading.set()
                    self.on_change()
            elif self.leading.is_set() and time.monotonic() - self._renewed > self.renew_s:
                self.leading.clear()
                self.lost.set()
                self.on_change()
                return
            self._stop.wait(self.retry_s)

    def _try(self) -> bool:
        """Acquire or renew; whether the Lease is ours now."""
        response = self.api.request("GET", f"{self.path}/{self.name}", read_s=self.retry_s * 2)
        _judge(response, self._reads)
        if response.status == 404:
            lease = {"metadata": {"name": self.name}, "spec": {"leaseTransitions": 0}}
            made = self._write(lease, self.identity, None)
            if made.status == 404:  # of what is to be made only its namespace can be missing
                self._nowhere = f"no namespace {self.namespace!r}: create it, or name another one with --namespace"
            return _judge(made, self._writes)
        if not response.ok:
            return False
        spec = response.body.get("spec") or {}
        record = (spec.get("holderIdentity"), spec.get("renewTime"), spec.get("leaseTransitions"))
        if record != self._seen[0]:
            self._seen = record, time.monotonic()
        duration = float(spec.get("leaseDurationSeconds") or self.lease_s)
        holder = spec.get("holderIdentity") or ""
        if holder not in ("", self.identity) and time.monotonic() - self._seen[1] < duration:
            if self.leading.is_set():
                self._renewed = -self.renew_s * 10  # another one holds it: lost at once
            return False
        return _judge(self._write(response.body, self.identity, None), self._writes)

    def _write(self, lease: dict[str, Any], holder: str, seconds: int | None) -> Response:
        """Create or update with the version that was read: of two writers one gets 409."""
        spec, now = lease.get("spec") or {}, datetime.datetime.now(datetime.UTC)
        stamp = now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        same = spec.get("holderIdentity") == holder
        new = spec | {
            "holderIdentity": holder,
            "leaseDurationSeconds": seconds or int(max(self.lease_s, 1)),
            "renewTime": stamp,
            "acquireTime": spec.get("acquireTime", stamp) if same else stamp,
            "leaseTransitions": int(spec.get("leaseTransitions") or 0) + (0 if same else 1),
        }
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": lease["metadata"], "spec": new}
        if "resourceVersion" not in lease["metadata"]:
            return self.api.request("POST", self.path, body=body, read_s=self.retry_s * 2)
        return self.api.request("PUT", f"{self.path}/{self.name}", body=body, read_s=self.retry_s * 2)


def _judge(response: Response, refusals: Refusals) -> bool:
    """Whether the request was done."""
    if response.ok:
        refusals.reset()
    elif response.status in (401, 403):
        refusals.record(response.message)
    return response.ok
