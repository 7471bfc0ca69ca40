"""Upstream's PodGroups are told whether their pods have nodes, and why not."""

import pytest

from jaxsched.kube.planning.pod_groups import SCHEDULED
from tests.support.kube.turns import bound, turn

GROUPS = "/apis/scheduling.k8s.io/v1alpha2/namespaces/default/podgroups"


def pod_group(world, minimum: int) -> str:
    world.since(36, "PodGroups of scheduling.k8s.io")
    name = world.name("g")
    policy = {"gang": {"minCount": minimum}}
    body = {"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup", "metadata": {"name": name}}
    world.make(GROUPS, body | {"spec": {"schedulingPolicy": policy}})
    return name


def member(world, group: str, gpus: int) -> dict:
    return world.pod(gpus=gpus, spec={"schedulingGroup": {"podGroupName": group}})


def told(world, group: str) -> tuple[str, str, str]:
    """Status, reason and message of its condition."""
    raw = world.api.request("GET", f"{GROUPS}/{group}").body
    conditions = (raw.get("status") or {}).get("conditions") or []
    found = next((one for one in conditions if one["type"] == SCHEDULED), {})
    return tuple(found.get(name, "") for name in ("status", "reason", "message"))


@pytest.mark.long
def test_a_pod_group_is_told_why_it_waits_and_when_it_has_nodes(world, start):
    world.node()
    group = pod_group(world, 2)
    first = member(world, group, 4)
    scheduler = start()
    turn(scheduler, lambda: told(world, group)[0] == "False")
    _, reason, message = told(world, group)
    assert reason == "Unschedulable" and "1 of 2" in message
    second = member(world, group, 4)
    turn(scheduler, lambda: bound(world, [first, second]) == 2)
    turn(scheduler, lambda: told(world, group)[0] == "True")
    assert told(world, group)[1:] == ("Scheduled", "at least 2 pods have nodes")


@pytest.mark.long
def test_what_is_said_already_is_not_written_again(world, start):
    world.node()
    group = pod_group(world, 2)
    member(world, group, 4)
    scheduler = start()
    turn(scheduler, lambda: told(world, group)[0] == "False")
    version = world.api.request("GET", f"{GROUPS}/{group}").body["metadata"]["resourceVersion"]
    again = start()  # another process, which has said nothing yet
    for _ in range(5):
        again.step()
        again.dirty.wait(0.2)
    assert world.api.request("GET", f"{GROUPS}/{group}").body["metadata"]["resourceVersion"] == version


def test_the_minimum_starts_and_then_what_fits(world, start) -> None:
    """Before: a group with more pods than its minimum waited for room for all of them."""
    for _ in range(3):
        world.node()
    group = pod_group(world, 2)
    scheduler = start()
    pods = [member(world, group, 8) for _ in range(4)]
    turn(scheduler, lambda: bound(world, pods) == 3)
    world.node()
    turn(scheduler, lambda: bound(world, pods) == 4)
