"""Why claims of devices (DRA) are refused: what a real API server lets two schedulers do."""

import pytest

from tests.support.kube.turns import turn

CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"


@pytest.mark.parametrize("world", [pytest.param("real", marks=pytest.mark.kube)], indirect=True)
def test_one_device_can_be_given_to_two_claims(world) -> None:
    world.since(34, "resource.k8s.io/v1")
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com"}}
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
    given = {"request": "gpu", "driver": "gpu.example.com", "pool": "node-0", "device": "gpu-0"}
    for name in (world.name("c"), world.name("c")):
        world.make(CLAIMS, kind | {"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}})
        body = {"status": {"allocation": {"devices": {"results": [given]}}}}
        response = world.api.request(
            "PATCH", f"{CLAIMS}/{name}/status", body=body, content="application/merge-patch+json"
        )
        assert response.ok, response  # the second one too: nobody but the scheduler that gave it knows of the first


def test_a_pod_with_a_claim_is_refused_by_name(world, start) -> None:
    world.node()
    scheduler = start()
    claims = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "mine"}]}
    pod = world.pod(gpus=1, spec=claims)
    turn(scheduler, lambda: "ResourceClaimsUnsupported" in str(world.get(pod)["status"].get("conditions")))
