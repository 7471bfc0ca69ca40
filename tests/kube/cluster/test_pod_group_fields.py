"""Fields of upstream PodGroups, as a real API server keeps them, are honoured or refused by name.

What such a server takes away (fields that it does not know, versions that it does not have) is tried on plans only:
tests/kube/plan/test_domains.py.
"""

import pytest

from tests.support.kube.pod_groups import members, pod_group, told
from tests.support.kube.turns import bound, node_of, turn

pytestmark = pytest.mark.long
RACK = "cloud.provider.com/topology-rack"
WITHIN = {"schedulingConstraints": {"topology": [{"key": RACK}]}}


def test_a_group_that_must_share_a_rack_does_or_waits(world, start) -> None:
    """Before: six pods of a node each were placed across racks of four."""
    racks = {world.node(rack=f"r{i // 4}")["metadata"]["name"]: i // 4 for i in range(8)}
    wide, narrow = pod_group(world, 6, **WITHIN), pod_group(world, 4, **WITHIN)
    six, four = members(world, wide, 6, 8), members(world, narrow, 4, 8)
    scheduler = start()
    turn(scheduler, lambda: bound(world, four) == 4 and told(world, wide)[0] == "False")
    assert len({racks[node_of(world, pod)] for pod in four}) == 1 and bound(world, six) == 0
    assert f"{RACK}: no one of 2 domains holds it" in told(world, wide)[2]


def test_claims_of_a_group_are_refused_by_name(world, start) -> None:
    world.node()
    group = pod_group(world, 1, resourceClaims=[{"name": "gpu", "resourceClaimName": "mine"}])
    pods = members(world, group, 1, 1)
    scheduler = start()
    turn(scheduler, lambda: told(world, group)[0] == "False")
    assert told(world, group)[2].startswith("ResourceClaimsUnsupported") and "resourceClaims" in told(world, group)[2]
    assert bound(world, pods) == 0


def test_the_priority_of_a_group_takes_the_place_of_its_pods(world, start) -> None:
    """The pods of the one that goes last have the higher priority, and were there first."""
    world.node()
    low = pod_group(world, 1, **world.priority(1))
    first = members(world, low, 1, 8, priority=2_000_000_000, priorityClassName="system-cluster-critical")
    second = members(world, pod_group(world, 1, **world.priority(9)), 1, 8)
    scheduler = start()
    turn(scheduler, lambda: bound(world, second) == 1)
    assert bound(world, first) == 0


@pytest.mark.parametrize("mode", ["Pod", "PodGroup"])
def test_disruption_modes_ask_for_nothing(world, start, mode: str) -> None:
    world.node()
    pods = members(world, pod_group(world, 2, disruptionMode=mode), 2, 4)
    scheduler = start()
    turn(scheduler, lambda: bound(world, pods) == 2)


def test_of_a_policy_basic_what_fits_starts(world, start) -> None:
    world.node()
    pods = members(world, pod_group(world), 3, 4)
    scheduler = start()
    turn(scheduler, lambda: bound(world, pods) == 2)
