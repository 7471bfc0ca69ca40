"""Priorities on the fake and on a real API server: nothing is kept from a pod for one with a lower priority."""

import pytest

from tests.support.kube.turns import bound, turn

CRITICAL = {"priority": 2_000_000_000, "priorityClassName": "system-cluster-critical"}  # every cluster has it


@pytest.mark.parametrize("started", [False, True], ids=["late and spanning", "the rest of one that has started"])
def test_a_pod_does_not_wait_for_nodes_kept_for_a_lower_priority(
    world, start, started: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [world.node()["metadata"]["name"] for _ in range(8)]
    world.pod(gpus=1, node=names[0])  # without it the gang below would fit: all nodes are kept for it
    low = [world.pod(gpus=8, gang="low", size=8, node=names[1] if started and i == 0 else "") for i in range(8)]
    scheduler = start()
    monkeypatch.setattr(scheduler.planner, "patience_s", 0.0)
    turn(scheduler, lambda: len(scheduler.snapshot().pods) >= 9)
    scheduler.step()
    assert bound(world, low) == started
    waits = world.pod(gpus=8)  # of the same priority: it stays behind them
    high = world.pod(gpus=8, spec=CRITICAL)
    turn(scheduler, lambda: bound(world, [high]) == 1)
    assert bound(world, low) == started and bound(world, [waits]) == 0
