"""Calls that several parts of the contract suite make."""

import time

from jaxsched.kube.capacity.free_capacity import Assignment
from jaxsched.kube.cluster.api import pod_path
from jaxsched.kube.cluster.binder import binding
from jaxsched.kube.read.objects import read_pod

MERGE = "application/strategic-merge-patch+json"


def assignment(pod: dict, node: str) -> Assignment:
    return Assignment(read_pod(pod), node, (0, 1))


def post(world, pod: dict, node: str, uid: str = "", query: dict | None = None):
    body = binding(assignment(pod, node), "d1", "test")
    body["metadata"]["uid"] = uid or body["metadata"]["uid"]
    return world.api.request("POST", pod_path("default", pod["metadata"]["name"], "binding"), query, body)


def eventually(check, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.05)
