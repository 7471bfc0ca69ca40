"""What pods that wait are told is true: with it mended, and nothing else, they start."""

import pytest

from jaxsched.kube.plan.planner import Planner
from jaxsched.kube.read.objects import Refusal
from tests.kube.snapshots import gang, nodes, snapshot
from tests.support.kube.objects import make_node, make_pod

FULL = {"requests": {"cpu": "1"}}
LARGE = {"cpu": "65500m", "memory": "513Gi"}
CORDON = {"unschedulable": True}
DISK = {"spec": {"nodeSelector": {"disk": "ssd"}}}


def reason(planner: Planner, machines: list[dict], pods: list[dict]) -> Refusal | None:
    plan = planner.plan(snapshot(machines, pods))
    return next((why for key, why in plan.reasons.items() if key.endswith("/g")), None)


def busy(count: int, gpus: int = 8, first: int = 0, **more) -> list[dict]:
    return [make_pod(f"b{i}", gpus, node=f"n{i}", uid=f"b{i}", **more) for i in range(first, first + count)]


def cordoned(count: int) -> list[dict]:
    machines = nodes(8)
    for machine in machines[:count]:
        machine["spec"] |= CORDON
    return machines


@pytest.mark.parametrize(
    ("name", "words", "stuck", "mended"),
    [
        ("NoNodeAllowed", "8 node selector", (nodes(8), gang("g", 2, 8, **DISK)), (nodes(8), gang("g", 2, 8))),
        (
            "TooFewNodesAllowed",
            "hold 1 when empty",
            ([*nodes(8), make_node("ssd", 8, labels={"disk": "ssd"})], gang("g", 2, 8, **DISK)),
            ([*nodes(8), *(make_node(f"s{i}", 8, labels={"disk": "ssd"}) for i in "ab")], gang("g", 2, 8, **DISK)),
        ),
        ("NodesUnusable", "8 cordoned", (cordoned(8), gang("g", 2, 8)), (nodes(8), gang("g", 2, 8))),
        ("NodesUnusable", "7 cordoned", (cordoned(7), gang("g", 2, 8)), (nodes(8), gang("g", 2, 8))),
        (
            "NodesUnusable",
            "6 cordoned",
            (cordoned(6), [*busy(2, first=6), *gang("g", 2, 8)]),
            (nodes(8), [*busy(2, first=6), *gang("g", 2, 8)]),
        ),
        ("Insufficient", "8 without room", (nodes(8), [*busy(8), *gang("g", 2, 8)]), (nodes(8), gang("g", 2, 8))),
        (
            "NodesKept",
            "kept for default/scheduling.x-k8s.io/late",
            (nodes(8), [*busy(1, 1), *gang("late", 8, 8, age_s=5000), *gang("g", 1, 8)]),
            (nodes(8), [*busy(1, 1), *gang("g", 1, 8)]),
        ),
        ("LargerThanCluster", "hold 8 when empty", (nodes(8), gang("g", 9, 8)), (nodes(9), gang("g", 9, 8))),
        (
            "LargerThanCluster",
            "hold 0 when empty",
            ([make_node("c", None)], gang("g", 1, 1)),
            (nodes(1), gang("g", 1, 1)),
        ),
        (
            "LargerThanCluster",
            "1 pod x 16 GPUs: no GPU node has 16 nvidia.com/gpu (the most is 8)",
            (nodes(8), gang("g", 1, 16)),
            ([*nodes(8), make_node("large", 16)], gang("g", 1, 16)),
        ),
        (
            "LargerThanCluster",
            "1 pod x 1 GPU: no GPU node has 65.5 CPUs (the most is 64), 513 Gi of memory (the most is 512)",
            (nodes(2), gang("g", 1, 1, requests=LARGE)),
            (nodes(2, allocatable={"cpu": "66", "memory": "513Gi"}), gang("g", 1, 1, requests=LARGE)),
        ),
    ],
)
def test_a_reason_is_what_stands_in_the_way(planner: Planner, name: str, words: str, stuck, mended) -> None:
    why = reason(planner, *stuck)
    assert why is not None and why.reason == name and words in why.message, why
    assert reason(planner, *mended) is None


def test_a_cordoned_node_that_is_tainted_too_is_not_what_stands_in_the_way(planner: Planner) -> None:
    machines = nodes(2)
    for machine in machines:
        machine["spec"] |= CORDON | {"taints": [{"key": "t", "effect": "NoSchedule"}]}
    why = reason(planner, machines, gang("g", 2, 8))
    assert why is not None and why.reason == "NoNodeAllowed"


def all_cpus() -> list[dict]:
    """A gang whose workers ask for all CPUs of a GPU node, and a launcher."""
    launcher = make_pod("launcher", None, "g", 2, uid="l", requests={"cpu": "8"})
    return [*gang("g", 2, 4, requests={"cpu": "32"}), launcher]


def test_a_launcher_may_go_to_a_node_without_gpus(planner: Planner) -> None:
    pods = all_cpus()
    why = reason(planner, nodes(1), pods)
    assert why is not None and "pod default/launcher fits none of 1 nodes: 1 without room" in why.message
    plan = planner.plan(snapshot([*nodes(1), make_node("cpu", None)], pods))
    assert {one.pod.name: one.node for one in plan.placements[0].assignments}["launcher"] == "cpu"


def test_a_launcher_that_fits_nowhere_is_named(planner: Planner) -> None:
    pods = [*gang("g", 2, 4), make_pod("launcher", None, "g", 2, uid="l", requests={"cpu": "100"})]
    why = reason(planner, [*nodes(2), make_node("cpu", None)], pods)
    assert why is not None and why.reason == "Insufficient"
    assert "its workers fit, but beside them pod default/launcher fits none of 3 nodes: 3 without room" in why.message
    large = make_node("cpu", None, allocatable={"cpu": "128"})
    assert reason(planner, [*nodes(2), large], pods) is None


def test_a_launcher_stays_near_its_workers_where_it_can(planner: Planner) -> None:
    pods = [*gang("g", 1, 4), make_pod("launcher", None, "g", 1, uid="l")]
    (placement,) = planner.plan(snapshot([*nodes(2), make_node("cpu", None)], pods)).placements
    assert len({one.node for one in placement.assignments}) == 1


def test_pods_on_nodes_without_gpus_are_counted(planner: Planner) -> None:
    taken = make_pod("web", None, node="cpu", uid="web", scheduler="default-scheduler", requests={"cpu": "60"})
    assert reason(planner, [*nodes(1), make_node("cpu", None)], [taken, *all_cpus()]) is not None


def test_a_tainted_node_without_gpus_takes_no_launcher(planner: Planner) -> None:
    tainted = make_node("cpu", None, taints=[{"key": "t", "effect": "NoSchedule"}])
    pods = all_cpus()
    assert reason(planner, [*nodes(1), tainted], pods) is not None
