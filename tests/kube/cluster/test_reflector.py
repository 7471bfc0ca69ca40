"""The reflector through cuts, 410s and relists, against the fake and a real API server."""

import json
import time

import pytest

from jaxsched.kube.cluster.api import NODES, PODS, Outage, Refusals, pod_path
from jaxsched.kube.cluster.informers import Reflector, Store
from jaxsched.kube.read.objects import read_pod
from tests.support.kube.calls import eventually, post


class Watched:
    """A running reflector on pods and what it holds."""

    def __init__(self, world, idle_s: float = 100.0) -> None:
        self.causes: list[str] = []
        self.events: list[tuple[str, str]] = []
        self.store = Store(read_pod, on_event=lambda kind, raw: self.events.append((kind, raw["metadata"]["uid"])))
        self.reflector = Reflector(world.proxy.api, PODS, self.store, count=self.causes.append, idle_s=idle_s).start()
        assert self.reflector.listed.wait(20) and self.reflector.live.wait(20)

    def has(self, pod: dict) -> bool:
        return self.store.get(pod["metadata"]["uid"]) is not None


@pytest.fixture
def watching(world, monkeypatch: pytest.MonkeyPatch):
    # After a fault of ours the longer one is waited for.
    monkeypatch.setattr("jaxsched.kube.cluster.informers.BACKOFF_S", (0.5, 1.0))
    running: list[Watched] = []

    def start(**more) -> Watched:
        running.append(Watched(world, **more))
        return running[-1]

    yield start
    for one in running:
        one.reflector.stop()


def test_list_then_watch(world, watching) -> None:
    first = world.pod()
    one = watching()
    assert one.has(first)
    second = world.pod()
    eventually(lambda: one.has(second))
    post(world, second, "n0")
    eventually(lambda: one.store.get(second["metadata"]["uid"]).node == "n0")
    world.api.request("DELETE", pod_path("default", second["metadata"]["name"]), body={"gracePeriodSeconds": 0})
    eventually(lambda: not one.has(second))
    assert one.reflector.lists == 1


def test_a_pod_of_the_same_name_is_another_one(world, watching) -> None:
    one = watching()
    old = world.pod(name := world.name())
    eventually(lambda: one.has(old))
    world.api.request("DELETE", pod_path("default", name), body={"gracePeriodSeconds": 0})
    new = world.pod(name)
    eventually(lambda: one.has(new) and not one.has(old))


def test_a_cut_watch_goes_on_where_it_was(world, watching) -> None:
    world.proxy.inject("GET", r"/pods\?.*watch=true", cut_after=1)
    one = watching()
    before, between = world.pod(), world.pod()  # the second one is cut off
    eventually(lambda: one.has(before) and one.has(between))
    assert "unreachable" in one.causes and one.reflector.lists == 1


@pytest.mark.parametrize("as_status", [True, False])
def test_gone_is_ordinary(world, watching, as_status: bool) -> None:
    """410 as an HTTP status and as an event of a watch that began well."""
    if as_status:
        body = json.dumps({"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}).encode()
        world.proxy.inject("GET", r"/pods\?.*watch=true", status=410, body=body)
    else:
        event = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}}
        world.proxy.inject("GET", r"/pods\?.*watch=true", status=200, body=json.dumps(event).encode() + b"\n")
    one = watching()
    pod = world.pod()
    eventually(lambda: one.has(pod) and one.reflector.lists == 2)
    assert "gone" in one.causes


def test_a_half_open_watch_is_noticed(world, watching) -> None:
    world.proxy.inject("GET", r"/pods\?.*watch=true", freeze=True)
    one = watching(idle_s=1.0)
    pod = world.pod()
    eventually(lambda: one.has(pod))
    assert "unreachable" in one.causes


def test_a_watch_that_hangs_without_an_answer_is_not_live(world, watching) -> None:
    """While the next watch is not answered, changes could be missed: nothing may be planned."""
    one = watching(idle_s=2.0)
    hung = world.proxy.inject("GET", r"/pods\?.*watch=true", hang=True)
    one.reflector._interrupt()
    eventually(lambda: hung.hits == 1)
    pod = world.pod()
    assert not one.reflector.live.is_set()
    eventually(lambda: one.has(pod) and one.reflector.live.is_set())


def test_failing_lists_are_repeated(world, watching) -> None:
    world.proxy.inject("GET", r"/pods$", status=503, times=2)
    world.proxy.inject("GET", r"/pods$", status=429)
    one = watching()
    assert one.reflector.lists == 1 and world.proxy.count("GET", r"/pods$") == 4


FORBIDDEN = json.dumps({"kind": "Status", "code": 403, "message": "clusterrole not found"}).encode()


def test_a_server_that_forbids_for_a_moment_is_tried_again(world, watching) -> None:
    """So does one that has just started. Before: the process ended."""
    one = watching()
    forbidden = world.proxy.inject("GET", r"/pods\?.*watch=true", status=403, body=FORBIDDEN)
    one.reflector._interrupt()
    eventually(lambda: forbidden.hits == 1 and one.reflector.live.is_set())
    forbidden = world.proxy.inject("GET", r"/pods$", status=403, body=FORBIDDEN)
    one.reflector.relist()
    eventually(lambda: forbidden.hits == 1 and one.reflector.live.is_set())
    assert one.reflector.denied == "" and one.causes.count("unreachable") >= 2


def test_who_was_never_permitted_is_denied_at_once(world) -> None:
    world.proxy.inject("GET", r"/pods$", status=403, body=FORBIDDEN, times=99)
    reflector = Reflector(world.proxy.api, PODS, Store(dict)).start()
    eventually(lambda: reflector.denied == "clusterrole not found")
    reflector.stop()


def test_refusals_that_last_are_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr("jaxsched.kube.cluster.api.time.monotonic", lambda: now_s[0])
    refusals = Refusals()
    refusals.reset()
    told = []
    for now_s[0] in (0.0, 59.0, 61.0):
        told.append(refusals.record("no"))
    assert told == [False, False, True] and refusals.denied == "no"
    refusals.reset()
    assert not refusals.denied and not refusals.record("no")


@pytest.mark.parametrize(
    ("path", "what"), [(r"/(pods|nodes)$", {"lose_answer": True}), (r"/(pods|nodes)\?.*watch=true", {"status": 503})]
)
def test_an_outage_is_two_lines(world, monkeypatch, caplog, path: str, what: dict) -> None:
    """Not two for each watch. Before: none."""
    monkeypatch.setattr("jaxsched.kube.cluster.informers.BACKOFF_S", (0.05, 0.1))
    caplog.set_level("INFO", "jaxsched.kube")
    outage = Outage(world.proxy.api.host)
    both = [Reflector(world.proxy.api, one, Store(dict), outage=outage).start() for one in (PODS, NODES)]
    eventually(lambda: all(one.live.is_set() for one in both))
    fault = world.proxy.inject("GET", path, times=8, **what)
    for one in both:
        one.relist()
    eventually(lambda: fault.hits == 8 and all(one.live.is_set() for one in both))
    for one in both:
        one.stop()
    lines = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert [level for level, _ in lines] == ["WARNING", "INFO"], lines
    assert "does not answer" in lines[0][1] and "answers again" in lines[1][1]


def test_relist_waits_for_a_new_list(world, watching) -> None:
    one = watching()
    one.reflector.relist()
    assert not one.reflector.live.is_set() or one.reflector.lists == 2
    eventually(lambda: one.reflector.live.is_set() and one.reflector.lists == 2, 5.0)  # although nothing happens


def test_bookmarks_are_no_objects(world, watching) -> None:
    one = watching()
    if world.kind == "fake":
        time.sleep(1.5)  # the fake sends one every half second, a real server every minute
    pod = world.pod()
    eventually(lambda: one.has(pod))
    assert {kind for kind, _ in one.events} <= {"ADDED", "MODIFIED", "DELETED"}


def test_a_resource_that_does_not_exist_is_no_error(world) -> None:
    paths = [f"/apis/scheduling.volcano.sh/{version}/podgroups" for version in ("v1beta1", "v1alpha1")]
    reflector = Reflector(world.api, paths, Store(dict), optional=True).start()
    assert reflector.listed.wait(20) and reflector.live.is_set() and reflector.missing
    reflector.stop()


def test_the_first_version_that_the_server_has_is_read(world) -> None:
    world.pod()
    store = Store(dict)
    reflector = Reflector(world.api, ["/api/v9/pods", "/api/v1/pods", "/api/v2/pods"], store, optional=True).start()
    assert reflector.listed.wait(20) and not reflector.missing and reflector.path == "/api/v1/pods" and store.items()
    reflector.stop()


def test_a_cut_watch_does_not_see_the_past_again(world, watching) -> None:
    """It goes on after the last event, not after the list: an old event would undo what came later."""
    one = watching()
    pod = world.pod()
    post(world, pod, "n0")
    uid = pod["metadata"]["uid"]
    eventually(lambda: one.has(pod) and one.store.get(uid).node == "n0")
    seen = len(one.events)
    one.reflector._interrupt()
    other = world.pod()
    eventually(lambda: one.has(other))
    assert [kind for kind, name in one.events[seen:] if name == uid] == []


def test_an_object_that_reading_raises_on_stays_as_it_was() -> None:
    def read(raw) -> str:
        return raw["spec"]

    store = Store(read)
    store.put("ADDED", {"metadata": {"uid": "u"}, "spec": "first"})
    store.put("MODIFIED", {"metadata": {"uid": "u"}})
    store.put("ADDED", {"metadata": {"uid": "v"}, "spec": "second"})
    assert store.unreadable == 1 and store.items() == ("first", "second")


@pytest.mark.parametrize(
    "body", [b'{"type": "ADDED", "object": []}\n', b"[1]\n", b'{"type": "ADDED", "object": ' + b"[" * 5000 + b"\n"]
)
def test_a_line_that_is_no_event_is_passed_over(world, watching, body: bytes) -> None:
    world.proxy.inject("GET", r"/pods\?.*watch=true", status=200, body=body)
    one = watching()
    pod = world.pod()
    eventually(lambda: one.has(pod))
    assert one.reflector._thread.is_alive()


def test_a_fault_of_ours_does_not_end_the_thread(world, watching) -> None:
    one = watching()
    on_event, failures = one.store._on_event, []

    def fails_once(kind: str, raw) -> None:
        if not failures:
            failures.append(kind)
            raise RuntimeError("one nobody thought of")
        on_event(kind, raw)

    one.store._on_event = fails_once
    first, second = world.pod(), world.pod()
    eventually(lambda: one.has(first) and one.has(second))
    eventually(lambda: "fault" in one.causes)
