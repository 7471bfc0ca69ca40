"""Gangs are evicted by the Eviction API for one with a higher priority, on the fake and on a real API server."""

import dataclasses

import pytest

from jaxsched.kube.cluster import binder
from jaxsched.kube.plan.planner import Planner
from jaxsched.kube.policy import GuardedPolicy
from jaxsched.kube.read.settings import PlanSettings
from tests.support.kube.calls import MERGE, eventually
from tests.support.kube.turns import bound, gang, node_of, turn

HOLD = "example.com/hold"  # what a kubelet does while a pod uses its grace period: it stays, terminating
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"


@pytest.fixture(scope="module")
def planner() -> Planner:
    settings = PlanSettings(schedulers=1, running_slots=8, queue_slots=8, headroom=4.0, preemption=True)
    return Planner(GuardedPolicy("pack:area+backfill+forward", settings), settings)


@pytest.fixture(autouse=True)
def impatient(monkeypatch) -> None:
    monkeypatch.setattr(binder, "WAIT_S", 0.1)


@pytest.fixture
def classes(world) -> dict[str, dict]:
    """The spec of pods of a priority."""
    wanted = {"low": (1, {}), "middle": (5, {}), "high": (10, {}), "never": (10, {"preemptionPolicy": "Never"})}
    return {key: world.priority(value, **more) for key, (value, more) in wanted.items()}


def patch(world, pod: dict, body: dict, part: str = "") -> None:
    meta = pod["metadata"]
    path = f"/api/v1/namespaces/default/pods/{meta['name']}{part}"
    assert world.api.request("PATCH", path, body=body, content=MERGE).ok


def run_all(world, start, classes, held: bool = False):
    """A scheduler, and a gang of two that fills two nodes and whose pods run."""
    for _ in range(2):
        world.node()
    scheduler = start()
    spec = classes["low"] | {"terminationGracePeriodSeconds": 0}
    low = gang(world, 2, 8, spec=spec, finalizers=[HOLD] if held else None)
    turn(scheduler, lambda: bound(world, low) == 2)
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    for pod in low:
        patch(world, pod, {"status": ready}, "/status")
    eventually(lambda: all(pod.phase == "Running" for pod in scheduler.informers.pods()))
    return scheduler, low


def terminating(world, pods: list[dict]) -> int:
    return sum("deletionTimestamp" in world.get(pod)["metadata"] for pod in pods)


def gone(world, pods: list[dict]) -> int:
    return sum("metadata" not in world.get(pod) or world.get(pod)["metadata"].get("uid") != pod["metadata"]["uid"]
               for pod in pods)  # fmt: skip


def test_a_gang_is_evicted_whole_and_the_higher_one_starts(world, start, classes) -> None:
    scheduler, low = run_all(world, start, classes)
    never = gang(world, 1, 8, spec=classes["never"])
    for _ in range(3):
        scheduler.step()
    assert gone(world, low) == 0 and world.proxy.count("POST", "eviction") == 0
    high = gang(world, 1, 8, spec=classes["high"])
    turn(scheduler, lambda: bound(world, high) == 1)
    assert gone(world, low) == 2
    turn(scheduler, lambda: bound(world, never) == 1)  # it takes the other node, which nobody else wants
    assert scheduler.metrics.registry.get_sample_value("scheduler_preemption_victims_sum") == 2.0


def test_pods_end_by_themselves_and_their_nodes_are_kept(world, start, classes) -> None:
    scheduler, low = run_all(world, start, classes, held=True)
    high, small = gang(world, 2, 8, spec=classes["high"]), gang(world, 1, 8, spec=classes["middle"])
    turn(scheduler, lambda: terminating(world, low) == 2)
    patch(world, low[0], {"metadata": {"finalizers": None}})
    eventually(lambda: gone(world, low) == 1)
    for _ in range(4):
        scheduler.step()
    assert bound(world, high) == bound(world, small) == 0  # one node is free, and kept
    assert world.proxy.count("POST", "eviction") == 4  # asked about, then evicted; no pod twice
    patch(world, low[1], {"metadata": {"finalizers": None}})
    turn(scheduler, lambda: bound(world, high) == 2)
    assert bound(world, small) == 0


def test_a_budget_that_forbids_one_pod_saves_the_gang(world, start, classes) -> None:
    scheduler, low = run_all(world, start, classes)
    label = {"scheduling.x-k8s.io/pod-group": low[0]["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"]}
    kind = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": world.name("b")}}
    made = world.make(BUDGETS, kind | {"spec": {"minAvailable": 1, "selector": {"matchLabels": label}}})
    path = f"{BUDGETS}/{made['metadata']['name']}"

    def allow(count: int) -> None:
        status = {"disruptionsAllowed": count, "currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2}
        body = {"status": status | {"observedGeneration": made["metadata"]["generation"]}}
        assert world.api.request("PATCH", f"{path}/status", body=body, content="application/merge-patch+json").ok
        store = scheduler.informers.stores["poddisruptionbudgets"]
        eventually(lambda: [one.allowed for one in store.items()] == [count])

    allow(1)
    high = gang(world, 1, 8, spec=classes["high"])
    for _ in range(4):
        scheduler.step()
    assert world.proxy.count("POST", "eviction") == 0 and gone(world, low) == 0
    allow(2)
    turn(scheduler, lambda: bound(world, high) == 1)
    assert gone(world, low) == 2


def test_a_refusal_means_wait(world, start, classes) -> None:
    """What no budget showed, the server refuses, of the second pod: nothing has begun."""
    scheduler, low = run_all(world, start, classes)
    fault = world.proxy.inject("POST", f"{low[1]['metadata']['name']}/eviction", status=429, times=2)
    high = gang(world, 1, 8, spec=classes["high"])
    turn(scheduler, lambda: fault.hits == 1)
    assert gone(world, low) == terminating(world, low) == 0 and bound(world, high) == 0
    turn(scheduler, lambda: bound(world, high) == 1)
    assert gone(world, low) == 2 and fault.hits == 2


def test_a_refusal_midway_is_made_good(world, start, classes) -> None:
    scheduler, low = run_all(world, start, classes, held=True)
    high = gang(world, 1, 8, spec=classes["high"])
    snapshot = scheduler.snapshot
    name = f"{low[1]['metadata']['name']}/eviction"
    eventually(lambda: len(snapshot().pods) == 3)
    real = scheduler.evictor._evict
    answers = []

    def refused_once(pod, preemption, dry_run):
        if pod.uid == low[1]["metadata"]["uid"] and not dry_run and not answers:
            answers.append(world.proxy.inject("POST", name, status=429))
        return real(pod, preemption, dry_run)

    scheduler.evictor._evict = refused_once
    turn(scheduler, lambda: bool(answers) and answers[0].hits == 1)
    assert terminating(world, low) == 1
    turn(scheduler, lambda: terminating(world, low) == 2)  # whole, although one pod's GPUs are enough
    for pod in low:
        patch(world, pod, {"metadata": {"finalizers": None}})
    turn(scheduler, lambda: bound(world, high) == 1)


def test_a_dry_run_asks_and_evicts_nothing(world, start, classes) -> None:
    scheduler, low = run_all(world, start, classes)
    looking = start(mode="dry-run")
    gang(world, 1, 8, spec=classes["high"])
    turn(looking, lambda: world.proxy.count("POST", "eviction") >= 2)
    assert gone(world, low) == terminating(world, low) == 0
    assert node_of(world, low[0]) and not looking.evictor.making_room()


def test_off_by_default(world, start, classes, monkeypatch) -> None:
    scheduler, low = run_all(world, start, classes)
    monkeypatch.setattr(
        scheduler.planner, "settings", dataclasses.replace(scheduler.planner.settings, preemption=False)
    )
    plain = start()
    assert plain.evictor is None and "poddisruptionbudgets" not in plain.informers.stores
    gang(world, 1, 8, spec=classes["high"])
    for _ in range(4):
        plain.step()
    assert gone(world, low) == 0
