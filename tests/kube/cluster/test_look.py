"""One look at a cluster, on the fake and on a real API server."""

import pytest

from jaxsched.errors import UserError
from jaxsched.kube.cluster.api import Response
from jaxsched.kube.cluster.informers import Informers, live_snapshot


def test_a_look_sees_nodes_and_pods_and_writes_nothing(world, monkeypatch: pytest.MonkeyPatch) -> None:
    node, pod = world.node(), world.pod(gpus=1)
    asked: list[tuple[str, str]] = []
    request = world.api.request

    def noted(method: str, path: str, *rest, **more) -> Response:
        asked.append((method, path))
        return request(method, path, *rest, **more)

    monkeypatch.setattr(world.api, "request", noted)
    shot = live_snapshot(world.api)
    assert node["metadata"]["name"] in {one.name for one in shot.nodes}
    assert pod["metadata"]["uid"] in {one.uid for one in shot.pods}
    writes = {path for method, path in asked if method != "GET"}
    assert writes == {"/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"}  # asks what is permitted


def test_a_cluster_that_cannot_be_read_is_one_line(world, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxsched.kube.cluster.informers.PATIENCE_S", -1.0)
    monkeypatch.setattr(Informers, "start", lambda self, on_wait: on_wait())  # nothing has been listed yet
    with pytest.raises(UserError, match="could not be read within"):
        live_snapshot(world.api)
