"""Controllers read from the fake and from a real API server: a Job that a quota holds up is no gang yet."""

import dataclasses

from tests.support.kube.objects import make_pod
from tests.support.kube.turns import bound, turn


def test_a_job_throttled_by_a_quota_is_not_half_started(world, start, monkeypatch) -> None:
    for _ in range(2):
        world.node()
    job = world.make("/apis/batch/v1/namespaces/default/jobs", eight_pods(world.name("j")))
    scheduler = start()
    pods = [of_job(world, job) for _ in range(4)]
    told = "4 of 8 pods exist"
    settled = dataclasses.replace(scheduler.planner.settings, settle_s=0.0)  # nothing more came for long enough
    monkeypatch.setattr(scheduler.planner, "settings", settled)

    def waits() -> bool:
        conditions = world.get(pods[0])["status"].get("conditions", [])
        return any(told in str(one.get("message")) for one in conditions)

    turn(scheduler, waits)
    assert bound(world, pods) == 0
    pods += [of_job(world, job) for _ in range(4)]
    turn(scheduler, lambda: bound(world, pods) == 8)


def eight_pods(name: str) -> dict:
    template = {"spec": make_pod("p")["spec"] | {"restartPolicy": "Never"}}
    spec = {"parallelism": 8, "completions": 8, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


def of_job(world, job: dict) -> dict:
    """A pod as the Job's controller makes it."""
    meta = job["metadata"]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": meta["name"], "uid": meta["uid"], "controller": True}
    raw = make_pod(world.name(f"{meta['name']}-p"))
    raw["metadata"]["ownerReferences"] = [owner]
    return world.make("/api/v1/namespaces/default/pods", raw)
