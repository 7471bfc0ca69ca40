"""Reading pods, nodes and gangs: whatever comes in is a record or a refusal by name, never a crash."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxsched.kube.capacity.filters import filter_reason
from jaxsched.kube.capacity.fleet import find_missing, gpu_types, read_fleet
from jaxsched.kube.capacity.ledger import Ledger
from jaxsched.kube.cluster.record import slim
from jaxsched.kube.read.gangs import form_gangs, gang_key
from jaxsched.kube.read.groups import read_pod_group
from jaxsched.kube.read.objects import read_node, read_pod
from jaxsched.kube.read.settings import PlanSettings
from tests.support.kube.objects import NOW, make_node, make_pod

SETTINGS = PlanSettings()
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = (
    "metadata spec status name namespace uid labels annotations ownerReferences creationTimestamp deletionTimestamp "
    "schedulerName nodeName containers initContainers resources requests limits overhead affinity nodeAffinity "
    "priority requiredDuringSchedulingIgnoredDuringExecution nodeSelectorTerms nodeSelector tolerations taints phase "
    "startTime "
    "volumes persistentVolumeClaim claimName conditions allocatable schedulingGates schedulingGroup podGroupName ports "
    "topologySpreadConstraints resourceClaims hostNetwork minMember schedulingPolicy gang minCount effect key "
    "controller kind"
).split()
ODD = st.recursive(
    ANYTHING,
    lambda inner: st.dictionaries(st.sampled_from(FIELDS), inner, max_size=6) | st.lists(inner, max_size=2),
    max_leaves=20,
).filter(lambda one: isinstance(one, dict))


@given(ODD)
def test_any_object_is_read(raw: dict) -> None:
    pod, node = read_pod(raw), read_node(raw)
    slim(raw)
    form_gangs([pod], [], frozenset(), PlanSettings(scheduler_name=pod.scheduler or "x"), NOW)
    filter_reason(pod, node)


@given(ODD)
def test_any_pod_group_is_read(raw: dict) -> None:
    assert read_pod_group(raw).minimum >= 1


def gangs_of(*pods: dict, groups: tuple = (), served: tuple = (), now: float = NOW) -> list:
    return form_gangs(map(read_pod, pods), map(read_pod_group, groups), frozenset(served), SETTINGS, now)


def test_requests_follow_the_kubelets_sum() -> None:
    resources = lambda cpu: {"resources": {"requests": {"cpu": cpu}}}
    pod = make_pod("p", spec={"overhead": {"cpu": "250m"}})
    pod["spec"]["containers"] = [resources("1"), resources("500m")]
    pod["spec"]["initContainers"] = [resources("1e0") | {"restartPolicy": "Always"}, resources("3")]
    assert read_pod(pod).units("cpu") == 4250  # the init stage (1 + 3) beats 1 + 1.5, plus the overhead


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"containers": []}, "MalformedPod"),
        ({"resourceClaims": [{"name": "gpu"}]}, "ResourceClaimsUnsupported"),
        ({"topologySpreadConstraints": [{"maxSkew": 1}]}, "TopologySpreadUnsupported"),
        (
            {
                "affinity": {
                    "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "x"}]}
                }
            },
            "PodAffinityUnsupported",
        ),
        ({"containers": [{"ports": [{"hostPort": 80}]}]}, "HostPortsUnsupported"),
        ({"containers": [{"resources": {"requests": {"cpu": "lots"}}}]}, "BadQuantity"),
        ({"containers": [{"resources": {"requests": {"nvidia.com/gpu": -1}}}]}, "BadQuantity"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(spec: dict, reason: str) -> None:
    refusal = gangs_of(make_pod("p", spec=spec))[0].refusal
    assert refusal is not None and refusal.reason == reason and "default/p" in refusal.message


WRONG_NUMBERS = ("", "0", "-1", "²", "٣", "nan", "inf", "1e400", "1_0", " 4", "4 ", "9" * 5000, "000000001999999999")
SIZES = ("jaxsched.io/gang-size", "kueue.x-k8s.io/pod-group-total-count")


@pytest.mark.parametrize(
    "annotations",
    [
        {"jaxsched.io/model": "nope"},
        {"jaxsched.io/model": "x" * 5000},
        {"jaxsched.io/duration-seconds": "soon"},
        {"jaxsched.io/gpu-group": "0-"},
        {"scheduling.k8s.io/group-name": "g\n2026-01-01 INFO all is well"},
        *({"jaxsched.io/duration-seconds": text} for text in (*WRONG_NUMBERS, "1e-99", "1e9", "1e99")),
        *({size: text} for size in SIZES for text in (*WRONG_NUMBERS, "4097", "1999999999", "1.5", "1e2")),
    ],
    ids=lambda annotations: repr(annotations)[1:50],
)
def test_bad_hints_are_refused_by_name(annotations: dict) -> None:
    refusal = gangs_of(make_pod("p", annotations=annotations))[0].refusal
    assert refusal is not None and refusal.reason == "BadAnnotation" and next(iter(annotations)) in refusal.message


def test_a_bad_label_is_refused_by_name() -> None:
    label = "pod-group.scheduling.sigs.k8s.io/min-available"
    for text in WRONG_NUMBERS:
        refusal = gangs_of(make_pod("p", labels={label: text}))[0].refusal
        assert refusal is not None and refusal.reason == "BadAnnotation" and label in refusal.message
        assert len(refusal.message) < 200


def test_node_affinity_compares_the_numbers_that_kubernetes_would() -> None:
    def may(operator: str, label: str, bound: object) -> bool:
        term = {"matchExpressions": [{"key": "n", "operator": operator, "values": bound}]}
        affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
        pod = read_pod(make_pod("p", spec={"affinity": affinity}))
        return filter_reason(pod, read_node(make_node("n0", labels={"n": label}))) == ""

    assert may("Gt", "7", ["5"]) and may("Lt", "-7", ["5"]) and not may("Gt", "5", ["5"])
    for odd in ("٧", "7_0", " 7", "9" * 5000, "9223372036854775808", ""):
        assert not may("Gt", odd, ["5"]) and not may("Lt", "5", [odd])
    assert not may("Gt", "7", 5) and not may("In", "7", None) and not may("Gt", "7", [])


def test_units_that_no_node_has_neither_wrap_around_nor_raise() -> None:
    """Three containers of 2^62 bytes each are more than the ledger's integers hold."""
    pod = make_pod("p", spec={"nodeName": "n0"}, uid="u")
    pod["spec"]["containers"] = [{"resources": {"requests": {"memory": "4611686018427387904"}}}] * 3
    pods = [read_pod(pod | {"metadata": pod["metadata"] | {"uid": f"u{i}"}}) for i in range(4)]
    ledger = Ledger(read_fleet([read_node(make_node("n0"))], SETTINGS), pods, SETTINGS.gpu_resource)
    assert ledger.free[0, ledger.column["memory"]] < 0
    assert not ledger.fits(read_pod(make_pod("q")), 0)


def test_gpuless_gangs_are_refused() -> None:
    assert gangs_of(make_pod("a", None))[0].refusal.reason == "NoGpuRequested"


def test_hints_reach_the_gang() -> None:
    hints = {"jaxsched.io/model": "VGG16", "jaxsched.io/duration-seconds": "90"}
    gang = gangs_of(make_pod("p", annotations=hints))[0]
    assert (gang.model, gang.duration_s) == (0, 90.0)
    assert gangs_of(make_pod("q"))[0].duration_s == SETTINGS.default_duration_s


def test_gangs_of_every_convention() -> None:
    job = {"ownerReferences": [{"kind": "Job", "uid": "u1", "controller": True}]}
    assert gang_key(read_pod(make_pod("p", gang="g"))) == "default/scheduling.x-k8s.io/g"
    assert (
        gang_key(read_pod(make_pod("p", spec={"schedulingGroup": {"podGroupName": "g"}})))
        == "default/scheduling.k8s.io/g"
    )
    volcano = make_pod("p", annotations={"scheduling.k8s.io/group-name": "g"})
    assert gang_key(read_pod(volcano)) == "default/scheduling.volcano.sh/g"
    assert gang_key(read_pod(make_pod("p", labels={"kueue.x-k8s.io/pod-group-name": "g"}))) == "default/kueue/g"
    assert gang_key(read_pod(make_pod("p", labels={"jobset.sigs.k8s.io/jobset-name": "g"}))) == "default/jobset/g"
    raw = make_pod("p")
    raw["metadata"] |= job
    assert gang_key(read_pod(raw)) == "default/Job/u1"
    raw["metadata"]["ownerReferences"][0]["kind"] = "ReplicaSet"
    assert gang_key(read_pod(raw)) == "default/pod/p"  # a Deployment's pods start one by one


def test_a_gang_waits_until_it_is_complete() -> None:
    group = {
        "apiVersion": "scheduling.x-k8s.io/v1alpha1",
        "metadata": {"name": "g", "namespace": "default"},
        "spec": {"minMember": 2},
    }
    one, two = make_pod("a", gang="g"), make_pod("b", gang="g")
    assert gangs_of(one, groups=(group,))[0].waiting.reason == "GangIncomplete"
    assert gangs_of(one, two, groups=(group,))[0].waiting is None
    assert gangs_of(one, served=("scheduling.x-k8s.io",))[0].waiting.reason == "PodGroupMissing"
    assert gangs_of(make_pod("a", gang="g", size=3))[0].waiting.reason == "GangIncomplete"
    young = make_pod("a", gang="g", age_s=0.5)
    assert gangs_of(young)[0].waiting.reason == "GangIncomplete"  # of unstated size, and others may be on their way
    assert gangs_of(young, now=NOW + 10)[0].waiting is None
    gated = make_pod("a", gang="g", size=1, spec={"schedulingGates": [{"name": "x"}]})
    assert gangs_of(gated, two)[0].waiting.reason == "Gated"


def test_the_rest_of_a_started_gang_is_never_held_back() -> None:
    gang = gangs_of(make_pod("a", gang="g", size=3, node="n0"), make_pod("b", gang="g", size=3))[0]
    assert gang.waiting is None and [pod.name for pod in gang.pending] == ["b"] and len(gang.bound) == 1


@pytest.mark.parametrize(
    ("node", "pod", "why"),
    [
        ({}, {}, ""),
        ({"ready": False}, {}, "not ready"),
        ({"spec": {"unschedulable": True}}, {}, "cordoned"),
        ({"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]}, {}, "taint k"),
        ({"taints": [{"key": "k", "effect": "PreferNoSchedule"}]}, {}, ""),
        (
            {"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]},
            {"tolerations": [{"key": "k", "operator": "Equal", "value": "v", "effect": "NoSchedule"}]},
            "",
        ),
        (
            {"taints": [{"key": "k", "value": "v", "effect": "NoExecute"}]},
            {"tolerations": [{"key": "k", "operator": "Equal", "value": "v", "effect": "NoSchedule"}]},
            "taint k",
        ),
        ({"taints": [{"key": "k", "effect": "NoSchedule"}]}, {"tolerations": [{"operator": "Exists"}]}, ""),
        ({}, {"nodeSelector": {"disk": "ssd"}}, "node selector"),
        ({"labels": {"disk": "ssd"}}, {"nodeSelector": {"disk": "ssd"}}, ""),
        ({"labels": {"gen": "7"}}, {"terms": [{"key": "gen", "operator": "Gt", "values": ["6"]}]}, ""),
        ({"labels": {"gen": "7"}}, {"terms": [{"key": "gen", "operator": "Lt", "values": ["6"]}]}, "node affinity"),
        ({}, {"terms": [{"key": "gen", "operator": "DoesNotExist"}]}, ""),
        ({"labels": {"gen": "7"}}, {"terms": [{"key": "gen", "operator": "NotIn", "values": ["7"]}]}, "node affinity"),
    ],
)
def test_filters(node: dict, pod: dict, why: str) -> None:
    pod = dict(pod)
    if "terms" in pod:
        required = {"nodeSelectorTerms": [{"matchExpressions": pod.pop("terms")}]}
        pod["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    assert filter_reason(read_pod(make_pod("p", spec=pod)), read_node(make_node("n", **node))) == why


def test_a_fleet_keeps_its_sizes_while_nodes_come_and_go() -> None:
    nodes = [read_node(make_node(f"n{i}", rack=f"r{i // 4}", block=f"b{i // 8}")) for i in range(20)]
    fleet = read_fleet(nodes[:16], SETTINGS)
    for some in (nodes[:15], nodes[3:17], nodes[:1], nodes[:18]):
        other = read_fleet(some, SETTINGS, fleet.shape)
        assert other.shape == fleet.shape
        assert int(other.split.group_gpus.sum()) == int(other.merged.group_gpus.sum()) == 8 * len(some)
        assert sorted(other.rows[other.rows >= 0]) == list(range(len(some)))


def test_other_racks_of_the_same_nodes_change_no_shape() -> None:
    """Not where they become unevenly far apart, either: a learned policy would have to be compiled anew."""
    even = read_fleet([read_node(make_node(f"n{i}", rack=f"r{i // 4}")) for i in range(8)], SETTINGS)
    apart = [read_node(make_node(f"n{i}", rack=f"r{i}", block=f"b{i // 2}")) for i in range(8)]
    uneven = read_fleet(apart, SETTINGS, even.shape)
    assert uneven.shape == even.shape and read_fleet([], SETTINGS).shape.uneven == even.shape.uneven
    assert int(even.merged.uneven.sum()) == 0 < int(uneven.merged.uneven.sum())


def test_nodes_without_topology_or_known_product() -> None:
    bare = make_node("n0")
    bare["metadata"].pop("labels")
    fleet = read_fleet([read_node(bare), read_node(make_node("n1", gpus="3"))], SETTINGS)
    assert int(fleet.split.group_gpus.sum()) == 11
    assert {one.name for one in gpu_types(fleet.nodes, SETTINGS)} == {"B200"}  # alike, and nothing else is known


def test_unreadable_nodes_are_named() -> None:
    node = read_node(make_node("n", allocatable={"nvidia.com/gpu": "eight"}))
    assert not node.usable and node.refusal is not None and "nvidia.com/gpu" in node.refusal.message


def test_what_the_options_name_and_no_node_has() -> None:
    """Before: a misspelt label was passed over in silence."""
    there = PlanSettings(topology=("cloud.provider.com/topology-rack",), partition_label="zone")
    machines = tuple(map(read_node, [make_node("n0", labels={"zone": "a"}), make_node("n1")]))
    assert find_missing(machines, PlanSettings()) == find_missing(machines, there) == []
    settings = PlanSettings(topology=("rakc", "cloud.provider.com/topology-rack"), partition_label="zoen")
    assert find_missing(machines, settings) == ["the label rakc (--topology)", "the label zoen (--partition-label)"]
    assert find_missing(machines, PlanSettings(gpu_resource="amd.com/gpu")) == ["amd.com/gpu (--gpu-resource)"]
