"""The whole scheduler against the fake and a real API server."""

import json
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from jaxsched.errors import UserError
from jaxsched.kube.capacity.free_capacity import FreeCapacity
from jaxsched.kube.cluster.api import pod_path
from jaxsched.kube.cluster.monitoring import serve
from jaxsched.kube.cluster.record import read_recording
from jaxsched.kube.read.gangs import Gang
from tests.support.kube.calls import eventually
from tests.support.kube.turns import bound, gang, node_of, told, turn

MERGE = "application/strategic-merge-patch+json"


def test_gangs_are_bound_whole_and_within_capacity(world, start) -> None:
    names = [world.node()["metadata"]["name"] for _ in range(4)]
    foreign = world.pod(gpus=6, scheduler="other")
    world.api.request(
        "POST",
        pod_path("default", foreign["metadata"]["name"], "binding"),
        body={"metadata": {"name": foreign["metadata"]["name"]}, "target": {"kind": "Node", "name": names[0]}},
    )
    scheduler = start()
    gangs = [gang(world, 2, 4), gang(world, 2, 4), gang(world, 1, 2)]
    turn(scheduler, lambda: all(bound(world, pods) == len(pods) for pods in gangs))
    used = Counter({names[0]: 6})
    for pods, gpus in zip(gangs, (4, 4, 2), strict=True):
        used.update({node_of(world, pod): gpus for pod in pods[:1]})
        used.update({node_of(world, pod): gpus for pod in pods[1:]})
    assert all(gpus <= 8 for gpus in used.values()), used
    late = gang(world, 4, 8)
    for _ in range(3):
        scheduler.step()
    assert bound(world, late) == 0


def test_workers_of_different_sizes_start_together(world, start) -> None:
    """Two nodes are too few for pods of 1, 8, 2 and 8 GPUs; none of the four starts before there is a third."""
    for _ in range(2):
        world.node()
    name = world.name("m")
    pods = [world.pod(f"{name}-{i}", gpus=gpus, gang=name, size=4) for i, gpus in enumerate((1, 8, 2, 8))]
    scheduler = start()
    turn(scheduler, lambda: "its workers differ; 2 of 4 pods fit" in told(world, pods[0]))
    assert bound(world, pods) == 0
    world.node()
    turn(scheduler, lambda: bound(world, pods) == 4)
    assert len({node_of(world, pod) for pod in pods}) == 3


def test_the_rest_of_a_gang_that_a_killed_process_left_half_bound(world, start) -> None:
    node = world.node()["metadata"]["name"]
    pods = gang(world, 4, 1)
    for pod in pods[:2]:
        body = {"metadata": {"name": pod["metadata"]["name"]}, "target": {"kind": "Node", "name": node}}
        assert world.api.request("POST", pod_path("default", pod["metadata"]["name"], "binding"), body=body).ok
    scheduler = start()
    turn(scheduler, lambda: bound(world, pods) == 4)
    assert world.proxy.count("POST", "binding") == 2


def test_a_failure_in_the_middle_of_a_gang_is_made_good(world, start) -> None:
    world.node()
    scheduler = start(bind_threads=1)
    fault = world.proxy.inject("POST", "binding", lose_answer=True)
    conflict = world.proxy.inject("POST", "binding", status=409, times=2)
    pods = gang(world, 4, 1)
    turn(scheduler, lambda: bound(world, pods) == 4)
    assert fault.hits == 1 and conflict.hits == 2


def test_an_incomplete_gang_waits_and_is_told_why(world, start) -> None:
    world.node()
    scheduler = start()
    pods = gang(world, 3, 1, count=2)
    scheduler.step()

    def told() -> bool:
        conditions = world.get(pods[0]).get("status", {}).get("conditions", [])
        return any("2 of 3 pods exist" in str(c.get("message")) for c in conditions)

    turn(scheduler, told)
    assert bound(world, pods) == 0


def test_hostile_pods_are_told_why_and_the_others_are_bound(world, start) -> None:
    world.node()
    scheduler = start()
    hostile = [
        world.pod(annotations={"jaxsched.io/gang-size": "9" * 5000}),
        world.pod(annotations={"kueue.x-k8s.io/pod-group-total-count": "000000001999999999"}),
        world.pod(annotations={"jaxsched.io/duration-seconds": "NaN"}),
    ]
    pods = gang(world, 2, 4)

    def told() -> bool:
        events = world.api.request("GET", "/api/v1/namespaces/default/events").body["items"]
        texts = {one["involvedObject"].get("uid"): one["message"] for one in events}  # the server has its own
        return all("BadAnnotation" in texts.get(pod["metadata"]["uid"], "") for pod in hostile)

    turn(scheduler, lambda: told() and bound(world, pods) == 2)
    assert bound(world, hostile) == 0


def test_a_gang_that_makes_planning_raise_is_left_out_and_the_loop_goes_on(world, start, monkeypatch) -> None:
    world.node()
    scheduler = start()
    good, bad = gang(world, 1, 1), gang(world, 1, 1)
    key, usable = f"default/{bad[0]['metadata']['name']}", FreeCapacity.usable
    calls = []

    def raises(self: FreeCapacity, gang: Gang, *more) -> object:
        if any(pod.key == key for pod in gang.pending):
            calls.append(gang.key)
            raise RuntimeError("one nobody thought of")
        return usable(self, gang, *more)

    monkeypatch.setattr(FreeCapacity, "usable", raises)
    turn(scheduler, lambda: bound(world, good) == 1 and bool(calls))
    tried = len(calls)
    for _ in range(3):
        scheduler.step()
    assert len(calls) == tried and bound(world, bad) == 0


def test_a_turn_that_raises_is_given_up_and_the_next_one_comes(world, start, monkeypatch) -> None:
    world.node()
    scheduler = start()
    plan, failures = scheduler.planner.plan, []

    def fails_once(snapshot):
        if not failures:
            failures.append(snapshot)
            raise RuntimeError("one nobody thought of")
        return plan(snapshot)

    monkeypatch.setattr(scheduler.planner, "plan", fails_once)
    monkeypatch.setattr("jaxsched.kube.cluster.app.FAILED_S", 0.1)
    pods = gang(world, 1, 1)
    thread = threading.Thread(target=scheduler.run)
    thread.start()
    try:
        eventually(lambda: bound(world, pods) == 1)
    finally:
        scheduler.stop()
        thread.join(30)
    assert failures and b"jaxsched_failed_turns_total 1.0" in scheduler.metrics.text()


def test_a_gang_deleted_while_it_is_bound(world, start) -> None:
    world.node()
    scheduler = start(bind_threads=1)
    pods = gang(world, 4, 1)
    snapshot = scheduler.snapshot()
    while len([pod for pod in snapshot.pods if pod.scheduler == "jaxsched" and not pod.node]) < 4:
        time.sleep(0.1)
        snapshot = scheduler.snapshot()
    plan = scheduler.planner.plan(snapshot)
    for pod in pods[1:]:
        world.api.request("DELETE", pod_path("default", pod["metadata"]["name"]), body={"gracePeriodSeconds": 0})
    scheduler.gang_binder.bind(list(plan.placements))
    again = gang(world, 2, 4)
    turn(scheduler, lambda: bound(world, again) == 2 or len(scheduler.gang_binder.assumed) == 0)
    assert len(scheduler.gang_binder.assumed) <= 2


def test_a_cordoned_node_takes_nothing(world, start) -> None:
    first, second = world.node()["metadata"]["name"], world.node()["metadata"]["name"]
    scheduler = start()
    assert world.api.request(
        "PATCH", f"/api/v1/nodes/{first}", body={"spec": {"unschedulable": True}}, content=MERGE
    ).ok
    turn(scheduler, lambda: any(not n.usable for n in scheduler.informers.stores["nodes"].items()))
    pods = gang(world, 2, 2)
    turn(scheduler, lambda: bound(world, pods) == 2)
    assert {node_of(world, pod) for pod in pods} == {second}


def test_dry_run_binds_nothing_and_says_so_once(world, start) -> None:
    world.node()
    scheduler = start(mode="dry-run")
    pods = gang(world, 2, 1)
    turn(scheduler, lambda: world.proxy.count("POST", "binding.*dryRun=All") == 2)
    for _ in range(3):
        scheduler.step()
    assert bound(world, pods) == 0 and world.proxy.count("POST", "binding") == 2


def test_shadow_writes_nothing_and_compares(world, start, capsys) -> None:
    node = world.node()["metadata"]["name"]
    scheduler = start(mode="shadow")
    scheduler.step()
    pods = gang(world, 2, 1)
    turn(scheduler, lambda: len([p for p in scheduler.snapshot().pods if not p.node]) >= 2)
    scheduler.step()
    for pod in pods:
        body = {"metadata": {"name": pod["metadata"]["name"]}, "target": {"kind": "Node", "name": node}}
        assert world.api.request("POST", pod_path("default", pod["metadata"]["name"], "binding"), body=body).ok
    out: list[str] = []

    def said() -> bool:
        out.extend(capsys.readouterr().out.splitlines())
        return bool(out)

    turn(scheduler, said)
    entry = json.loads(out[0])
    assert entry["same_nodes"] and set(entry["theirs"].values()) == {node} and entry["ours"] == entry["theirs"]
    assert world.proxy.count("POST", "binding") == 0


def test_an_api_that_goes_away_and_comes_back(world, start) -> None:
    world.node()
    scheduler = start()
    runner = threading.Thread(target=scheduler.run, daemon=True)
    runner.start()
    before = gang(world, 2, 1)
    wait(lambda: bound(world, before) == 2)
    for method, path in (("GET", "/pods"), ("GET", "/nodes"), ("POST", "binding")):
        world.proxy.inject(method, path, status=503, times=3)
    world.forget_history()
    after = gang(world, 2, 1)
    wait(lambda: bound(world, after) == 2)
    scheduler.stop()
    runner.join(20)
    assert not runner.is_alive()


def test_a_plan_is_given_up_when_the_server_no_longer_answers(world, start) -> None:
    """Before: every pod of the plan was tried for half a minute, so that many took longer than a process may."""
    world.node()
    world.node()
    scheduler = start(bind_threads=2)
    scheduler.gang_binder.binder.deadline_s = 0.5
    fault = world.proxy.inject("POST", "binding", status=503, times=10_000)
    pods = [world.pod() for _ in range(16)]
    eventually(lambda: len(scheduler.informers.pods()) == 16)
    scheduler.step()
    tried = {path for method, path in world.proxy.seen if method == "POST" and path.endswith("/binding")}
    assert 0 < len(tried) <= 3 and bound(world, pods) == 0
    fault.times = 0
    turn(scheduler, lambda: bound(world, pods) == 16)


def wait(check, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.2)


def test_a_recording_can_be_read(world, start, tmp_path: Path) -> None:
    world.node()
    scheduler = start(record=tmp_path / "day.jsonl")
    pods = gang(world, 2, 1)
    turn(scheduler, lambda: bound(world, pods) == 2)
    lines = list(read_recording(tmp_path / "day.jsonl"))
    assert {"nodes", "pods", "plan"} <= {line["kind"] for line in lines}
    assert not any("managedFields" in json.dumps(line) for line in lines)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a disk that is always full")
def test_a_full_disk_ends_the_recording_and_nothing_else(world, start) -> None:
    """Before: every plan raised before its first Binding."""
    world.node()
    scheduler = start(record=Path("/dev/full"))
    pods = gang(world, 2, 1)
    turn(scheduler, lambda: bound(world, pods) == 2)
    assert scheduler.informers.reflectors["pods"].lists == 1  # nor did the watch end


def test_metrics_and_health(world, start) -> None:
    import urllib.request

    world.node()
    scheduler = start()
    server = serve("127.0.0.1", 0, scheduler.metrics, scheduler.livez, scheduler.readyz)
    pods = gang(world, 2, 1)
    turn(scheduler, lambda: bound(world, pods) == 2)

    def get(page: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_address[1]}{page}") as response:
            return response.read().decode()

    text = get("/metrics")
    assert 'jaxsched_pod_binds_total{result="bound"} 2.0' in text
    assert 'jaxsched_schedule_attempts_total{by="pack:area+backfill+forward",result="scheduled"} 1.0' in text
    assert get("/readyz") == get("/livez") == "ok\n"
    with pytest.raises(UserError, match="--metrics-port"):
        serve("127.0.0.1", server.server_port, scheduler.metrics, scheduler.livez, scheduler.readyz)
    server.shutdown()
    server.server_close()
