"""Snapshots for tests of plans, and what holds for every plan of one."""

from collections import Counter

from jaxsched.kube.capacity.filters import filter_reason
from jaxsched.kube.plan.planner import Plan, Planner
from jaxsched.kube.policy import GuardedPolicy
from jaxsched.kube.read.objects import read_node, read_pod
from jaxsched.kube.read.settings import PlanSettings
from jaxsched.kube.read.snapshot import Snapshot
from tests.support.kube.objects import GPU, NOW, make_node, make_pod

SETTINGS = PlanSettings(schedulers=2, running_slots=8, queue_slots=8, headroom=4.0)


def compiled_planner() -> Planner:
    one = Planner(GuardedPolicy("pack:area+backfill+forward", SETTINGS), SETTINGS)
    one.plan(snapshot(nodes(8)))
    return one


def nodes(count: int, **more) -> list[dict]:
    return [make_node(f"n{i}", rack=f"r{i // 2}", block=f"b{i // 4}", **more) for i in range(count)]


def gang(name: str, size: int, gpus: int, **more) -> list[dict]:
    return [make_pod(f"{name}-{i}", gpus, name, size, uid=f"{name}-{i}", **more) for i in range(size)]


def snapshot(raw_nodes: list[dict], raw_pods: list[dict] = [], now: float = NOW, **more) -> Snapshot:  # noqa: B006
    return Snapshot(now_s=now, nodes=tuple(map(read_node, raw_nodes)), pods=tuple(map(read_pod, raw_pods)), **more)


def check(shot: Snapshot, plan: Plan) -> None:
    """Written without the planner's own ledger."""
    node = {one.name: one for one in shot.nodes}
    used: Counter = Counter()
    for pod in shot.pods:
        used.update({(pod.node, name): units for name, units in pod.requests if pod.node})
    before = {key: units for key, units in used.items()}
    seen: set[str] = set()
    for placement in plan.placements:
        mine = {one.pod.uid for one in placement.assignments}
        assert {pod.uid for pod in placement.gang.together} <= mine <= {pod.uid for pod in placement.gang.pending}
        for one in placement.assignments:
            assert one.pod.uid not in seen and not one.pod.node
            seen.add(one.pod.uid)
            assert filter_reason(one.pod, node[one.node]) == ""
            used.update({(one.node, name): units for name, units in one.pod.requests})
            assert (not one.groups) == (one.pod.units(GPU) == 0)
    for (name, resource), units in used.items():
        if units != before.get((name, resource)):
            assert units <= dict(node[name].allocatable).get(resource, 0), (name, resource)
    placed = {placement.gang.key for placement in plan.placements}
    assert placed | set(plan.reasons) == set(plan.pending) and not placed & set(plan.reasons)
