"""Volumes read from the fake and from a real API server."""

from tests.support.kube.turns import bound, node_of, told, turn

MERGE = "application/strategic-merge-patch+json"


def test_a_pod_goes_where_its_local_volume_is(world, start) -> None:
    names = [world.node()["metadata"]["name"] for _ in range(4)]
    for name in names:
        label = {"metadata": {"labels": {"kubernetes.io/hostname": name}}}
        assert world.api.request("PATCH", f"/api/v1/nodes/{name}", body=label, content=MERGE).ok
    scheduler = start()
    for name in reversed(names):
        pod = world.pod(spec={"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": local(world, name)}}]})
        turn(scheduler, lambda pod=pod: bound(world, [pod]) == 1)
        assert node_of(world, pod) == name


def test_a_claim_that_is_not_bound_is_refused_by_name(world, start) -> None:
    """As with a storage class that waits for the pod's first node: nothing here binds or provisions volumes."""
    world.node()
    claim = world.name("c")
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "late"}
    path = "/api/v1/namespaces/default/persistentvolumeclaims"
    world.make(path, {"kind": "PersistentVolumeClaim", "metadata": {"name": claim}, "spec": spec})
    waits = world.pod(spec={"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]})
    scheduler = start()
    turn(scheduler, lambda: told(world, waits).startswith("VolumeUnsupported") and claim in told(world, waits))
    assert bound(world, [waits]) == 0


def local(world, node: str) -> str:
    """A claim that is bound to a volume on the node, as a provisioner and the volume controller leave them."""
    claim, volume = world.name("c"), world.name("v")
    modes, size = ["ReadWriteOnce"], {"storage": "1Gi"}
    expression = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    spec = {
        "capacity": size,
        "accessModes": modes,
        "local": {"path": "/data"},
        "storageClassName": "local",
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}},
    }
    world.make("/api/v1/persistentvolumes", {"kind": "PersistentVolume", "metadata": {"name": volume}, "spec": spec})
    spec = {"accessModes": modes, "resources": {"requests": size}, "volumeName": volume, "storageClassName": "local"}
    path = "/api/v1/namespaces/default/persistentvolumeclaims"
    world.make(path, {"kind": "PersistentVolumeClaim", "metadata": {"name": claim}, "spec": spec})
    phase = {"status": {"phase": "Bound", "accessModes": modes, "capacity": size}}
    assert world.api.request("PATCH", f"{path}/{claim}/status", body=phase, content=MERGE).ok
    return claim
