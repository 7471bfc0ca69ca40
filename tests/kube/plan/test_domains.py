"""PodGroups: topology constraints and other fields are honoured, or refused by name."""

import pytest

from jaxsched.kube.plan.planner import Plan, Planner
from jaxsched.kube.read.groups import read_pod_group
from tests.kube.snapshots import check, gang, nodes, snapshot
from tests.support.kube.objects import make_pod

RACK = "cloud.provider.com/topology-rack"
WITHIN = {"schedulingConstraints": {"topology": [{"key": RACK}]}}


def group(name: str, minimum: int, version: str = "v1alpha2", **spec) -> dict:
    own = {"schedulingPolicy": {"gang": {"minCount": minimum}}} | spec
    meta = {"name": name, "namespace": "default"}
    return {"apiVersion": f"scheduling.k8s.io/{version}", "metadata": meta, "spec": own}


def members(name: str, count: int, gpus: int = 8, **more) -> list[dict]:
    spec = {"schedulingGroup": {"podGroupName": name}} | more.pop("spec", {})
    return [make_pod(f"{name}-{i}", gpus, uid=f"{name}-{i}", spec=spec, **more) for i in range(count)]


def plan(planner: Planner, pods: list[dict], *groups: dict, machines: list[dict] | None = None) -> Plan:
    shot = snapshot(machines or nodes(8), pods, groups=tuple(map(read_pod_group, groups)))
    made = planner.plan(shot)
    check(shot, made)
    return made


def racks(plan: Plan) -> list[set[str]]:
    """Racks of each gang; `nodes` puts two into each."""
    return [{str(int(one.node[1:]) // 2) for one in placement.assignments} for placement in plan.placements]


def test_a_gang_stays_in_one_domain(planner: Planner) -> None:
    made = plan(planner, members("a", 2), group("a", 2, **WITHIN))
    assert [len(one) for one in racks(made)] == [1]
    six = [pod for i in range(4) for pod in members(f"g{i}", 4, 4)]
    made = plan(planner, six, *(group(f"g{i}", 4, **WITHIN) for i in range(4)))
    assert sorted(map(sorted, racks(made))) == [["0"], ["1"], ["2"], ["3"]]  # each of four racks is full


def test_a_gang_that_no_domain_holds_waits_and_is_told(planner: Planner) -> None:
    made = plan(planner, members("a", 3), group("a", 3, **WITHIN))
    (reason,) = made.reasons.values()
    assert not made.placements and reason.reason == "TooFewNodesAllowed" and f"{RACK}: no one of 4" in reason.message
    busy = [make_pod(f"b{i}", 1, node=f"n{i}", uid=f"b{i}") for i in range(0, 8, 2)]
    made = plan(planner, [*busy, *members("a", 2)], group("a", 2, **WITHIN))
    (reason,) = made.reasons.values()
    assert not made.placements and reason.reason == "Insufficient"
    made = plan(planner, members("a", 1), group("a", 1, schedulingConstraints={"topology": [{"key": "none"}]}))
    assert next(iter(made.reasons.values())).reason == "NoNodeAllowed"


def test_a_domain_over_two_partitions_is_one(planner: Planner) -> None:
    machines = nodes(8)
    for machine in machines:
        machine["metadata"]["labels"]["room"] = "r" if 2 <= int(machine["metadata"]["name"][1:]) < 6 else "s"
    within = {"schedulingConstraints": {"topology": [{"key": "room"}]}}
    made = plan(planner, members("a", 4), group("a", 4, **within), machines=machines)
    rooms = {machine["metadata"]["name"]: machine["metadata"]["labels"]["room"] for machine in machines}
    assert len({rooms[one.node] for one in made.placements[0].assignments}) == 1


def test_the_rest_and_more_than_the_minimum_go_where_the_others_run(planner: Planner) -> None:
    for minimum in (2, 1):
        pods = members("a", 2)
        pods[0]["spec"] = pods[0]["spec"] | {"nodeName": "n5"}
        (placement,) = plan(planner, pods, group("a", minimum, **WITHIN)).placements
        assert [one.node for one in placement.assignments] == ["n4"]
    pods = members("a", 3)
    pods[0]["spec"], pods[1]["spec"] = pods[0]["spec"] | {"nodeName": "n5"}, pods[1]["spec"] | {"nodeName": "n0"}
    assert next(iter(plan(planner, pods, group("a", 3, **WITHIN)).reasons.values())).reason == "TopologyBroken"


def test_a_late_gang_keeps_the_nodes_of_a_domain(planner: Planner) -> None:
    busy = [make_pod(f"b{i}", 1, node=f"n{i}", uid=f"b{i}") for i in range(0, 8, 2)]
    late = members("a", 2, age_s=planner.patience_s + 1)
    made = plan(planner, [*busy, *late, *gang("new", 5, 4)], group("a", 2, **WITHIN))
    assert len(made.placements) == 1 and all(len(one) < 4 for one in racks(made))


def test_a_groups_priority_takes_the_place_of_its_pods(planner: Planner) -> None:
    pods = [*members("high", 1, age_s=1), *members("low", 1, age_s=100, spec={"priority": 5})]
    low = [{**pod, "spec": pod["spec"] | {"schedulingGroup": {"podGroupName": "low"}}} for pod in pods[1:]]
    made = plan(planner, [pods[0], *low], group("high", 1, priority=9), group("low", 1, priority=1), machines=nodes(1))
    assert [placement.gang.key.rpartition("/")[2] for placement in made.placements] == ["high"]


@pytest.mark.parametrize(
    ("spec", "reason", "words"),
    [
        ({"resourceClaims": [{"name": "x"}]}, "ResourceClaimsUnsupported", "spec.resourceClaims"),
        ({"schedulingConstraints": {"topology": [{"key": "a"}, {"key": "b"}]}}, "PodGroupUnsupported", "more than one"),
        ({"schedulingConstraints": {"topology": [{"key": "a", "mode": "x"}]}}, "PodGroupUnsupported", "topology"),
        ({"schedulingConstraints": {"colour": "red"}}, "PodGroupUnsupported", "schedulingConstraints.colour"),
        ({"schedulingConstraints": []}, "", ""),
        ({"schedulingConstraints": "x"}, "PodGroupUnsupported", "schedulingConstraints"),
        ({"somethingNew": 1}, "PodGroupUnsupported", "spec.somethingNew"),
        ({"disruptionMode": "Sometimes"}, "PodGroupUnsupported", "disruptionMode 'Sometimes'"),
        *(({"disruptionMode": mode}, "", "") for mode in ("Pod", "PodGroup", {"single": {}}, {"all": {}})),
        ({"priorityClassName": "x", "podGroupTemplateRef": {"workload": {}}}, "", ""),
    ],
)
def test_fields_are_honoured_or_refused_by_name(spec: dict, reason: str, words: str) -> None:
    for version in ("v1alpha2", "v1alpha3", "v1beta1"):
        refusal = read_pod_group(group("g", 2, version, **spec)).refusal
        assert (refusal.reason if refusal else "") == reason and (refusal is None or words in refusal.message)


def test_a_refused_group_is_not_placed(planner: Planner) -> None:
    made = plan(planner, members("a", 1), group("a", 1, somethingNew=1))
    assert not made.placements and next(iter(made.reasons.values())).reason == "PodGroupUnsupported"


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"networkTopology": {"mode": "hard"}}, "PodGroupUnsupported"),
        ({"networkTopology": {"mode": "soft"}}, ""),
        ({"subGroupPolicy": [{"name": "x"}]}, "PodGroupUnsupported"),
    ],
)
def test_volcanos_fields_too(spec: dict, reason: str) -> None:
    raw = {"apiVersion": "scheduling.volcano.sh/v1beta1", "metadata": {"name": "g"}, "spec": {"minMember": 2} | spec}
    refusal = read_pod_group(raw).refusal
    assert (refusal.reason if refusal else "") == reason


def test_volcanos_minimum_of_tasks_starts_whole() -> None:
    raw = {"apiVersion": "scheduling.volcano.sh/v1beta1", "metadata": {"name": "g"}}
    read = read_pod_group(raw | {"spec": {"minMember": 2, "minTaskMember": {"ps": 1, "worker": 4}}})
    assert read.minimum == 5 and read.whole


def test_workers_of_different_sizes_start_together(planner: Planner) -> None:
    mixed = [make_pod(f"m-{i}", gpus, "m", 4, uid=f"m-{i}") for i, gpus in enumerate((1, 8, 2, 8))]
    made = planner.plan(snapshot(nodes(3), mixed))
    assert [placement.by for placement in made.placements] == ["each"]
    assert len({one.node for one in made.placements[0].assignments}) == 3
    made = planner.plan(snapshot(nodes(2), mixed))
    assert not made.placements and "its workers differ; 2 of 4 pods fit" in next(iter(made.reasons.values())).message


def test_workers_of_different_sizes_share_a_domain(planner: Planner) -> None:
    """Racks hold two nodes each. Fifteen GPUs: of the racks with enough the fullest is taken."""

    def mixed(*sizes: int, **more) -> list[dict]:
        pods = [make_pod(f"a-{i}", gpus, uid=f"a-{i}", **more) for i, gpus in enumerate(sizes)]
        return [{**pod, "spec": pod["spec"] | {"schedulingGroup": {"podGroupName": "a"}}} for pod in pods]

    busy = [make_pod("b0", 1, node="n0", uid="b0"), make_pod("b1", 2, node="n2", uid="b1")]
    made = plan(planner, [*busy, *mixed(4, 8, 3)], group("a", 3, **WITHIN))
    assert racks(made) == [{"0"}] and made.placements[0].by == "each"
    made = plan(planner, mixed(4, 8, 8), group("a", 3, **WITHIN))
    (reason,) = made.reasons.values()
    assert reason.reason == "Insufficient" and f"{RACK}: no one of 4 domains holds it" in reason.message
    running = mixed(4, 8, 3)
    running[1]["spec"]["nodeName"] = "n5"
    (placement,) = plan(planner, running, group("a", 3, **WITHIN)).placements
    assert {one.node for one in placement.assignments} == {"n4"}
    assert plan(planner, mixed(4, 8), group("a", 2, schedulingConstraints={"topology": [{"key": "none"}]})).reasons


def test_workers_with_different_node_rights_start_together(planner: Planner) -> None:
    machines = [*nodes(3), *(make_node_of(kind) for kind in "ab")]
    pods = [make_pod(f"m-{i}", 8, "m", 3, uid=f"m-{i}") for i in range(3)]
    for pod, kind in zip(pods[1:], "ab", strict=True):
        pod["spec"]["nodeSelector"] = {"kind": kind}
    (placement,) = planner.plan(snapshot(machines, pods)).placements
    assert {one.pod.name: one.node for one in placement.assignments if one.pod.name != "m-0"} == {
        "m-1": "a",
        "m-2": "b",
    }


def make_node_of(kind: str) -> dict:
    (machine,) = nodes(1, labels={"kind": kind})
    machine["metadata"] |= {"name": kind, "uid": kind}
    return machine
