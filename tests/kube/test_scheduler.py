"""The whole scheduler against the fake and a real API server."""

import copy
import json
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
import yaml
from kube_objects import make_pod

from jaxsched.errors import UserError
from jaxsched.kube.api import Api, pod_path
from jaxsched.kube.app import Options, Scheduler
from jaxsched.kube.brain import Brain
from jaxsched.kube.metrics import Metrics, serve
from jaxsched.kube.permissions import LEASE, POD_GROUPS, READS, WRITES
from jaxsched.kube.plan import Planner
from jaxsched.kube.record import read_recording
from jaxsched.kube.settings import Settings

DEPLOY = Path(__file__).parents[2] / "deploy"
SETTINGS = Settings(schedulers=2, running_slots=8, queue_slots=8, headroom=4.0)
MERGE = "application/strategic-merge-patch+json"


@pytest.fixture(scope="module")
def planner() -> Planner:
    return Planner(Brain("pack:area+backfill+forward", SETTINGS), SETTINGS)


@pytest.fixture
def start(world, planner):
    running: list[Scheduler] = []

    def begin(api: Api | None = None, **options) -> Scheduler:
        scheduler = Scheduler(
            api or world.proxy.api, planner, Options(**({"namespace": "default"} | options)), Metrics()
        )
        running.append(scheduler)
        scheduler.start()
        return scheduler

    yield begin
    for scheduler in running:
        scheduler.stop()
        scheduler.close()


def turn(scheduler: Scheduler, check, seconds: float = 30.0) -> None:
    """Step until `check` holds."""
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, "did not happen in time"
        scheduler.step()
        scheduler.dirty.wait(0.2)


def gang(world, size: int, gpus: int, count: int = -1, **more) -> list[dict]:
    name = world.name("g")
    return [
        world.pod(f"{name}-{i}", gpus=gpus, gang=name, size=size, **more) for i in range(size if count < 0 else count)
    ]


def node_of(world, pod: dict) -> str:
    return world.get(pod)["spec"].get("nodeName", "")


def bound(world, pods: list[dict]) -> int:
    return sum(bool(node_of(world, pod)) for pod in pods)


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
    scheduler.dispatch.bind(list(plan.placements))
    again = gang(world, 2, 4)
    turn(scheduler, lambda: bound(world, again) == 2 or len(scheduler.dispatch.assumed) == 0)
    assert len(scheduler.dispatch.assumed) <= 2


def test_a_cordoned_node_takes_nothing(world, start) -> None:
    first, second = world.node()["metadata"]["name"], world.node()["metadata"]["name"]
    scheduler = start()
    assert world.api.request(
        "PATCH", f"/api/v1/nodes/{first}", body={"spec": {"unschedulable": True}}, content=MERGE
    ).ok
    turn(scheduler, lambda: any(not n.usable for n in scheduler.mirror.stores["nodes"].items()))
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


def test_metrics_and_health(world, start) -> None:
    import urllib.request

    world.node()
    scheduler = start()
    server = serve(0, scheduler.metrics, scheduler.trouble_live, scheduler.trouble_ready)
    pods = gang(world, 2, 1)
    turn(scheduler, lambda: bound(world, pods) == 2)

    def get(page: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_address[1]}{page}") as answer:
            return answer.read().decode()

    text = get("/metrics")
    assert 'jaxsched_pod_binds_total{result="bound"} 2.0' in text
    assert 'jaxsched_schedule_attempts_total{by="pack:area+backfill+forward",result="scheduled"} 1.0' in text
    assert get("/readyz") == get("/livez") == "ok\n"
    with pytest.raises(UserError, match="--metrics-port"):
        serve(server.server_address[1], scheduler.metrics, scheduler.trouble_live, scheduler.trouble_ready)
    server.shutdown()
    server.server_close()


# RBAC


class As(Api):
    """The same server as somebody else."""

    def __init__(self, other: Api, user: str) -> None:
        self.__dict__.update(other.__dict__)
        self._user = user

    def _headers(self) -> dict[str, str]:
        return super()._headers() | {"Impersonate-User": self._user}


USER = "system:serviceaccount:jaxsched:jaxsched"
NEEDED = (
    *READS,
    *((verb, group, name) for group, _, name in POD_GROUPS for verb in ("list", "watch")),
    *WRITES,
    *LEASE,
)


def shipped() -> list[dict]:
    files = (DEPLOY / "base" / "rbac.yaml", DEPLOY / "ha" / "lease-rbac.yaml")
    return [one for file in files for one in yaml.safe_load_all(file.read_text())]


def grant(world, less: tuple[str, str, str] | None = None) -> None:
    """Create the shipped RBAC, less one permission."""
    for one in copy.deepcopy(shipped()):
        rules = one.get("rules") or []
        for rule in list(rules):
            if (
                less is not None
                and less[1] in rule["apiGroups"]
                and less[2] in rule["resources"]
                and less[0] in rule["verbs"]
            ):
                rules.remove(rule)
                for resource in rule["resources"]:
                    verbs = [v for v in rule["verbs"] if (v, resource) != (less[0], less[2])]
                    if verbs:
                        rules.append({**rule, "resources": [resource], "verbs": verbs})
        path = f"/apis/{one['apiVersion']}" if "/" in one["apiVersion"] else None
        if path is None:
            continue  # the service account: an impersonated user needs none
        cluster = one["kind"].startswith("Cluster")
        if not cluster:
            one["metadata"]["namespace"] = "default"
        world.make(f"{path}{'' if cluster else '/namespaces/default'}/{one['kind'].lower()}s", one)


def test_the_shipped_rbac_is_exactly_what_is_needed() -> None:
    granted = {
        (verb, group, resource)
        for one in shipped()
        for rule in one.get("rules") or []
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    assert granted == set(NEEDED)


def test_the_shipped_rbac_is_enough(world, start) -> None:
    grant(world)
    world.node()
    scheduler = start(As(world.proxy.api, USER), leader_election=True)
    pods = gang(world, 2, 1)
    turn(scheduler, lambda: bound(world, pods) == 2)
    waiting = gang(world, 2, 1, count=1)
    turn(scheduler, lambda: any("1 of 2" in str(c) for c in world.get(waiting[0])["status"].get("conditions", [])))


@pytest.mark.parametrize(
    "less", NEEDED, ids=lambda less: f"{less[0]}-{less[2].replace('/', '-')}-{less[1].partition('.')[0]}"
)
def test_one_verb_fewer_is_named(world, planner, less: tuple[str, str, str]) -> None:
    grant(world, less)
    scheduler = Scheduler(As(world.api, USER), planner, Options(namespace="default", leader_election=True), Metrics())
    with pytest.raises(UserError, match=f"not permitted to {less[0]} {less[2]}(,| \\({less[1]}\\))?;?"):
        scheduler.start()
    scheduler.close()


def test_a_permission_that_is_taken_away_later_is_named(world, start) -> None:
    world.node()
    scheduler = start()
    body = json.dumps({"kind": "Status", "code": 403, "message": 'cannot watch resource "pods"'}).encode()
    world.proxy.inject("GET", "/pods", status=403, body=body, times=99)
    scheduler.mirror.relist("pods")
    world.make("/api/v1/namespaces/default/pods", make_pod(world.name(), scheduler="other"))
    with pytest.raises(UserError, match="watch resource"):
        turn(scheduler, lambda: False, 20)
