"""How many pods must be there before a gang starts, and how many start together."""

import itertools

import pytest

from jaxsched.kube.plan.planner import Plan, Planner
from jaxsched.kube.read.gangs import form_gangs
from jaxsched.kube.read.groups import OWNER_KINDS, read_owner, read_pod_group
from jaxsched.kube.read.objects import read_pod
from tests.kube.snapshots import SETTINGS, check, gang, nodes, snapshot
from tests.support.kube.objects import NOW, make_pod

KINDS = {kind.name: kind for kind in OWNER_KINDS}


def group(minimum: int = 0, api: str = "scheduling.k8s.io/v1alpha2", **spec) -> dict:
    policy = {"gang": {"minCount": minimum}} if minimum else {"basic": {}}
    own = {"schedulingPolicy": policy} if api.startswith("scheduling.k8s.io") else {"minMember": minimum}
    return {"apiVersion": api, "metadata": {"name": "g", "namespace": "default"}, "spec": own | spec}


def members(count: int, gpus: object = 8, first: int = 0, **more) -> list[dict]:
    spec = {"schedulingGroup": {"podGroupName": "g"}} | more.pop("spec", {})
    return [make_pod(f"g-{i}", gpus, uid=f"g-{i}", spec=spec, **more) for i in range(first, first + count)]


def plan(planner: Planner, machines: int, pods: list[dict], *groups: dict) -> Plan:
    shot = snapshot(nodes(machines), pods, groups=tuple(map(read_pod_group, groups)))
    made = planner.plan(shot)
    check(shot, made)
    return made


def started(plan: Plan) -> list[str]:
    return sorted(
        one.pod.name for placement in plan.placements for one in placement.assignments if "g-" in one.pod.name
    )


def test_at_least_the_minimum_starts_and_then_what_fits(planner: Planner) -> None:
    for machines, count in ((3, 0), (4, 4), (6, 6), (8, 8)):
        assert len(started(plan(planner, machines, members(8), group(4)))) == count


def test_the_order_of_arrival_makes_no_difference(planner: Planner) -> None:
    """Eight pods of which four must start, room for six, and every split into those that came first and the others."""
    for early in (range(4), range(4, 8), (0, 2, 5, 7), range(8)):
        pods = members(8)
        first = started(plan(planner, 6, [pods[i] for i in early], group(4)))
        for number, pod in enumerate(pod for pod in pods if pod["metadata"]["name"] in first):
            pod["spec"]["nodeName"] = f"n{number}"
        assert len(first) + len(started(plan(planner, 6, pods, group(4)))) == 6


def test_the_minimum_of_others_goes_before_more_than_the_minimum(planner: Planner) -> None:
    made = plan(planner, 6, [*members(8), *gang("other", 2, 8, age_s=1)], group(4))
    assert len(started(made)) == 4 and len(made.placements) == 2


def test_nothing_is_kept_for_more_than_the_minimum(planner: Planner) -> None:
    running = members(4)
    for number, pod in enumerate(running):
        pod["spec"]["nodeName"] = f"n{number}"
    busy = make_pod("busy", 1, node="n4", uid="busy")
    made = plan(planner, 5, [*running, *members(4, first=4), busy, *gang("small", 1, 1)], group(4))
    assert [placement.gang.key.rpartition("/")[2] for placement in made.placements] == ["small"]
    assert "as many as must" in next(iter(made.reasons.values())).message


def test_of_a_policy_basic_what_fits_starts(planner: Planner) -> None:
    for machines in (1, 3, 8):
        assert len(started(plan(planner, machines, members(8), group()))) == machines


def test_launchers_are_among_those_that_must_start(planner: Planner) -> None:
    pods = [
        *members(8),
        make_pod("a-launcher", None, uid="launcher", spec=members(1)[0]["spec"] | {"containers": [{}]}),
    ]
    gangs = form_gangs(map(read_pod, pods), [read_pod_group(group(3))], frozenset(), SETTINGS, NOW)
    assert [pod.name for pod in gangs[0].together] == ["g-0", "g-1", "a-launcher"]
    assert len(gangs[0].extra) == 6


def test_gated_pods_beyond_the_minimum_hold_nothing_up(planner: Planner) -> None:
    gated = members(2, first=4, spec={"schedulingGates": [{"name": "x"}]})
    assert len(started(plan(planner, 8, [*members(4), *gated], group(4)))) == 4
    assert not started(plan(planner, 8, [*members(3), *gated], group(4)))


def owned(kind: str, count: int, uid: str = "o", **more) -> list[dict]:
    pods = [make_pod(f"p-{i}", 1, uid=f"p-{i}", **more) for i in range(count)]
    group = kind.partition(".")[2]
    for pod in pods:
        owner = {"kind": kind.partition(".")[0], "apiVersion": f"{group}/v1", "uid": uid, "controller": True}
        pod["metadata"]["ownerReferences"] = [owner]
    return pods


def waiting(kind: str, pods: list[dict], spec: dict, status: dict | None = None, api: str = "v1") -> str:
    raw = {"apiVersion": f"{KINDS[kind].group}/{api}", "metadata": {"name": "o", "namespace": "default", "uid": "o"}}
    owners = [read_owner(raw | {"spec": spec, "status": status or {}}, KINDS[kind])]
    (one,) = form_gangs(map(read_pod, pods), [], frozenset([kind]), SETTINGS, NOW + 1e4, owners)
    return one.waiting.message if one.waiting else ""


WORKERS = {"Master": {"replicas": 1}, "Worker": {"replicas": 7}}
OWNERS = [
    ("Job.batch", {"parallelism": 8, "completions": 8}, 8),
    ("Job.batch", {"parallelism": 8}, 8),
    ("Job.batch", {"parallelism": 9, "completions": 8}, 8),
    ("PyTorchJob.kubeflow.org", {"pytorchReplicaSpecs": WORKERS}, 8),
    ("MPIJob.kubeflow.org", {"mpiReplicaSpecs": {"Launcher": {}, "Worker": {"replicas": 7}}}, 8),
    ("RayCluster.ray.io", {"workerGroupSpecs": [{"replicas": 3, "numOfHosts": 2}, {"replicas": 1}]}, 8),
    (
        "RayCluster.ray.io",
        {"workerGroupSpecs": [{"minReplicas": 3, "maxReplicas": 5}, {"replicas": 9, "maxReplicas": 4}]},
        8,
    ),
    (
        "RayCluster.ray.io",
        {"workerGroupSpecs": [{"replicas": 3, "suspend": True}, {"replicas": 0, "minReplicas": 5}]},
        6,
    ),
]


@pytest.mark.parametrize(("kind", "spec", "size"), OWNERS, ids=lambda one: str(one)[:30])
def test_a_gang_that_a_quota_holds_up_is_not_complete(kind: str, spec: dict, size: int) -> None:
    """Four pods, and no further one for hours: what the controller wants is what counts."""
    assert waiting(kind, owned(kind, 4), spec) == f"4 of {size} pods exist"
    assert waiting(kind, owned(kind, size), spec) == ""


def test_a_job_that_is_almost_done_waits_for_what_is_left() -> None:
    spec = {"parallelism": 8, "completions": 8}
    assert waiting("Job.batch", owned("Job.batch", 1), spec, {"succeeded": 7}) == ""
    assert waiting("Job.batch", owned("Job.batch", 1), spec, {"succeeded": 5, "failedIndexes": "1,3"}) == ""
    assert waiting("Job.batch", owned("Job.batch", 1), spec, {"succeeded": 5}) == "1 of 3 pods exist"
    sized = owned("Job.batch", 1, annotations={"jaxsched.io/gang-size": "8"})
    assert waiting("Job.batch", sized, spec, {"succeeded": 7}) == ""


def test_a_controller_that_is_not_seen_yet_is_waited_for() -> None:
    gangs = form_gangs(map(read_pod, owned("Job.batch", 4)), [], frozenset(["Job.batch"]), SETTINGS, NOW + 1e4)
    assert "its Job is not known yet" in gangs[0].waiting.message
    assert form_gangs(map(read_pod, owned("Job.batch", 4)), [], frozenset(), SETTINGS, NOW + 1e4)[0].waiting is None


def test_jobsets_wait_for_all_of_their_jobs_unless_they_come_in_order() -> None:
    job = {"spec": {"parallelism": 2, "completions": 2}}
    spec = {"replicatedJobs": [{"name": "a", "replicas": 3, "template": job}, {"name": "b", "template": job}]}
    pods = [make_pod(f"p-{i}", 1, uid=f"p-{i}", labels={"jobset.sigs.k8s.io/jobset-name": "o"}) for i in range(4)]
    kind = "JobSet.jobset.x-k8s.io"
    assert waiting(kind, pods, spec) == "4 of 8 pods exist"
    assert waiting(kind, pods, spec, {"replicatedJobsStatus": [{"name": "a", "succeeded": 2}]}) == ""
    assert waiting(kind, pods, spec | {"startupPolicy": {"startupPolicyOrder": "InOrder"}}) == ""


def test_groups_of_a_leader_worker_set_start_one_by_one() -> None:
    def pods(count: int, index: str) -> list[dict]:
        labels = {"leaderworkerset.sigs.k8s.io/name": "o", "leaderworkerset.sigs.k8s.io/group-index": index}
        size = {"leaderworkerset.sigs.k8s.io/size": "4"}
        return [
            make_pod(f"o-{index}-{i}", 1, uid=f"{index}-{i}", labels=labels, annotations=size) for i in range(count)
        ]

    kind, spec = "LeaderWorkerSet.leaderworkerset.x-k8s.io", {"leaderWorkerTemplate": {"size": 4}}
    assert waiting(kind, pods(3, "0"), spec) == "3 of 4 pods exist" and waiting(kind, pods(4, "0"), spec) == ""
    assert waiting(kind, pods(1, "0"), spec | {"startupPolicy": "LeaderReady"}) == ""
    both = form_gangs(map(read_pod, [*pods(4, "0"), *pods(2, "1")]), [], frozenset(), SETTINGS, NOW)
    assert [one.waiting is None for one in both] == [True, False]


def test_odd_controllers_are_read() -> None:
    odd = (None, -1, True, "8", [], {}, 2**70, 1.5)
    for kind, value in itertools.product(OWNER_KINDS, odd):
        for name in ("parallelism", "completions", "replicatedJobs", "xReplicaSpecs", "workerGroupSpecs", "status"):
            raw = {"spec": {name: value, "leaderWorkerTemplate": value}, "status": {"succeeded": value}}
            assert 0 <= read_owner(raw, kind).pods <= 10**6
