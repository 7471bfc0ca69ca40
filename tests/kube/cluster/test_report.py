"""What is said of pods that wait, against the fake, a real API server, and one that does not take everything."""

import threading

import pytest

from jaxsched.kube.cluster import report
from jaxsched.kube.cluster.api import Response, ServerClock, Unreachable
from jaxsched.kube.cluster.report import Reporter
from jaxsched.kube.read.objects import read_pod
from tests.support.kube.calls import eventually
from tests.support.kube.objects import make_pod


class Server:
    """Stands in for the API client: takes a write once in a while, and remembers the last text of every pod."""

    def __init__(self, refuses: int = 0) -> None:
        self.clock = ServerClock()
        self.refuses, self.asked, self.lock = refuses, 0, threading.Lock()
        self.conditions: dict[str, list[str]] = {}
        self.events: dict[str, list[str]] = {}

    def request(self, method: str, path: str, query=None, body=None, content: str = "") -> Response:
        with self.lock:
            self.asked += 1
            if self.refuses and self.asked % self.refuses:
                if self.asked % 2:
                    raise Unreachable("no answer")
                return Response(429, {}, 0.001)
            if method == "PATCH":
                text = body["status"]["conditions"][0]["message"]
                self.conditions.setdefault(body["metadata"]["uid"], []).append(text)
            else:
                self.events.setdefault(body["involvedObject"]["uid"], []).append(body["message"])
            return Response(200, {})


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "PER_SECOND", 1e6)
    monkeypatch.setattr(report, "REST_S", (0.001, 0.002))


def pods(count: int) -> list:
    return [read_pod(make_pod(f"p{i}", uid=f"u{i}")) for i in range(count)]


def test_no_pod_is_forgotten_when_many_wait(quick: None) -> None:
    server, many = Server(), pods(3000)
    reporter = Reporter(server, "jaxsched")
    for pod in many:
        reporter.report_unschedulable(pod, "Insufficient", "0 of 8 nodes")
    reporter.start()
    eventually(lambda: reporter.waiting() == 0)
    reporter.stop()
    assert server.conditions == {pod.uid: ["Insufficient: 0 of 8 nodes"] for pod in many}
    assert len(server.events) == 3000


def test_what_was_not_taken_is_said_later(quick: None) -> None:
    server, some = Server(refuses=3), pods(50)
    reporter = Reporter(server, "jaxsched").start()
    for pod in some:
        reporter.report_unschedulable(pod, "Insufficient", "0 of 8 nodes")
    eventually(lambda: reporter.waiting() == 0)
    reporter.stop()
    assert len(server.conditions) == len(server.events) == 50 and server.asked > 250
    assert all(len(texts) == 1 for texts in [*server.conditions.values(), *server.events.values()])


def test_of_texts_that_change_only_the_last_is_said(quick: None) -> None:
    server, (first, second) = Server(), pods(2)
    reporter = Reporter(server, "jaxsched").start()
    reporter.report_unschedulable(first, "Insufficient", "old")
    eventually(lambda: reporter.waiting() == 0)
    reporter.stop()
    idle = Reporter(server, "jaxsched")
    idle._said = reporter._said
    for number in range(100):
        idle.report_unschedulable(first, "Insufficient", f"{number} of 8")
    idle.report_unschedulable(second, "Gated", "x")
    assert idle.waiting() == 3  # two conditions and an event
    idle.start()
    eventually(lambda: idle.waiting() == 0)
    idle.stop()
    assert server.conditions[first.uid] == ["Insufficient: old", "Insufficient: 99 of 8"]
    assert server.conditions[second.uid] == ["Gated: x"]


def test_a_pod_that_is_bound_is_not_said_to_wait_after_all(quick: None) -> None:
    server, (pod,) = Server(), pods(1)
    reporter = Reporter(server, "jaxsched")
    reporter.report_unschedulable(pod, "Insufficient", "x")
    reporter.withdraw([pod])
    reporter.report_event(pod, "Scheduled", "bound")
    reporter.start()
    eventually(lambda: reporter.waiting() == 0)
    reporter.stop()
    assert not server.conditions and server.events == {pod.uid: ["bound"]}


def test_what_is_withdrawn_while_it_is_written_is_not_written_again(quick: None) -> None:
    """Before: the write that was not taken came once more, after the Binding, and said of a bound pod that it waits."""
    asked, go_on = threading.Event(), threading.Event()

    class Slow(Server):
        def request(self, *args, **more) -> Response:
            if not asked.is_set():
                asked.set()
                assert go_on.wait(20)
                return Response(503, {})
            return super().request(*args, **more)

    server, (pod, other) = Slow(), pods(2)
    reporter = Reporter(server, "jaxsched").start()
    reporter._want(report._Report(pod, "", "Insufficient: x"))
    assert asked.wait(20)
    reporter.withdraw([pod])
    go_on.set()
    reporter.report_unschedulable(other, "Insufficient", "x")
    eventually(lambda: reporter.waiting() == 0)
    assert set(server.conditions) == {"u1"}
    reporter.report_unschedulable(pod, "Insufficient", "x")  # the Binding was refused
    eventually(lambda: reporter.waiting() == 0)
    reporter.stop()
    assert server.conditions == {"u1": ["Insufficient: x"], "u0": ["Insufficient: x"]}


def conditions(world, pod: dict) -> list[dict]:
    return [c for c in world.get(pod).get("status", {}).get("conditions", []) if c["type"] == "PodScheduled"]


def test_an_overloaded_server_is_told_in_the_end(world) -> None:
    pods = [world.pod() for _ in range(5)]
    world.proxy.inject("PATCH", "status", status=429, retry_after="1")
    world.proxy.inject("PATCH", "status", lose_answer=True)
    world.proxy.inject("POST", "/events", status=503)
    reporter = Reporter(world.proxy.api, "jaxsched").start()
    for pod in pods:
        reporter.report_unschedulable(read_pod(pod), "Insufficient", "0 of 8 nodes")
    eventually(lambda: reporter.waiting() == 0)
    reporter.stop()
    assert all("0 of 8 nodes" in conditions(world, pod)[0]["message"] for pod in pods)
    events = world.api.request("GET", "/api/v1/namespaces/default/events").body["items"]
    told = {one["involvedObject"].get("uid") for one in events if one["reason"] == "FailedScheduling"}
    assert told >= {pod["metadata"]["uid"] for pod in pods}


def test_events_name_who_reports(world) -> None:
    world.since(19, "events.k8s.io/v1")
    pod = world.pod()
    reporter = Reporter(world.proxy.api, "jaxsched", instance="jaxsched-0").start()
    reporter.report_event(read_pod(pod), "Scheduled", "bound")
    eventually(lambda: reporter.waiting() == 0)
    reporter.stop()
    path = "/api/v1/namespaces/default/events"
    events = world.api.request("GET", path).body["items"]
    (one,) = [one for one in events if one["involvedObject"].get("uid") == pod["metadata"]["uid"]]
    assert (one["reportingComponent"], one["reportingInstance"]) == ("jaxsched", "jaxsched-0")
    if world.kind == "real":
        seen = world.api.request("GET", f"/apis/events.k8s.io/v1/namespaces/default/events/{one['metadata']['name']}")
        assert seen.body["reportingController"] == "jaxsched"


def test_the_waiting_condition_is_written_once_per_text(world) -> None:
    pod = world.pod()
    reporter = Reporter(world.proxy.api, "jaxsched").start()
    for _ in range(3):
        reporter.report_unschedulable(read_pod(pod), "Insufficient", "0 of 8 nodes")

    eventually(lambda: bool(conditions(world, pod)))
    assert (
        conditions(world, pod)[0]["reason"] == "Unschedulable"
        and "0 of 8 nodes" in conditions(world, pod)[0]["message"]
    )
    eventually(lambda: world.proxy.count("POST", "/events") == 1)
    reporter.stop()
    assert world.proxy.count("PATCH", "status") == 1
