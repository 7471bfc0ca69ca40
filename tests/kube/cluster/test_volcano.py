"""Volcano's Jobs on the fake and on a real API server: its PodGroups get the phases that its controller waits for."""

from collections.abc import Callable

import pytest

from tests.support.kube.turns import bound, turn

GROUP, BATCH = "scheduling.volcano.sh", "batch.volcano.sh"


@pytest.fixture
def submit(world) -> Callable[..., tuple[str, str]]:
    """Creates a Job and, as Volcano's controller does first, its PodGroup: path and name of that."""
    groups = world.custom(GROUP, "v1beta1", "PodGroup", "podgroups")
    jobs = world.custom(BATCH, "v1alpha1", "Job", "jobs")

    def one(scheduler: str, minimum: int) -> tuple[str, str]:
        body = {"apiVersion": f"{BATCH}/v1alpha1", "kind": "Job", "metadata": {"name": world.name("v")}}
        job = world.make(jobs, body | {"spec": {"schedulerName": scheduler, "minAvailable": minimum}})["metadata"]
        owner = {"apiVersion": body["apiVersion"], "kind": "Job", "name": job["name"], "uid": job["uid"]}
        meta = {"name": f"{job['name']}-{job['uid']}", "ownerReferences": [owner | {"controller": True}]}
        body = {"apiVersion": f"{GROUP}/v1beta1", "kind": "PodGroup", "metadata": meta}
        world.make(groups, body | {"spec": {"minMember": minimum}, "status": {"phase": "Pending"}})
        return f"{groups}/{meta['name']}", meta["name"]

    return one


def phase(world, path: str) -> str:
    return world.api.request("GET", path).body["status"]["phase"]


def test_the_pods_of_a_job_are_asked_for_and_bound_whole(world, start, submit) -> None:
    world.node()
    path, name = submit("jaxsched", 3)
    theirs, _ = submit("volcano", 3)
    scheduler = start()
    turn(scheduler, lambda: phase(world, path) == "Inqueue")
    pods = [world.pod(annotations={"scheduling.k8s.io/group-name": name}, gpus=1) for _ in range(2)]
    for _ in range(3):
        scheduler.step()
    assert bound(world, pods) == 0  # as many as the minimum, or none
    pods.append(world.pod(annotations={"scheduling.k8s.io/group-name": name}, gpus=1))
    turn(scheduler, lambda: bound(world, pods) == 3)
    turn(scheduler, lambda: phase(world, path) == "Running")
    assert phase(world, theirs) == "Pending"
    assert world.api.request("GET", path).body["spec"] == {"minMember": 3}
