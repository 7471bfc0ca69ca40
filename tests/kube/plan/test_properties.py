"""Properties of plans of generated snapshots; `CASES=50 pytest tests/kube/plan/test_properties.py` tries 5,000."""

import copy
import dataclasses
from collections.abc import Mapping

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from jaxsched.kube.plan.planner import Plan, Planner
from jaxsched.kube.read.gangs import Gang
from jaxsched.kube.read.groups import COSCHEDULING, read_pod_group
from jaxsched.kube.read.snapshot import Snapshot
from tests.kube.snapshots import check, compiled_planner, gang, nodes, snapshot
from tests.support.cases import cases
from tests.support.kube.objects import make_node, make_pod

CASES = cases(100, deadline=None, suppress_health_check=list(HealthCheck))
LATE_S = 5000.0
TAINT = {"key": "t", "effect": "NoSchedule"}


@dataclasses.dataclass
class World:
    """Raw objects of a snapshot, which tests mend."""

    nodes: list[dict]
    pods: list[dict]
    minimum: dict[str, int]  # by PodGroup

    def snapshot(self) -> Snapshot:
        kind, groups = "scheduling.x-k8s.io/v1alpha1", []
        for name, minimum in self.minimum.items():
            meta = {"name": name, "namespace": "default"}
            groups.append(read_pod_group({"apiVersion": kind, "metadata": meta, "spec": {"minMember": minimum}}))
        return snapshot(self.nodes, self.pods, groups=tuple(groups), served=frozenset({COSCHEDULING}))

    def after(self, plan: Plan, only: Gang) -> "World":
        """What goes before one gang is bound, and of the rest only that gang still waits. It is late.

        Lower priorities and pods beyond a minimum take what is left after the reason was found: the next plan sees it.
        """
        before = [placed for placed in plan.placements if placed.gang.priority >= only.priority]
        after = {pod.uid for placed in before if placed.gang.priority == only.priority for pod in placed.gang.extra}
        where = {one.pod.uid: one.node for placed in before for one in placed.assignments if one.pod.uid not in after}
        own = {pod.uid for pod in only.pending}
        late = make_pod("x", age_s=LATE_S)["metadata"]["creationTimestamp"]
        left = []
        for pod in copy.deepcopy(self.pods):
            uid = pod["metadata"]["uid"]
            if uid in where:
                pod["spec"]["nodeName"], pod["status"]["phase"] = where[uid], "Running"
            if uid in own:
                pod["metadata"]["creationTimestamp"] = late
            if pod["spec"].get("nodeName") or uid in own:
                left.append(pod)
        return World(copy.deepcopy(self.nodes), left, self.minimum)

    def uncordoned(self) -> "World":
        for node in self.nodes:
            node["spec"].pop("unschedulable", None)
        return self

    def emptied(self, gang: Gang) -> "World":
        """Without pods of others."""
        own = {pod.uid for pod in (*gang.pending, *gang.bound)}
        self.pods = [pod for pod in self.pods if pod["metadata"]["uid"] in own]
        return self

    def open_to_all(self) -> "World":
        """No taints, no selectors."""
        for node in self.nodes:
            node["spec"]["taints"] = []
        for pod in self.pods:
            pod["spec"].pop("nodeSelector", None)
        return self.uncordoned()

    def with_nodes(self, *more: dict) -> "World":
        self.nodes += more
        return self


@st.composite
def worlds(draw) -> World:
    machines = nodes(draw(st.integers(1, 8)))
    for machine in machines:
        gpus = draw(st.sampled_from(["8", "8", "4", None]))
        allocatable = machine["status"]["allocatable"]
        allocatable.pop("nvidia.com/gpu")
        allocatable |= {"nvidia.com/gpu": gpus} if gpus else {}
        allocatable["cpu"] = draw(st.sampled_from(["64", "64", "6"]))
        allocatable["memory"] = draw(st.sampled_from(["512Gi", "512Gi", "10Gi"]))
        allocatable["pods"] = draw(st.sampled_from(["110", "110", "2"]))
        machine["metadata"]["labels"]["disk"] = draw(st.sampled_from(["ssd", "hdd"]))
        machine["spec"]["taints"] = [TAINT] if draw(st.integers(0, 4)) == 0 else []
        if draw(st.integers(0, 4)) == 0:
            machine["spec"]["unschedulable"] = True
    names = st.sampled_from([machine["metadata"]["name"] for machine in machines])
    pods, minimum = [], {}
    for number in range(draw(st.integers(1, 7))):
        name = f"g{number}"
        size, gpus = draw(st.integers(1, 4)), draw(st.sampled_from([1, 2, 4, 8, 8]))
        spec: dict = {"priority": draw(st.sampled_from([0, 0, 5, 10]))}
        spec |= {"nodeSelector": {"disk": "ssd"}} if draw(st.integers(0, 3)) == 0 else {}
        spec |= {"tolerations": [{"operator": "Exists"}]} if draw(st.booleans()) else {}
        age_s = draw(st.sampled_from([60.0, LATE_S])) + number
        scheduler = draw(st.sampled_from(["jaxsched"] * 5 + ["other"]))
        own = gang(name, size, gpus, spec=spec, age_s=age_s, scheduler=scheduler)
        if draw(st.integers(0, 3)) == 0:
            own.append(make_pod(f"{name}-l", None, name, size, uid=f"{name}-l", spec=spec, age_s=age_s,
                                scheduler=scheduler, requests={"cpu": "5"}))  # fmt: skip
        for pod in own:
            pod["metadata"]["annotations"]["jaxsched.io/gang-size"] = str(len(own))
        if draw(st.integers(0, 2)) == 0:
            minimum[name] = draw(st.integers(1, len(own)))
        for pod in own[: draw(st.sampled_from([0, 0, 0, 1, 9]))]:
            pod["spec"]["nodeName"], pod["status"]["phase"] = draw(names), "Running"
        pods += own
    return World(machines, pods, minimum)


@pytest.fixture(scope="module")
def planner() -> Planner:
    return compiled_planner()


@CASES
@given(worlds())
def test_whole_gangs_within_capacity(planner: Planner, world: World) -> None:
    shot = world.snapshot()
    plan = planner.plan(shot)
    check(shot, plan)
    placed = {placement.gang.key: placement for placement in plan.placements}
    for key, waiting in plan.pending.items():
        name = key.rpartition("/")[2]
        wanted = world.minimum.get(name, len(waiting.pending) + len(waiting.bound))
        now = len(waiting.bound) + (len(placed[key].assignments) if key in placed else 0)
        assert now >= wanted or key not in placed, (key, now, wanted)


@CASES
@given(worlds())
def test_no_pod_waits_for_nodes_kept_for_lower_priorities(planner: Planner, world: World) -> None:
    """Without the pods that wait with less than a priority, everything from it on is as it was."""
    plan = planner.plan(world.snapshot())
    for priority in (5, 10):
        low = {pod.uid for one in plan.pending.values() if one.priority < priority for pod in one.pending}
        rest = [pod for pod in world.pods if pod["metadata"]["uid"] not in low]
        alone = planner.plan(World(world.nodes, rest, world.minimum).snapshot())
        assert outcome(alone, priority) == outcome(plan, priority)


def outcome(plan: Plan, priority: int) -> Mapping[str, object]:
    """Where gangs of at least a priority go, or why they wait."""
    placed = {one.gang.key: one.decision for one in plan.placements if one.gang.priority >= priority}
    why = {key: reason for key, reason in plan.reasons.items() if plan.pending[key].priority >= priority}
    return placed | why


@CASES
@given(worlds())
def test_reasons_are_true(planner: Planner, world: World) -> None:
    """What waits for a reason starts when that is mended."""
    plan = planner.plan(world.snapshot())
    for key, why in plan.reasons.items():
        one = plan.pending[key]
        now = world.after(plan, one)
        large = [make_node(f"new{i}", 8, rack="new", labels={"disk": "ssd"}) for i in range(len(one.pending))]
        match why.reason:
            case "NodesKept" | "PolicyWaits":
                mended = now
            case "NodesUnusable":
                mended = now.uncordoned()
            case "NoNodeAllowed" | "TooFewNodesAllowed":
                assert not starts(planner, copy.deepcopy(now).emptied(one), key), why
                mended = now.emptied(one).open_to_all()
            case "LargerThanCluster":
                assert not starts(planner, copy.deepcopy(now).emptied(one).open_to_all(), key), why
                mended = now.with_nodes(*large)
            case "Insufficient" if not one.bound:
                mended = now.emptied(one)
            case "Insufficient" | "GangIncomplete":
                mended = now.open_to_all().with_nodes(*large)
            case other:
                raise AssertionError(f"{other} was not expected: {why}")
        if one.helpers:  # reasons are about workers first; room for a launcher comes after
            mended.with_nodes(make_node("cpu", None, labels={"disk": "ssd"}))
        assert starts(planner, mended, key), (key, why)


def starts(planner: Planner, world: World, key: str) -> bool:
    plan = planner.plan(world.snapshot())
    return any(placed.gang.key == key for placed in plan.placements)
