"""A running scheduler, turned by hand."""

import time

from jaxsched.kube.cluster.app import Scheduler


def turn(scheduler: Scheduler, check, seconds: float = 30.0) -> None:
    """Step until `check` holds."""
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, "did not happen in time"
        scheduler.step()
        scheduler.dirty.wait(0.2)


def gang(world, size: int, gpus: int, count: int = -1, **more) -> list[dict]:
    name = world.name("g")
    return [
        world.pod(f"{name}-{i}", gpus=gpus, gang=name, size=size, **more) for i in range(size if count < 0 else count)
    ]


def node_of(world, pod: dict) -> str:
    return world.get(pod)["spec"].get("nodeName", "")


def bound(world, pods: list[dict]) -> int:
    return sum(bool(node_of(world, pod)) for pod in pods)


def told(world, pod: dict) -> str:
    """The message of its condition PodScheduled."""
    conditions = world.get(pod)["status"].get("conditions") or []
    return next((one.get("message", "") for one in conditions if one["type"] == "PodScheduled"), "")
