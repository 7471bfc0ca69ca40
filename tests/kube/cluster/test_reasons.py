"""Conditions name what stands in the way, on the fake and on a real API server."""

from jaxsched.kube.cluster.api import NODES
from tests.support.kube.calls import MERGE
from tests.support.kube.turns import bound, gang, node_of, told, turn


def test_a_selector_a_cordoned_node_and_a_full_cluster_are_told_apart(world, start) -> None:
    """Before: all three were "larger than partition", or that it would fit now."""
    names = [world.node()["metadata"]["name"] for _ in range(2)]
    spec = {"spec": {"unschedulable": True}}
    assert world.api.request("PATCH", f"{NODES}/{names[1]}", body=spec, content=MERGE).ok
    scheduler = start()
    nowhere = world.pod(gpus=1, spec={"nodeSelector": {"there": "is-none"}})
    both, three = gang(world, 2, 8), gang(world, 3, 8)
    turn(scheduler, lambda: all(told(world, pod) for pod in (nowhere, both[0], three[0])))
    assert told(world, nowhere).startswith("NoNodeAllowed")
    assert told(world, both[0]).startswith("NodesUnusable") and "1 cordoned" in told(world, both[0])
    assert told(world, three[0]).startswith("LargerThanCluster")


def test_nodes_that_are_kept_are_named_as_kept(world, start, monkeypatch) -> None:
    """Before: "larger than partition", with two nodes empty."""
    names = [world.node()["metadata"]["name"] for _ in range(3)]
    world.pod(gpus=1, node=names[0], scheduler="jaxsched")
    late = gang(world, 3, 8)
    scheduler = start()
    monkeypatch.setattr(scheduler.planner, "patience_s", 0.0)
    after = world.pod(gpus=8, age_s=0.0)
    turn(scheduler, lambda: bool(told(world, after) and told(world, late[0])))
    name = late[0]["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"]
    assert told(world, after).startswith("NodesKept") and name in told(world, after)
    assert told(world, late[0]).startswith("Insufficient") and bound(world, [after, *late]) == 0


def test_a_launcher_goes_to_a_node_without_gpus(world, start) -> None:
    """Before: its gang waited for ever, and was told that it would fit now."""
    gpus = world.node(allocatable={"cpu": "4"})["metadata"]["name"]
    scheduler = start()
    pods = gang(world, 2, 8, count=1)
    name = pods[0]["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"]
    pods.append(world.pod(f"{name}-launcher", gpus=None, gang=name, size=2, requests={"cpu": "3"}))
    turn(scheduler, lambda: "its workers fit, but beside them pod" in told(world, pods[0]))
    plain = world.node(gpus=None)["metadata"]["name"]
    turn(scheduler, lambda: bound(world, pods) == 2)
    assert [node_of(world, pod) for pod in pods] == [gpus, plain]
