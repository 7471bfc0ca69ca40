"""The pods of a drill: submitted over time, and cleaned up, however long the API server is away."""

import threading
import time
from typing import Any

from jaxsched.kube.cluster.api import ApiClient, Response, Unreachable

GPU = "nvidia.com/gpu"
NAMESPACE = "default"


def pod_body(gang: str, index: int, size: int, gpus: int, seconds: float, scheduler: str) -> dict:
    limits = {"cpu": "2", "memory": "4Gi", GPU: str(gpus)}
    return {
        "metadata": {
            "name": f"{gang}-{index}",
            "labels": {"drill": "1", "scheduling.x-k8s.io/pod-group": gang},
            "annotations": {
                "jaxsched.io/gang-size": str(size),
                "jaxsched.io/duration-seconds": str(seconds),
                "jaxsched.io/fake-seconds": str(seconds),
            },
        },
        "spec": {
            "schedulerName": scheduler,
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "containers": [{"name": "main", "image": "none", "resources": {"limits": limits, "requests": limits}}],
        },
    }


def patient(api: ApiClient, method: str, path: str, body: object = None, **more: Any) -> Response:
    """A request that is repeated until somebody answers."""
    while True:
        try:
            response = api.request(method, path, None, body, **more)
            if response.status not in (429, 500, 502, 503, 504):
                return response
        except Unreachable:
            pass
        time.sleep(0.5)


def submit(
    api: ApiClient, gangs: list[tuple[str, int, int, float]], scheduler: str, every_s: float, stop: threading.Event
) -> None:
    for gang, size, gpus, seconds in gangs:
        for index in range(size):
            body = pod_body(gang, index, size, gpus, seconds, scheduler)
            patient(api, "POST", f"/api/v1/namespaces/{NAMESPACE}/pods", body)
        if stop.wait(every_s):
            return
