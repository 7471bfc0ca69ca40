"""16 of 18 in plans: racks of GB200 NVL72 by their labels, and gangs of whole racks."""

from collections import Counter

import pytest

from jaxsched.errors import UserError
from jaxsched.kube.plan.planner import Planner
from jaxsched.kube.policy import GuardedPolicy
from jaxsched.kube.read.settings import PlanSettings
from tests.kube.snapshots import check, gang, snapshot
from tests.support.kube.objects import make_node

SETTINGS = PlanSettings(domain_block=16, running_slots=8, queue_slots=8)
NODES = [make_node(f"n{i:02}", 4, rack=f"r{i // 18}") for i in range(54)]  # three racks of 18 trays
RACK = {node["metadata"]["name"]: node["metadata"]["labels"]["cloud.provider.com/topology-rack"] for node in NODES}


def trays(policy: str, *gangs: list[dict]) -> dict[str, Counter]:
    """Nodes that each gang has in each rack."""
    planner = Planner(GuardedPolicy(policy, SETTINGS), SETTINGS)
    shot = snapshot(NODES, [pod for one in gangs for pod in one])
    plan = planner.plan(shot)
    check(shot, plan)
    nodes = {placement.gang.key: {one.node for one in placement.assignments} for placement in plan.placements}
    return {str(key).rpartition("/")[2]: Counter(RACK[name] for name in names) for key, names in nodes.items()}


def test_large_gangs_get_16_of_18_trays_and_small_ones_what_is_spare():
    found = trays(
        "pack:fifo+backfill+racks",
        gang("a-large", 16, 4, age_s=90),
        gang("b-larger", 32, 4, age_s=80),
        gang("c-small", 2, 4, age_s=70),
        gang("d-small", 2, 4, age_s=60),
    )
    sizes = [sorted(counter.values()) for counter in found.values()]
    assert sorted(sizes) == [[2], [2], [16], [16, 16]]
    used = sum(found.values(), Counter())
    assert sorted(used.values()) == [16, 18, 18]


def test_a_gang_waits_for_a_whole_rack():
    small = [gang(f"s{i}", 6, 4, age_s=100 - i) for i in range(3)]
    spread = trays("load-balance:fifo+backfill", *small, gang("large", 16, 4, age_s=60))
    assert len(spread) == 4
    kept = trays("pack:fifo+backfill+racks", *small, gang("large", 16, 4, age_s=60))
    assert len(kept) == 4 and [16] in [list(counter.values()) for counter in kept.values()]


def test_domains_need_one_scheduler():
    with pytest.raises(UserError, match="domain_block: 16 should go with one scheduler"):
        PlanSettings(domain_block=16, schedulers=2)
