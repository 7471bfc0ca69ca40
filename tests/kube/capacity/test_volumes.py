"""Pods with volumes go where the volumes are, or are refused by name."""

from jaxsched.kube.plan.planner import Plan, Planner
from jaxsched.kube.read.snapshot import read_volume, read_volume_claim
from tests.kube.snapshots import gang, nodes, snapshot

MOUNT = {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]}


def claim(phase: str = "Bound", volume: str = "pv", **meta) -> dict:
    spec = {"volumeName": volume, "accessModes": meta.pop("modes", ["ReadWriteOnce"])}
    return {"metadata": {"name": "data", "namespace": "default"} | meta, "spec": spec, "status": {"phase": phase}}


def volume(*terms: dict, labels: dict | None = None) -> dict:
    spec = {"nodeAffinity": {"required": {"nodeSelectorTerms": list(terms)}}} if terms else {}
    return {"metadata": {"name": "pv", "labels": labels or {}}, "spec": spec}


def on(*names: str, key: str = "kubernetes.io/hostname") -> dict:
    return {"matchExpressions": [{"key": key, "operator": "In", "values": list(names)}]}


def plan(planner: Planner, claims: list[dict], volumes: list[dict], pods: list[dict] | None = None) -> Plan:
    machines = nodes(8)
    for machine in machines:
        machine["metadata"]["labels"] |= {
            "kubernetes.io/hostname": machine["metadata"]["name"],
            "topology.kubernetes.io/zone": "a" if machine["metadata"]["name"] in ("n0", "n1") else "b",
        }
    return planner.plan(
        snapshot(
            machines,
            gang("g", 1, 1, spec=MOUNT) if pods is None else pods,
            volume_claims=dict(map(read_volume_claim, claims)),
            volumes=dict(map(read_volume, volumes)),
        )
    )


def where(plan: Plan) -> set[str]:
    return {one.node for placement in plan.placements for one in placement.assignments}


def refusal(plan: Plan) -> tuple[str, str]:
    (reason,) = plan.reasons.values()
    return reason.reason, reason.message


def test_a_local_volume_takes_its_pod_along(planner: Planner) -> None:
    for name in ("n0", "n3", "n7"):
        assert where(plan(planner, [claim()], [volume(on(name))])) == {name}


def test_all_of_a_volumes_conditions_hold(planner: Planner) -> None:
    zone = {"topology.kubernetes.io/zone": "a__c"}
    assert where(plan(planner, [claim()], [volume(on("n1", "n5"), labels=zone)])) == {"n1"}
    assert where(plan(planner, [claim()], [volume(labels=zone)])) <= {"n0", "n1"}
    assert where(plan(planner, [claim()], [volume(on("gone"), on("n6"))])) == {"n6"}  # terms are alternatives


def test_zones_by_their_older_names_and_nodes_without_zones(planner: Planner) -> None:
    """As upstream's VolumeZone."""
    old = volume(on("n1", "n5"), labels={"failure-domain.beta.kubernetes.io/zone": "a"})
    assert where(plan(planner, [claim()], [old])) == {"n1"}
    new = volume(labels={"topology.kubernetes.io/zone": "z"})
    shot = {"volume_claims": dict([read_volume_claim(claim())]), "volumes": dict([read_volume(new)])}
    assert where(planner.plan(snapshot(nodes(1), gang("g", 1, 1, spec=MOUNT), **shot))) == {"n0"}


def test_a_volume_on_a_node_that_is_not_there_is_named(planner: Planner) -> None:
    _, message = refusal(plan(planner, [claim()], [volume(on("gone"))]))
    assert "8 volume node affinity" in message


def test_a_volume_that_any_node_can_mount_keeps_no_pod_away(planner: Planner) -> None:
    assert plan(planner, [claim()], [volume()]).placements


def test_claims_that_cannot_be_used_are_refused_by_name(planner: Planner) -> None:
    for claims, volumes, words in (
        ([], [], "does not exist"),
        ([claim("Pending")], [volume()], "is not bound"),
        ([claim(deletionTimestamp="2026-01-01T00:00:00Z")], [volume()], "being deleted"),
        ([claim()], [], "'pv', which does not exist"),
    ):
        reason, message = refusal(plan(planner, claims, volumes))
        assert reason == "VolumeUnsupported" and words in message and "default/g-0" in message


def test_a_volume_for_one_pod_is_had_by_one(planner: Planner) -> None:
    single = claim(modes=["ReadWriteOncePod"])
    assert plan(planner, [single], [volume()]).placements
    reason, message = refusal(plan(planner, [single], [volume()], gang("g", 2, 1, spec=MOUNT)))
    assert reason == "VolumeUnsupported" and "ReadWriteOncePod" in message
    user = gang("user", 1, 1, spec=MOUNT | {"nodeName": "n0"})
    reason, message = refusal(plan(planner, [single], [volume()], [*user, *gang("g", 1, 1, spec=MOUNT)]))
    assert "pod default/user-0 has it" in message
