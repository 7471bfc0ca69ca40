"""Raw Kubernetes objects from numbers alone: snapshots for plans, and recordings for replays."""

import json
import random
import time
from pathlib import Path

NOW = 1_800_000_000.0
GPU = "nvidia.com/gpu"
TAINT = {"key": "dedicated", "value": "a", "effect": "NoSchedule"}


def node(rng: random.Random, number: int) -> dict:
    """A node in a rack; some are cordoned, tainted, or have few GPUs."""
    gpus = rng.choice((8, 8, 8, 4, 2))
    allocatable = {"cpu": rng.choice(("64", "64", "12")), "memory": "512Gi", "pods": "110", GPU: str(gpus)}
    labels = {"cloud.provider.com/topology-rack": f"r{number // 2}", "cloud.provider.com/topology-block": "b0"}
    labels |= {"zone": rng.choice("ab"), "nvidia.com/gpu.product": rng.choice(("V100", "V100", "A100"))}
    return {
        "metadata": {"name": f"n{number}", "uid": f"uid-n{number}", "labels": labels},
        "spec": {"taints": [TAINT] if rng.random() < 0.15 else [], "unschedulable": rng.random() < 0.1},
        "status": {
            "allocatable": allocatable,
            "capacity": allocatable,
            "conditions": [{"type": "Ready", "status": "True" if rng.random() < 0.95 else "False"}],
        },
    }


def gang(rng: random.Random, name: str, age_s: float) -> list[dict]:
    """The pods of a gang, none of them bound."""
    size, gpus = rng.choice((1, 1, 2, 2, 3, 4, 8)), rng.choice((1, 1, 2, 4, 8))
    resources = {"cpu": rng.choice(("2", "500m", "16")), "memory": "4Gi", GPU: str(gpus)}
    spec = {
        "schedulerName": "jaxsched",
        "priority": rng.choice((0, 0, 0, 10)),
        "containers": [{"name": "main", "image": "none", "resources": {"requests": resources, "limits": resources}}],
    }
    if rng.random() < 0.2:
        spec["nodeSelector"] = {"zone": rng.choice("ab")}
    if rng.random() < 0.3:
        spec["tolerations"] = [{"key": "dedicated", "operator": "Exists"}]
    notes = {"jaxsched.io/gang-size": str(size), "jaxsched.io/duration-seconds": str(rng.choice((300, 900, 3000)))}
    notes |= {"jaxsched.io/model": rng.choice(("resnet50", "vgg16"))} if rng.random() < 0.5 else {}
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(NOW - age_s))
    return [
        {
            "metadata": {
                "name": f"{name}-{number}",
                "namespace": "default",
                "uid": f"uid-{name}-{number}",
                "labels": {"scheduling.x-k8s.io/pod-group": name},
                "annotations": notes,
                "creationTimestamp": created,
            },
            "spec": dict(spec),
            "status": {"phase": "Pending"},
        }
        for number in range(size)
    ]


def random_snapshot(rng: random.Random) -> tuple[list[dict], list[dict]]:
    """Nodes and pods; some gangs run already, wherever they fit by GPUs."""
    nodes = [node(rng, number) for number in range(rng.randint(2, 8))]
    free = {one["metadata"]["name"]: int(one["status"]["allocatable"][GPU]) for one in nodes}
    pods = []
    for number in range(rng.randint(1, 10)):
        mine = gang(rng, f"g{number}", age_s=rng.choice((10.0, 60.0, 5000.0)))
        if rng.random() < 0.35:
            _bind(rng, mine, free)
        pods += mine
    return nodes, pods


def _bind(rng: random.Random, pods: list[dict], free: dict[str, int]) -> None:
    """Each to a node that has the GPUs; none if some has none."""
    left, where = dict(free), []
    for pod in pods:
        gpus = int(pod["spec"]["containers"][0]["resources"]["limits"][GPU])
        places = [name for name, units in left.items() if units >= gpus]
        if not places:
            return
        where.append(rng.choice(places))
        left[where[-1]] -= gpus
    free.update(left)
    for pod, name in zip(pods, where, strict=True):
        pod["spec"]["nodeName"], pod["status"]["phase"] = name, "Running"


def write_recording(path: Path, seed: int) -> Path:
    """An hour of gangs that come, are bound, and go; some wait at its end."""
    rng = random.Random(1000 + seed)
    nodes = [node(rng, number) for number in range(6)]
    for one in nodes:
        one["spec"] = {"taints": []}
        one["status"]["conditions"][0]["status"] = "True"
    lines = [(NOW, "nodes", "ADDED", one) for one in nodes]
    for number in range(14):
        come = NOW + rng.randint(0, 3000)
        pods = gang(rng, f"g{number}", age_s=NOW - come)
        free = {one["metadata"]["name"]: int(one["status"]["allocatable"][GPU]) for one in nodes}
        lines += [(come, "pods", "ADDED", json.loads(json.dumps(pod))) for pod in pods]
        _bind(rng, pods, free)
        if "nodeName" not in pods[0]["spec"] or rng.random() < 0.2:
            continue
        begin, end = come + rng.randint(1, 300), come + rng.randint(400, 2500)
        places = {f"default/{pod['metadata']['name']}": pod["spec"]["nodeName"] for pod in pods}
        lines.append((begin, "plan", "", {f"default/scheduling.x-k8s.io/g{number}": places}))
        lines += [(begin, "pods", "MODIFIED", pod) for pod in pods]
        if end < NOW + 3600:
            lines += [(end, "pods", "DELETED", {"metadata": {"uid": pod["metadata"]["uid"]}}) for pod in pods]
    said = []
    for at, kind, what, thing in sorted(lines, key=lambda line: line[0]):
        event = {"placements": thing} if kind == "plan" else {"type": what, "object": thing}
        said.append(json.dumps({"t": at, "kind": kind, **event}) + "\n")
    path.write_text("".join(said), encoding="utf-8")
    return path
