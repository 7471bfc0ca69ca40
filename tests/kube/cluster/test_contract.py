"""What an API server does: the fake must do the same as a real one."""

import pytest

from jaxsched.kube.cluster.api import NODES, PODS, Unreachable, pod_path
from jaxsched.kube.read.hints import DECISION, GROUP
from tests.support.kube.calls import MERGE, eventually, post


def test_a_binding_is_answered_with_a_status_and_its_annotations_are_merged(world) -> None:
    pod = world.pod()
    response = post(world, pod, world.node()["metadata"]["name"])
    assert response.status == 201 and response.body["kind"] == "Status"
    after = world.get(pod)
    assert after["spec"]["nodeName"]
    assert after["metadata"]["annotations"][DECISION] == "d1"
    assert after["metadata"]["annotations"][GROUP] == "0-1"


def test_a_dry_run_changes_nothing(world) -> None:
    pod = world.pod()
    assert post(world, pod, "n0", query={"dryRun": "All"}).status == 201
    assert "nodeName" not in world.get(pod)["spec"]


def test_a_second_binding_is_409(world) -> None:
    pod = world.pod()
    assert post(world, pod, "n0").status == 201
    assert post(world, pod, "n1").status == 409
    assert world.get(pod)["spec"]["nodeName"] == "n0"


def test_a_wrong_uid_is_409(world) -> None:
    world.since(22, "the uid in a Binding")
    pod = world.pod()
    assert post(world, pod, "n0", uid="00000000-0000-0000-0000-000000000000").status == 409


def test_a_deleted_pod_is_404_and_a_terminating_one_409(world) -> None:
    pod = world.pod(finalizers=["example.com/hold"])
    path = pod_path("default", pod["metadata"]["name"])
    world.api.request("DELETE", path, body={"gracePeriodSeconds": 0})
    assert post(world, pod, "n0").status == 409
    world.api.request("PATCH", path, body={"metadata": {"finalizers": None}}, content=MERGE)
    eventually(lambda: world.api.request("GET", path).status == 404)
    assert post(world, pod, "n0").status == 404


def test_a_gated_pod_is_409(world) -> None:
    world.since(27, "scheduling gates")
    pod = world.pod(spec={"schedulingGates": [{"name": "example.com/wait"}]})
    assert post(world, pod, "n0").status == 409


def test_the_server_checks_neither_the_node_nor_its_capacity(world) -> None:
    assert post(world, world.pod(), "there-is-no-such-node").status == 201
    small = world.node(gpus=1)["metadata"]["name"]
    assert post(world, world.pod(gpus=8), small).status == 201


def test_the_scheduler_name_cannot_be_changed(world) -> None:
    path = pod_path("default", world.pod()["metadata"]["name"])
    assert world.api.request("PATCH", path, body={"spec": {"schedulerName": "x"}}, content=MERGE).status == 422


def test_field_selectors_work_on_the_server(world) -> None:
    ours, theirs, bound = world.pod(), world.pod(scheduler="other"), world.pod()
    post(world, bound, "n0")
    query = {"fieldSelector": "spec.schedulerName=jaxsched,spec.nodeName=,status.phase=Pending"}
    found = {pod["metadata"]["uid"] for pod in world.api.request("GET", PODS, query).body["items"]}
    assert ours["metadata"]["uid"] in found
    assert not found & {theirs["metadata"]["uid"], bound["metadata"]["uid"]}


def test_an_old_version_gives_410(world) -> None:
    world.forget_history()
    query = {"watch": "true", "resourceVersion": "1", "timeoutSeconds": "3"}
    events = list(world.api.stream(PODS, query, idle_s=10))
    assert events and events[0]["type"] == "ERROR" and events[0]["object"]["code"] == 410


def test_nobody_there_is_unreachable(world) -> None:
    from jaxsched.kube.cluster.api import ApiClient

    with pytest.raises(Unreachable, match="GET /api/v1/nodes"):
        ApiClient("http://127.0.0.1:9").request("GET", NODES)
