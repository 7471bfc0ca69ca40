"""Tell users why their pods wait: the PodScheduled condition and events, both rate-limited, from an own thread."""

import contextlib
import datetime
import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from jaxsched.kube.cluster.api import ApiClient, Unreachable, pod_path
from jaxsched.kube.planning.objects import Pod

log = logging.getLogger("jaxsched.kube")

EVERY_S = 300.0  # at most one event per pod and reason in this time
PER_SECOND = 20.0  # writes
REMEMBERED = 20_000  # pods; the oldest are forgotten
LONGEST_MESSAGE = 900  # events are cut at 1024 by the server


class Reporter:
    """Queues writes that may be lost: a full queue drops them, and nothing waits for them."""

    def __init__(self, api: ApiClient, component: str, on_denied: Callable[[str], None] = lambda words: None) -> None:
        self.api, self.component, self.on_denied = api, component, on_denied
        self._queue: queue.Queue = queue.Queue(maxsize=2000)
        self._said: dict[tuple[str, str], float] = {}
        self._condition: dict[str, str] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reporter", daemon=True)

    def start(self) -> "Reporter":
        """Begin; returns itself."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """End; what is still queued is dropped."""
        self._stop.set()

    def unschedulable(self, pod: Pod, reason: str, message: str) -> None:
        """The pod cannot be scheduled now: a condition when the text changes, an event once in a while."""
        text = f"{reason}: {message}"[:LONGEST_MESSAGE]
        if self._condition.get(pod.uid) != text:
            _forget_oldest(self._condition)
            self._condition[pod.uid] = text
            self._put(lambda: self._patch(pod, text))
        self.event(pod, "FailedScheduling", text, "Warning")

    def event(self, pod: Pod, reason: str, message: str, kind: str = "Normal") -> None:
        """An event on the pod, unless it had one of this reason lately."""
        now, key = time.monotonic(), (pod.uid, reason)
        if now - self._said.get(key, -EVERY_S) < EVERY_S:
            return
        _forget_oldest(self._said)
        self._said[key] = now
        self._put(lambda: self._post(pod, reason, message[:LONGEST_MESSAGE], kind))

    def _put(self, write: Callable[[], None]) -> None:
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(write)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                write = self._queue.get(timeout=0.5)
            except queue.Empty:
                continue
            try:
                write()
            except Unreachable:
                self._stop.wait(1.0)
            except Exception:  # one report that cannot be written is no reason to stop reporting
                log.exception("a report could not be sent")
            self._stop.wait(1.0 / PER_SECOND)

    def _patch(self, pod: Pod, message: str) -> None:
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        condition["lastTransitionTime"] = _now().strftime("%Y-%m-%dT%H:%M:%SZ")
        body = {"metadata": {"uid": pod.uid}, "status": {"conditions": [condition]}}
        path, content = pod_path(pod.namespace, pod.name, "status"), "application/strategic-merge-patch+json"
        response = self.api.request("PATCH", path, body=body, content=content)
        if response.status == 403:
            self.on_denied(response.message)

    def _post(self, pod: Pod, reason: str, message: str, kind: str) -> None:
        now = _now()
        stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
        body: dict[str, Any] = {
            "metadata": {"name": f"{pod.name[:200]}.{int(now.timestamp() * 1e6):x}", "namespace": pod.namespace},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": pod.name,
                "namespace": pod.namespace,
                "uid": pod.uid,
            },
            "reason": reason,
            "message": message,
            "type": kind,
            "count": 1,
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "source": {"component": self.component},
        }
        response = self.api.request("POST", f"/api/v1/namespaces/{pod.namespace}/events", body=body)
        if response.status == 403:
            self.on_denied(response.message)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _forget_oldest(table: dict) -> None:
    while len(table) >= REMEMBERED:
        del table[next(iter(table))]
