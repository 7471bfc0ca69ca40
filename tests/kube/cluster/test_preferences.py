"""Preferences on the fake and on a real API server."""

from tests.support.kube.turns import node_of, turn


def test_of_equal_nodes_the_preferred_one_is_taken(world, start) -> None:
    """Two partitions with a rack of two nodes each; without a preference the first node of a rack is taken."""
    names = [world.node(rack=f"r{i // 2}", labels={"number": str(i)})["metadata"]["name"] for i in range(4)]
    scheduler = start()
    where = {"matchExpressions": [{"key": "number", "operator": "In", "values": ["1", "3"]}]}
    wish = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": where}]}
    anyway = {"maxSkew": 1, "topologyKey": "number", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {}}
    pod = world.pod(gpus=8, spec={"affinity": {"nodeAffinity": wish}})
    turn(scheduler, lambda: node_of(world, pod) != "")
    assert node_of(world, pod) in (names[1], names[3])
    others = [world.pod(gpus=8, spec={"topologySpreadConstraints": [anyway]}) for _ in range(3)]
    turn(scheduler, lambda: all(node_of(world, one) for one in others))  # a wish that cannot be had holds nothing up
