"""Controllers read from the fake and from a real API server: a Job that a quota holds up is no gang yet."""

import dataclasses

from tests.support.kube.objects import make_pod
from tests.support.kube.turns import bound, told, turn


def test_a_job_throttled_by_a_quota_is_not_half_started(world, start, monkeypatch) -> None:
    for _ in range(2):
        world.node()
    job = world.make("/apis/batch/v1/namespaces/default/jobs", eight_pods(world.name("j")))
    scheduler = start()
    pods = [owned(world, job) for _ in range(4)]
    settled = dataclasses.replace(scheduler.planner.settings, settle_s=0.0)  # nothing more came for long enough
    monkeypatch.setattr(scheduler.planner, "settings", settled)
    turn(scheduler, lambda: "4 of 8 pods exist" in told(world, pods[0]))
    assert bound(world, pods) == 0
    pods += [owned(world, job) for _ in range(4)]
    turn(scheduler, lambda: bound(world, pods) == 8)


def test_a_training_job_waits_for_the_replicas_that_it_wants(world, start, monkeypatch) -> None:
    world.node()
    name, group = world.name("t"), "kubeflow.org"
    path = world.custom(group, "v1", "PyTorchJob", "pytorchjobs")
    replicas = {"pytorchReplicaSpecs": {"Master": {"replicas": 1}, "Worker": {"replicas": 3}}}
    body = {"apiVersion": f"{group}/v1", "kind": "PyTorchJob", "metadata": {"name": name}}
    job = world.make(path, body | {"spec": replicas})
    scheduler = start()
    settled = dataclasses.replace(scheduler.planner.settings, settle_s=0.0)
    monkeypatch.setattr(scheduler.planner, "settings", settled)
    pods = [owned(world, job) for _ in range(3)]
    turn(scheduler, lambda: "3 of 4 pods exist" in told(world, pods[0]))
    assert bound(world, pods) == 0
    pods.append(owned(world, job))
    turn(scheduler, lambda: bound(world, pods) == 4)


def test_groups_of_a_leader_worker_set_start_by_themselves(world, start) -> None:
    """A leader without many GPUs and its workers are one gang; what the next group lacks does not hold them up."""
    world.node()
    world.node()
    name, label = world.name("l"), "leaderworkerset.sigs.k8s.io/"
    path = world.custom("leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet", "leaderworkersets")
    body = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "metadata": {"name": name}}
    world.make(path, body | {"spec": {"replicas": 2, "leaderWorkerTemplate": {"size": 3}}})

    def member(group: int, number: int) -> dict:
        labels = {f"{label}name": name, f"{label}group-index": str(group), f"{label}worker-index": str(number)}
        return world.pod(f"{name}-{group}-{number}", gpus=3 if number else 1, labels=labels)

    scheduler = start()
    second = [member(1, 0)]
    first = [member(0, number) for number in range(3)]
    turn(scheduler, lambda: bound(world, first) == 3)
    second.append(member(1, 1))
    for _ in range(3):
        scheduler.step()
    assert bound(world, second) == 0
    second.append(member(1, 2))
    turn(scheduler, lambda: bound(world, second) == 3)


def eight_pods(name: str) -> dict:
    template = {"spec": make_pod("p")["spec"] | {"restartPolicy": "Never"}}
    spec = {"parallelism": 8, "completions": 8, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


def owned(world, job: dict) -> dict:
    """A pod as the job's controller makes it."""
    meta = job["metadata"]
    owner = {key: job[key] for key in ("apiVersion", "kind")} | {key: meta[key] for key in ("name", "uid")}
    raw = make_pod(world.name(f"{meta['name']}-p"))
    raw["metadata"]["ownerReferences"] = [owner | {"controller": True}]
    return world.make("/api/v1/namespaces/default/pods", raw)
