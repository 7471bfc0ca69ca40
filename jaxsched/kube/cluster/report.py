"""Tell users why their pods wait: conditions of pods and PodGroups, and events, from threads of their own.

What is wanted is kept, not what is to be written: of a pod the last text counts, however often it changes, and a text
has been said once the server has taken it. Pods without any condition come first.
"""

import datetime
import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from jaxsched.kube.cluster.api import ApiClient, Response, Unreachable, pod_path
from jaxsched.kube.read.groups import SCHEDULED, UPSTREAM, VOLCANO, PodGroup
from jaxsched.kube.read.objects import Pod

log = logging.getLogger("jaxsched.kube")

EVERY_S = 300.0  # at most one event per pod and reason in this time
PER_SECOND = 50.0  # writes of all threads
THREADS = 4
REST_S = (1.0, 30.0)  # after a write that was not taken, doubled each time
AGAIN_S = 10.0  # a phase that was set and is another again is set once more after this
REMEMBERED = 20_000  # pods; the oldest are forgotten, and are told again
LONGEST_MESSAGE = 900  # events are cut at 1024 by the server


class _Report(NamedTuple):
    """One thing to be said of a pod or a PodGroup."""

    about: Pod | PodGroup
    event: str  # its reason; "": the condition
    message: str
    kind: str = "Warning"  # of a PodGroup's condition its status

    @property
    def key(self) -> tuple[str, str]:
        """What a later report replaces, or need not repeat."""
        return self.about.uid, self.event


class Reporter:
    """Nothing waits for it; what a server does not take now is written later, or replaced by what is true then."""

    def __init__(
        self, api: ApiClient, component: str, on_denied: Callable[[str], None] = lambda words: None, instance: str = ""
    ) -> None:
        self.api, self.component, self.on_denied, self.instance = api, component, on_denied, instance or component
        self._wanted: list[dict[tuple[str, str], _Report]] = [{}, {}, {}]  # first conditions, other ones, events
        self._said: dict[tuple[str, str], tuple[str, float]] = {}  # the text, and when (monotonic)
        self._under_way: dict[tuple[str, str], str | None] = {}  # the text; None: withdrawn meanwhile
        self._not_before, self._rest_s = 0.0, REST_S[0]
        self._news = threading.Condition()
        self._stopped = False
        self._threads = [threading.Thread(target=self._run, name="reporter", daemon=True) for _ in range(THREADS)]

    def start(self) -> "Reporter":
        """Begin; returns itself."""
        for thread in self._threads:
            thread.start()
        return self

    def stop(self) -> None:
        """End; what has not been said is dropped."""
        with self._news:
            self._stopped = True
            self._news.notify_all()

    def waiting(self) -> int:
        """How much is still to be said."""
        with self._news:
            return sum(map(len, self._wanted)) + len(self._under_way)

    def report_unschedulable(self, pod: Pod, reason: str, message: str) -> None:
        """The pod cannot be scheduled now: a condition when the text changes, an event once in a while."""
        text = f"{reason}: {message}"[:LONGEST_MESSAGE]
        self._want(_Report(pod, "", text))
        self.report_event(pod, "FailedScheduling", text, "Warning")

    def report_event(self, pod: Pod, reason: str, message: str, kind: str = "Normal") -> None:
        """An event on the pod, unless it had one of this reason lately."""
        self._want(_Report(pod, reason, message[:LONGEST_MESSAGE], kind))

    def report_group(self, group: PodGroup, why: str) -> None:
        """Why an upstream PodGroup waits, or "" if as many of its pods have nodes as must start together."""
        scheduled = "False" if why else "True"
        text = why[:LONGEST_MESSAGE] or f"at least {group.minimum} pods have nodes"
        if group.said != (scheduled, text):
            self._want(_Report(group, "", text, scheduled))

    def report_phase(self, group: PodGroup, phase: str) -> None:
        """The phase of a Volcano PodGroup, once more if somebody puts another in its place."""
        self._want(_Report(group, "", phase), AGAIN_S)

    def withdraw(self, pods: list[Pod]) -> None:
        """These are no longer unschedulable: a condition that says so must not follow their Bindings."""
        with self._news:
            for pod in pods:
                for key in ((pod.uid, ""), (pod.uid, "FailedScheduling")):
                    for wanted in self._wanted:
                        wanted.pop(key, None)
                    if key in self._under_way:
                        self._under_way[key] = None
                self._said.pop((pod.uid, ""), None)

    def _want(self, report: _Report, again_s: float = math.inf) -> None:
        with self._news:
            said, at = self._said.get(report.key, (None, 0.0))
            is_said = said == report.message and time.monotonic() - at < again_s
            is_said = is_said if not report.event else said is not None and time.monotonic() - at < EVERY_S
            under_way = self._under_way.get(report.key)
            is_said |= under_way == report.message or (under_way is not None and report.event != "")
            wanted = self._wanted[2 if report.event else 0 if said is None else 1]
            if not report.event:
                self._wanted[1 if said is None else 0].pop(report.key, None)
            if is_said:
                wanted.pop(report.key, None)
                return
            if report.key not in wanted:
                _forget_oldest(wanted)
            wanted[report.key] = report  # in the place of the one before
            self._news.notify()

    def _run(self) -> None:
        while (report := self._next()) is not None:
            try:
                response = self._post(report) if report.event else self._patch(report)
            except Unreachable:
                response = Response(503, {})
            except Exception:  # one report that cannot be written is no reason to stop reporting
                log.exception("a report could not be sent")
                response = Response(400, {})
            self._settle(report, response)

    def _next(self) -> _Report | None:
        """The next report, when it is time for it; None at the end."""
        with self._news:
            while not self._stopped:
                wait = self._not_before - time.monotonic()
                found = ((wanted, key) for wanted in self._wanted for key in wanted if key not in self._under_way)
                wanted, key = next(found, (None, None)) if wait <= 0 else (None, None)
                if wanted is not None and key is not None:
                    self._under_way[key] = wanted[key].message
                    self._not_before = time.monotonic() + 1.0 / PER_SECOND
                    return wanted.pop(key)
                self._news.wait(min(wait, 1.0) if wait > 0 else 1.0)
            return None

    def _settle(self, report: _Report, response: Response) -> None:
        """Said, or to be written again. Of a pod that is gone nothing is remembered: whoever has its name is told."""
        with self._news:
            is_wanted = self._under_way.pop(report.key, None) is not None
            if response.status == 429 or response.status >= 500:
                if is_wanted:
                    self._wanted[2 if report.event else 1].setdefault(report.key, report)
                wait = max(response.retry_after_s, self._rest_s)
                self._not_before = time.monotonic() + wait
                self._rest_s = min(self._rest_s * 2, REST_S[1])
            elif response.status not in (404, 409):  # refused for good counts as said: the same text would be again
                if is_wanted:
                    _forget_oldest(self._said)
                    self._said[report.key] = report.message, time.monotonic()
                self._rest_s = REST_S[0]
        if response.status == 403:
            self.on_denied(response.message)

    def _patch(self, report: _Report) -> Response:
        about, now = report.about, self._now().strftime("%Y-%m-%dT%H:%M:%SZ")
        if isinstance(about, PodGroup) and about.api == VOLCANO:  # its status is no subresource
            path = f"/apis/{VOLCANO}/{about.version}/namespaces/{about.namespace}/podgroups/{about.name}"
            body = {"metadata": {"uid": about.uid}, "status": {"phase": report.message}}
            return self.api.request("PATCH", path, body=body, content="application/merge-patch+json")
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": report.message}
        if isinstance(about, PodGroup):
            scheduled = report.kind == "True"
            reason = "Scheduled" if scheduled else "Unschedulable"
            condition |= {"type": SCHEDULED, "status": report.kind, "reason": reason}
            path = f"/apis/{UPSTREAM}/{about.version}/namespaces/{about.namespace}/podgroups/{about.name}/status"
        else:
            path = pod_path(about.namespace, about.name, "status")
        condition["lastTransitionTime"] = now
        body = {"metadata": {"uid": about.uid}, "status": {"conditions": [condition]}}
        return self.api.request("PATCH", path, body=body, content="application/strategic-merge-patch+json")

    def _post(self, report: _Report) -> Response:
        pod, now = report.about, self._now()
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
            "reason": report.event,
            "message": report.message,
            "type": report.kind,
            "count": 1,
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "source": {"component": self.component},
            "reportingComponent": self.component,  # `reportingController` in events.k8s.io
            "reportingInstance": self.instance,
        }
        return self.api.request("POST", f"/api/v1/namespaces/{pod.namespace}/events", body=body)

    def _now(self) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(self.api.clock.now_s(), datetime.UTC)


def _forget_oldest(table: dict) -> None:
    while len(table) >= REMEMBERED:
        del table[next(iter(table))]
