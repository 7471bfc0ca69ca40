"""The look at the cluster during a drill, and the invariants."""

import contextlib
import threading
import time
from collections import Counter

from jaxsched.kube.cluster.api import ApiClient, Unreachable
from jaxsched.kube.read.objects import to_units
from tests.support.kube.drill_pods import GPU

LOOK_S = 0.25  # between two looks


class Watcher(threading.Thread):
    """Polls all pods and checks the invariants at every look."""

    def __init__(self, api: ApiClient, sizes: dict[str, int], half_s: float) -> None:
        super().__init__(daemon=True)
        self.api, self.sizes, self.half_s = api, sizes, half_s
        self.node_of: dict[str, str] = {}  # uid -> node, as first seen
        self.bound: dict[str, set[str]] = {}  # gang -> uids
        self.names: dict[str, set[str]] = {}  # gang -> names bound
        self.half_since: dict[str, float] = {}
        self.longest_half_s, self.broken = 0.0, []
        self.rejected = 0
        self.struck_s: float | None = None  # when something was broken
        self.bound_by_then: int | None = None  # pods, at the first look after that
        self.recovered_s: float | None = None  # from then to the look that showed the next bound pod
        self.deleted: set[str] = set()
        self.stop = threading.Event()
        self.ignore_half: set[str] = set()

    def run(self) -> None:
        while not self.stop.is_set():
            with contextlib.suppress(Unreachable):
                self.look()
            self.stop.wait(LOOK_S)

    def strike(self) -> None:
        """Something has just been broken."""
        self.struck_s = time.time()

    def look(self) -> None:
        began = time.time()
        pods = self.api.request("GET", "/api/v1/pods", read_s=60)
        nodes = self.api.request("GET", "/api/v1/nodes", read_s=60)
        if not pods.ok or not nodes.ok:
            return
        capacity = {
            n["metadata"]["name"]: to_units(n["status"]["allocatable"].get(GPU, 0)) for n in nodes.body["items"]
        }
        used: Counter = Counter()
        now, alive = time.time(), Counter()
        for pod in pods.body["items"]:
            meta, spec, status = pod["metadata"], pod["spec"], pod.get("status", {})
            gang = meta.get("labels", {}).get("scheduling.x-k8s.io/pod-group")
            node, uid = spec.get("nodeName"), meta["uid"]
            out_of = status.get("phase") == "Failed" and str(status.get("reason", "")).startswith("OutOf")
            if out_of and uid not in self.deleted:
                self.rejected += 1
                self.deleted.add(uid)
                self.broken.append(f"{meta['name']} rejected: {status.get('message')}")
            if node and status.get("phase") not in ("Succeeded", "Failed"):
                used[node] += sum(to_units(c["resources"]["limits"].get(GPU, 0)) for c in spec["containers"])
            if gang not in self.sizes:
                continue
            alive[gang] += 1
            if node:
                if self.node_of.setdefault(uid, node) != node:
                    self.broken.append(f"{meta['name']} moved from {self.node_of[uid]} to {node}")
                if uid not in self.bound.setdefault(gang, set()):
                    self.bound[gang].add(uid)
                self.names.setdefault(gang, set()).add(meta["name"])
        if self.struck_s is not None and began > self.struck_s and self.recovered_s is None:
            if self.bound_by_then is None:
                self.bound_by_then = len(self.node_of)
            elif len(self.node_of) > self.bound_by_then:
                self.recovered_s = round(now - self.struck_s, 1)
        for node, gpus in used.items():
            if node in capacity and gpus > capacity[node]:
                self.broken.append(f"{node}: {gpus} of {capacity[node]} GPUs")
        for gang, size in self.sizes.items():
            half = 0 < len(self.names.get(gang, ())) < size and gang not in self.ignore_half
            if half:
                since = self.half_since.setdefault(gang, now)
                self.longest_half_s = max(self.longest_half_s, now - since)
            elif gang in self.half_since:
                del self.half_since[gang]

    def whole(self) -> bool:
        return all(
            len(self.names.get(gang, ())) >= size for gang, size in self.sizes.items() if gang not in self.ignore_half
        )
