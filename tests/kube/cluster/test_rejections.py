"""Pods that a kubelet does not let start."""

import pytest

from jaxsched.kube.cluster.api import pod_path
from jaxsched.kube.cluster.binder import is_rejection
from tests.support.kube.calls import MERGE, eventually
from tests.support.kube.turns import bound, turn

STARTED = [{"name": "main", "state": {"terminated": {"exitCode": 1}}}]


@pytest.mark.parametrize(
    ("status", "rejected"),
    [
        ({"phase": "Failed", "reason": "OutOfcpu", "message": "Pod was rejected: Node didn't have enough"}, True),
        ({"phase": "Failed", "reason": "NodeAffinity", "message": "Predicate NodeAffinity failed"}, True),
        ({"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "Pod Allocate failed"}, True),
        ({"phase": "Failed", "containerStatuses": STARTED}, False),
        ({"phase": "Failed", "reason": "Evicted", "containerStatuses": STARTED}, False),  # later, not on arrival
        ({"phase": "Failed"}, False),
        ({"phase": "Succeeded", "reason": "Completed"}, False),
    ],
)
def test_what_is_a_rejection(status: dict, rejected: bool) -> None:
    assert is_rejection(status) == rejected


def test_a_rejection_is_counted_and_the_cluster_is_listed_again(world, start) -> None:
    world.node()
    pod = world.pod(gpus=1)
    scheduler = start()
    turn(scheduler, lambda: bound(world, [pod]) == 1)
    listed = []
    relist = scheduler.informers.relist
    scheduler.informers.relist = lambda *names: (listed.append(names), relist(*names))
    status = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "Pod was rejected: Allocate failed"}
    path = pod_path("default", pod["metadata"]["name"], "status")
    assert world.api.request("PATCH", path, body={"status": status}, content=MERGE).ok
    count = lambda: scheduler.metrics.registry.get_sample_value("jaxsched_kubelet_rejections_total")
    eventually(lambda: count() == 1 and listed == [("pods", "nodes")])
