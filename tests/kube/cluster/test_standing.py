"""What other pods have a claim to, on the fake and on a real API server."""

from jaxsched.kube.cluster.api import pod_path
from tests.support.kube.calls import MERGE, post
from tests.support.kube.turns import node_of, turn

LABEL = "kubernetes.io/hostname"


def two_nodes(world) -> list[str]:
    return [world.node(f"{world.name('n')}", labels={LABEL: str(number)})["metadata"]["name"] for number in range(2)]


def test_running_pods_keep_ours_away(world, start) -> None:
    """Before: a pod was bound beside one whose required anti-affinity is about it."""
    names = two_nodes(world)
    term = {"labelSelector": {"matchLabels": {"app": "job"}}, "topologyKey": LABEL}
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    for name in names:
        post(world, world.pod(gpus=1, scheduler="other", spec={"affinity": apart} if name == names[0] else None), name)
    scheduler = start()
    pods = [world.pod(gpus=7, labels={"app": "job"}), world.pod(gpus=7, labels={"app": "other"})]
    turn(scheduler, lambda: all(node_of(world, pod) for pod in pods))
    assert [node_of(world, pod) for pod in pods] == [names[1], names[0]]


def test_room_that_a_preemption_made_is_left_alone(world, start) -> None:
    """Before: a node that another scheduler had emptied for its pod was taken."""
    names = two_nodes(world)
    theirs = world.pod(gpus=8, scheduler="other")
    path = pod_path("default", theirs["metadata"]["name"], "status")
    assert world.api.request("PATCH", path, body={"status": {"nominatedNodeName": names[0]}}, content=MERGE).ok
    scheduler = start()
    pods = [world.pod(gpus=8) for _ in range(2)]
    turn(scheduler, lambda: any(node_of(world, pod) for pod in pods))
    for _ in range(3):
        scheduler.step()
    assert sorted(node_of(world, pod) for pod in pods) == ["", names[1]]
