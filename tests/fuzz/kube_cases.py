"""Hostile pods, nodes, PodGroups and claims as an API server could send them, and a policy that needs no compiler."""

import copy
import json
import random
from typing import Any

import numpy as np

from jaxsched.kube.policy import Decision
from jaxsched.policies.policy import Policy
from tests.fuzz.mutations import CELLS
from tests.support.kube.objects import make_node, make_pod

ANNOTATIONS = (
    "jaxsched.io/model",
    "jaxsched.io/duration-seconds",
    "jaxsched.io/gang-size",
    "jaxsched.io/gpu-group",
    "jaxsched.io/role",
    "scheduling.k8s.io/group-name",
    "kueue.x-k8s.io/pod-group-total-count",
)
LABELS = (
    "scheduling.x-k8s.io/pod-group",
    "pod-group.scheduling.sigs.k8s.io/min-available",
    "kueue.x-k8s.io/pod-group-name",
    "jobset.sigs.k8s.io/jobset-name",
    "training.kubeflow.org/replica-type",
    "jaxsched.io/gpu-groups",
    "nvidia.com/gpu.product",
    "cloud.provider.com/topology-rack",
    "zone",
)
TEXTS = [text for text in CELLS if "\ud800" not in text] + [
    *("000000001999999999", "1999999999", "4096", "4097", "-1", "1e-9", "1e99", "NaN", "Infinity", "1_000", " 4 "),
    *(
        "٣",
        "²",
        "g\nFAKE log line",
        "0-1",
        "4-4",
        "1-1-1-1-1-1-1-1",
        "999-999",
        "-" * 300,
        "1-" * 3000 + "1",
        "g" * 5000,
    ),
    *("2026-11-23T00:00:00Z", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00+23:59", "not a time", "1969-12-31T23:59:59"),
    *("16Ei", "1e18", "9223372036854775807", "4611686018427387904", "500m", "1n", "-1", "1e400", "0.0000001"),
    *("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Equal", "NoSchedule", "Always", "Running", "Failed"),
]
ODD: list[Any] = [
    *(None, True, False, 0, 1, -1, 2**31, -(2**31) - 1, 2**63, 2**64, 10**30, 1e300, float("nan"), float("inf"), 0.5),
    *([], {}, [[]], [{}], [None], {"": None}, {"a": {"b": []}}, ["a"], "", "a", "x" * 3000, {"key": []}),
]
EXPRESSION = {"key": "zone", "operator": "Gt", "values": ["5"]}
AFFINITY = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [EXPRESSION]}]}
    }
}
KINDS = ("pods", "nodes", "podgroups", "persistentvolumeclaims", "persistentvolumes")


def hostile(rng: random.Random, number: int) -> tuple[str, dict[str, Any]]:
    """The store that it belongs in, and an object that began as a good one."""
    kind = rng.choices(KINDS, (12, 3, 2, 1, 1))[0]
    raw = dict(zip(KINDS, (_pod, _node, _group, _claim, _volume), strict=True))[kind](rng, number)
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        spoil(rng, raw)
    return kind, raw


def line(rng: random.Random, raw: Any) -> bytes:
    """A line of a watch; now and then with digits, depth or text that no object has."""
    event = {"type": rng.choice(("ADDED", "MODIFIED", "MODIFIED", "DELETED", "BOOKMARK", "?")), "object": raw}
    text = json.dumps(rng.choice((event, event, event, event, raw, [event], {**event, "type": rng.choice(ODD)})))
    if rng.random() < 0.05:
        text = text.replace("null", "9" * 5000).replace("0.5", "[" * 3000 + "]" * 3000)
    return text.encode()


class PackPolicy:
    """Stands in for `GuardedPolicy`: places the first gang of each queue as its counts say, in NumPy."""

    main, fallback, compilations, compile_s = Policy("pack", print), Policy("fallback", print), 0, 0.0
    on_ready = print

    def prepare(self, fleet: object) -> None:
        """Nothing to compile."""

    def is_ready(self, fleet: object) -> bool:
        """Always."""
        return True

    def begin(self, fleet: object, arrays: Any, merged: bool, fallback: bool = False) -> "PackRounds":
        """Anything, as long as it is numbers."""
        assert all(np.isfinite(leaf).all() for leaf in (arrays.remaining_s, arrays.attained_s, arrays.jobs.duration_s))
        return PackRounds(arrays)


class PackRounds:
    """Queues, of which gangs are taken away as they are placed."""

    def __init__(self, arrays: Any) -> None:
        self.arrays, self.queues = arrays, [list(row[row >= 0]) for row in arrays.queue]

    def decide(self, free: np.ndarray, seed: int) -> Decision:
        """The oldest gang of each partition, wherever there is room."""
        arrays, queues = self.arrays, self.queues
        placed, rows = np.zeros(len(queues), bool), np.zeros(len(queues), np.int32)
        workers = np.zeros(free.shape, np.int32)
        for partition, queue in enumerate(queues):
            if queue:
                rows[partition] = row = queue.pop(0)
                left, each = int(arrays.jobs.workers[row]), int(arrays.jobs.gpus_per_worker[row])
                for at in np.ndindex(*free.shape[1:]):
                    take = min(left, int(free[partition][at]) // each)
                    workers[partition][at], left = take, left - take
                placed[partition] = left == 0
        moved = any(queues)
        return Decision(placed, moved, rows, workers, np.zeros_like(workers))


def _pod(rng: random.Random, number: int) -> dict[str, Any]:
    gang = rng.choice(("", "g", "h"))
    raw = make_pod(f"p{number}", rng.choice((0, 1, 2, 8, 16, 200)), gang, rng.choice((0, 0, 1, 2)), uid=f"u{number}")
    meta, spec = raw["metadata"], raw["spec"]
    for key in rng.sample(ANNOTATIONS, rng.choice((0, 1, 1, 2))):
        meta["annotations"][key] = rng.choice(TEXTS)
    for key in rng.sample(LABELS, rng.choice((0, 1, 1))):
        meta["labels"][key] = rng.choice(TEXTS)
    if rng.random() < 0.3:
        spec["affinity"] = copy.deepcopy(AFFINITY)
    if rng.random() < 0.3:
        spec["tolerations"] = [{"key": "a", "operator": "Equal", "value": "b", "effect": "NoSchedule"}]
    if rng.random() < 0.2:
        spec["containers"] = spec["containers"] * rng.choice((2, 5))
    if rng.random() < 0.2:
        spec["nodeName"] = rng.choice(("n0", "n1", "nowhere"))
    if rng.random() < 0.3:
        meta["ownerReferences"] = [{"kind": "Job", "uid": "j", "controller": True}]
    if rng.random() < 0.2:
        spec["volumes"] = [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]
    return raw


def _node(rng: random.Random, number: int) -> dict[str, Any]:
    raw = make_node(rng.choice(("n0", f"m{number}")), rng.choice((0, 1, 8, 127, 128)), spec={"unschedulable": False})
    raw["metadata"]["labels"][rng.choice(LABELS)] = rng.choice(TEXTS)
    raw["spec"]["taints"] = rng.choice(([], [{"key": "a", "effect": "NoSchedule", "value": "b"}]))
    raw["metadata"]["uid"] = f"node{number}"
    return raw


def _group(rng: random.Random, number: int) -> dict[str, Any]:
    meta = {"name": rng.choice(("g", "h")), "namespace": "default", "uid": f"group{number}"}
    spec = rng.choice(({"minMember": 2}, {"schedulingPolicy": {"gang": {"minCount": 2}}}))
    return {"apiVersion": rng.choice(("scheduling.x-k8s.io/v1alpha1", "x")), "metadata": meta, "spec": spec}


def _claim(rng: random.Random, number: int) -> dict[str, Any]:
    return {
        "metadata": {"name": "c", "namespace": "default", "uid": f"claim{number}", "annotations": {}},
        "spec": {"volumeName": "v", "accessModes": ["ReadWriteOncePod"]},
        "status": {"phase": "Bound"},
    }


def _volume(rng: random.Random, number: int) -> dict[str, Any]:
    term = {"matchExpressions": [copy.deepcopy(EXPRESSION)]}
    meta = {"name": "v", "uid": f"volume{number}", "labels": {"topology.kubernetes.io/zone": "a__b"}}
    return {"metadata": meta, "spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}}}


def spoil(rng: random.Random, raw: Any) -> None:
    """Some value, anywhere in an object, is another one, or gone; identities stay."""
    places = [(parent, key) for parent, key in _places(raw) if key != "uid"]
    if not places:
        return
    parent, key = rng.choice(places)
    if rng.random() < 0.15:
        del parent[key]
    else:
        parent[key] = copy.deepcopy(rng.choice(ODD) if rng.random() < 0.6 else rng.choice(TEXTS))


def _places(raw: Any) -> list[tuple[Any, Any]]:
    entries = raw.items() if isinstance(raw, dict) else enumerate(raw) if isinstance(raw, list) else ()
    return [place for key, value in entries for place in ((raw, key), *_places(value))]
