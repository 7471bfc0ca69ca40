"""Raw API objects for tests."""

import time

GPU = "nvidia.com/gpu"


def make_node(name: str, gpus: object = 8, rack: str = "r0", block: str = "b0", ready: bool = True, **more) -> dict:
    labels = {"cloud.provider.com/topology-rack": rack, "cloud.provider.com/topology-block": block}
    allocatable = {"cpu": "64", "memory": "512Gi", "pods": "110"} | ({GPU: str(gpus)} if gpus is not None else {})
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": labels | more.pop("labels", {})},
        "spec": {"taints": more.pop("taints", [])} | more.pop("spec", {}),
        "status": {
            "allocatable": allocatable | more.pop("allocatable", {}),
            "capacity": allocatable,
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }


def make_pod(
    name: str,
    gpus: object = 1,
    gang: str = "",
    size: int = 0,
    scheduler: str = "jaxsched",
    node: str = "",
    uid: str = "",
    age_s: float = 60.0,
    requests: dict | None = None,
    spec: dict | None = None,
    labels: dict | None = None,
    annotations: dict | None = None,
    finalizers: list | None = None,
    namespace: str = "default",
) -> dict:
    resources = {"cpu": "2", "memory": "4Gi"} | (requests or {}) | ({GPU: str(gpus)} if gpus is not None else {})
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(NOW - age_s))
    meta = {
        "name": name,
        "namespace": namespace,
        "labels": ({"scheduling.x-k8s.io/pod-group": gang} if gang else {}) | (labels or {}),
        "annotations": ({"jaxsched.io/gang-size": str(size)} if size else {}) | (annotations or {}),
        "creationTimestamp": created,
    }
    meta |= {"uid": uid} if uid else {}
    meta |= {"finalizers": finalizers} if finalizers else {}
    container = {"name": "main", "image": "none", "resources": {"requests": resources, "limits": resources}}
    return {
        "metadata": meta,
        "spec": {
            "schedulerName": scheduler,
            "automountServiceAccountToken": False,
            "containers": [container],
            **({"nodeName": node} if node else {}),
            **(spec or {}),
        },
        "status": {"phase": "Running" if node else "Pending"},
    }


NOW = 1_800_000_000.0
