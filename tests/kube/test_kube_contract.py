"""What an API server does and what the adapter makes of it: unchanged against the fake and a real one."""

import json
import threading
import time

import pytest

from jaxsched.errors import UserError
from jaxsched.kube import binder as outcomes
from jaxsched.kube.api import NODES, PODS, Unreachable, pod_path
from jaxsched.kube.binder import Binder, binding
from jaxsched.kube.election import Election
from jaxsched.kube.objects import read_pod
from jaxsched.kube.permissions import POD_GROUPS, check_permissions
from jaxsched.kube.placement import Assignment
from jaxsched.kube.reflector import Reflector, Store
from jaxsched.kube.report import Reporter
from jaxsched.kube.settings import DECISION, GROUP

MERGE = "application/strategic-merge-patch+json"


def assignment(pod: dict, node: str) -> Assignment:
    return Assignment(read_pod(pod), node, (0, 1))


def post(world, pod: dict, node: str, uid: str = "", query: dict | None = None):
    body = binding(assignment(pod, node), "d1", "test")
    body["metadata"]["uid"] = uid or body["metadata"]["uid"]
    return world.api.request("POST", pod_path("default", pod["metadata"]["name"], "binding"), query, body)


def eventually(check, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.05)


# The Binding table


def test_a_binding_is_answered_with_a_status_and_its_annotations_are_merged(world) -> None:
    pod = world.pod()
    answer = post(world, pod, world.node()["metadata"]["name"])
    assert answer.status == 201 and answer.body["kind"] == "Status"
    after = world.get(pod)
    assert after["spec"]["nodeName"]
    assert after["metadata"]["annotations"][DECISION] == "d1"
    assert after["metadata"]["annotations"][GROUP] == "0-1"


def test_a_dry_run_changes_nothing(world) -> None:
    pod = world.pod()
    assert post(world, pod, "n0", query={"dryRun": "All"}).status == 201
    assert "nodeName" not in world.get(pod)["spec"]


def test_a_second_binding_is_409(world) -> None:
    pod = world.pod()
    assert post(world, pod, "n0").status == 201
    assert post(world, pod, "n1").status == 409
    assert world.get(pod)["spec"]["nodeName"] == "n0"


def test_a_wrong_uid_is_409(world) -> None:
    world.since(22, "the uid in a Binding")
    pod = world.pod()
    assert post(world, pod, "n0", uid="00000000-0000-0000-0000-000000000000").status == 409


def test_a_deleted_pod_is_404_and_a_terminating_one_409(world) -> None:
    pod = world.pod(finalizers=["example.com/hold"])
    path = pod_path("default", pod["metadata"]["name"])
    world.api.request("DELETE", path, body={"gracePeriodSeconds": 0})
    assert post(world, pod, "n0").status == 409
    world.api.request("PATCH", path, body={"metadata": {"finalizers": None}}, content=MERGE)
    eventually(lambda: world.api.request("GET", path).status == 404)
    assert post(world, pod, "n0").status == 404


def test_a_gated_pod_is_409(world) -> None:
    world.since(27, "scheduling gates")
    pod = world.pod(spec={"schedulingGates": [{"name": "example.com/wait"}]})
    assert post(world, pod, "n0").status == 409


def test_the_server_checks_neither_the_node_nor_its_capacity(world) -> None:
    assert post(world, world.pod(), "there-is-no-such-node").status == 201
    small = world.node(gpus=1)["metadata"]["name"]
    assert post(world, world.pod(gpus=8), small).status == 201


def test_the_scheduler_name_cannot_be_changed(world) -> None:
    path = pod_path("default", world.pod()["metadata"]["name"])
    assert world.api.request("PATCH", path, body={"spec": {"schedulerName": "x"}}, content=MERGE).status == 422


def test_field_selectors_work_on_the_server(world) -> None:
    ours, theirs, bound = world.pod(), world.pod(scheduler="other"), world.pod()
    post(world, bound, "n0")
    query = {"fieldSelector": "spec.schedulerName=jaxsched,spec.nodeName=,status.phase=Pending"}
    found = {pod["metadata"]["uid"] for pod in world.api.request("GET", PODS, query).body["items"]}
    assert ours["metadata"]["uid"] in found
    assert not found & {theirs["metadata"]["uid"], bound["metadata"]["uid"]}


# The binder's rules


def test_bind_succeeds(world) -> None:
    pod = world.pod()
    assert Binder(world.proxy.api).bind(assignment(pod, "n0"), "d", "p").result == outcomes.BOUND
    assert world.get(pod)["spec"]["nodeName"] == "n0"


@pytest.mark.parametrize("status", [429, 500, 503])
def test_an_overloaded_server_is_asked_again(world, status: int) -> None:
    pod = world.pod()
    world.proxy.inject("POST", "binding", status=status, times=2)
    assert Binder(world.proxy.api).bind(assignment(pod, "n0"), "d", "p").result == outcomes.BOUND
    assert world.proxy.count("POST", "binding") == 3


def test_retry_after_is_honoured(world) -> None:
    waits: list[float] = []
    world.proxy.inject("POST", "binding", status=429, retry_after="4")
    binder = Binder(world.proxy.api, sleep=waits.append)
    assert binder.bind(assignment(world.pod(), "n0"), "d", "p").result == outcomes.BOUND
    assert waits and 2.0 <= waits[0] <= 4.0


def test_a_lost_answer_is_read_back_and_not_written_twice(world) -> None:
    pod = world.pod()
    world.proxy.inject("POST", "binding", lose_answer=True)
    assert Binder(world.proxy.api).bind(assignment(pod, "n0"), "d", "p").result == outcomes.BOUND
    assert world.proxy.count("POST", "binding") == 1
    assert world.get(pod)["spec"]["nodeName"] == "n0"


def test_a_pod_that_another_bound_is_elsewhere(world) -> None:
    pod = world.pod()
    post(world, pod, "n9")
    outcome = Binder(world.proxy.api).bind(assignment(pod, "n0"), "d", "p")
    assert outcome.result == outcomes.ELSEWHERE and "n9" in outcome.message
    assert (
        Binder(world.proxy.api).bind(assignment(pod, "n9"), "d", "p").result == outcomes.BOUND
    )  # it is what we wanted


def test_a_pod_that_is_gone_or_replaced_is_forgotten(world) -> None:
    pod = world.pod(name := world.name())
    world.api.request("DELETE", pod_path("default", name), body={"gracePeriodSeconds": 0})
    assert Binder(world.proxy.api).bind(assignment(pod, "n0"), "d", "p").result == outcomes.GONE


def test_a_new_pod_of_the_same_name_is_not_bound_by_an_old_plan(world) -> None:
    world.since(22, "the uid in a Binding")
    old = world.pod(name := world.name())
    world.api.request("DELETE", pod_path("default", name), body={"gracePeriodSeconds": 0})
    new = world.pod(name)
    assert Binder(world.proxy.api).bind(assignment(old, "n0"), "d", "p").result == outcomes.GONE
    assert "nodeName" not in world.get(new)["spec"]


@pytest.mark.parametrize("status", [403, 422])
def test_a_refusal_is_final(world, status: int) -> None:
    world.proxy.inject("POST", "binding", status=status)
    outcome = Binder(world.proxy.api).bind(assignment(world.pod(), "n0"), "d", "p")
    assert outcome == (outcomes.DENIED, "injected") and world.proxy.count("POST", "binding") == 1


def test_a_silent_server_is_given_up_on_after_the_deadline(world) -> None:
    world.proxy.inject("POST", "binding", status=503, times=100)
    outcome = Binder(world.proxy.api, deadline_s=1.0).bind(assignment(world.pod(), "n0"), "d", "p")
    assert outcome.result == outcomes.UNKNOWN


def test_who_leads_no_longer_binds_nothing(world) -> None:
    binder = Binder(world.proxy.api, may_bind=lambda: False)
    assert binder.bind(assignment(world.pod(), "n0"), "d", "p").result == outcomes.UNKNOWN
    assert world.proxy.count("POST", "binding") == 0


def test_the_waiting_condition_is_written_once_per_text(world) -> None:
    pod = world.pod()
    reporter = Reporter(world.proxy.api, "jaxsched").start()
    for _ in range(3):
        reporter.waits(read_pod(pod), "Insufficient", "0 of 8 nodes")

    def conditions() -> list[dict]:
        return [c for c in world.get(pod).get("status", {}).get("conditions", []) if c["type"] == "PodScheduled"]

    eventually(lambda: bool(conditions()))
    assert conditions()[0]["reason"] == "Unschedulable" and "0 of 8 nodes" in conditions()[0]["message"]
    eventually(lambda: world.proxy.count("POST", "/events") == 1)
    reporter.stop()
    assert world.proxy.count("PATCH", "status") == 1


# The reflector


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
def watching(world):
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


def test_an_old_version_gives_410(world) -> None:
    world.forget_history()
    query = {"watch": "true", "resourceVersion": "1", "timeoutSeconds": "3"}
    events = list(world.api.stream(PODS, query, idle_s=10))
    assert events and events[0]["type"] == "ERROR" and events[0]["object"]["code"] == 410


def test_a_half_open_watch_is_noticed(world, watching) -> None:
    world.proxy.inject("GET", r"/pods\?.*watch=true", freeze=True)
    one = watching(idle_s=1.0)
    pod = world.pod()
    eventually(lambda: one.has(pod))
    assert "unreachable" in one.causes


def test_failing_lists_are_repeated(world, watching) -> None:
    world.proxy.inject("GET", r"/pods$", status=503, times=2)
    world.proxy.inject("GET", r"/pods$", status=429)
    one = watching()
    assert one.reflector.lists == 1 and world.proxy.count("GET", r"/pods$") == 4


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
    group, version, resource = POD_GROUPS[2]
    reflector = Reflector(world.api, f"/apis/{group}/{version}/{resource}", Store(dict), optional=True).start()
    assert reflector.listed.wait(20) and reflector.live.is_set() and reflector.missing
    reflector.stop()


def test_nobody_there_is_unreachable(world) -> None:
    from jaxsched.kube.api import Api

    with pytest.raises(Unreachable, match="GET /api/v1/nodes"):
        Api("http://127.0.0.1:9").request("GET", NODES)


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


# The Lease


def election(world, name: str, who: str, api=None) -> Election:
    return Election(api or world.api, "default", name, who, lease_s=3.0, renew_s=1.5, retry_s=0.2)


def test_one_leads_and_the_next_follows_when_it_stops(world) -> None:
    name = world.name("lease")
    first = election(world, name, "a").start()
    eventually(first.leading.is_set)
    second = election(world, name, "b").start()
    time.sleep(1.0)
    assert not second.leading.is_set() and first.fresh()
    began = time.monotonic()
    first.stop()
    eventually(second.leading.is_set)
    assert time.monotonic() - began < 2.5  # given up, not run out
    second.stop()


def test_a_leader_that_cannot_renew_stops_before_another_starts(world) -> None:
    name = world.name("lease")
    first = election(world, name, "a", world.proxy.api).start()
    eventually(first.leading.is_set)
    second = election(world, name, "b").start()
    both: list[bool] = []
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(0.02):
            both.append(first.fresh() and second.fresh())

    looking = threading.Thread(target=look)
    looking.start()
    world.proxy.inject("GET", "leases", status=500, times=1000)
    world.proxy.inject("PUT", "leases", status=500, times=1000)
    eventually(first.lost.is_set)
    assert not first.leading.is_set()
    eventually(second.leading.is_set)
    stop.set()
    looking.join()
    assert not any(both)
    second.stop()


# Permissions


def test_everything_is_permitted_to_the_administrator(world) -> None:
    check_permissions(world.api, (("create", "", "pods/binding"), ("list", "", "nodes")))


def test_an_unreachable_server_is_one_line(world) -> None:
    from jaxsched.kube.api import Api

    with pytest.raises(UserError, match="does not answer"):
        check_permissions(Api("http://127.0.0.1:9"), (("list", "", "nodes"),))
