"""Upstream's PodGroups are told whether their pods have nodes, and why not."""

import pytest

from tests.support.kube.pod_groups import GROUPS, members, pod_group, told
from tests.support.kube.turns import bound, turn


@pytest.mark.long
def test_a_pod_group_is_told_why_it_waits_and_when_it_has_nodes(world, start):
    world.node()
    group = pod_group(world, 2)
    first = members(world, group, 1, 4)
    scheduler = start()
    turn(scheduler, lambda: told(world, group)[0] == "False")
    _, reason, message = told(world, group)
    assert reason == "Unschedulable" and "1 of 2" in message
    second = members(world, group, 1, 4)
    turn(scheduler, lambda: bound(world, [*first, *second]) == 2)
    turn(scheduler, lambda: told(world, group)[0] == "True")
    assert told(world, group)[1:] == ("Scheduled", "at least 2 pods have nodes")


@pytest.mark.long
def test_what_is_said_already_is_not_written_again(world, start):
    world.node()
    group = pod_group(world, 2)
    members(world, group, 1, 4)
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
    pods = members(world, group, 4, 8)
    turn(scheduler, lambda: bound(world, pods) == 3)
    world.node()
    turn(scheduler, lambda: bound(world, pods) == 4)
