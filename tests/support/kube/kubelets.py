"""Fake kubelets: python -m tests.support.kube.kubelets KUBECONFIG NODES

Creates GPU nodes, renews their Leases, admits or rejects bound pods as a kubelet does, and ends those with the
annotation `jaxsched.io/fake-seconds` after that time.
"""

import datetime
import sys
import threading
import time
from typing import Any

from jaxsched.kube.cluster.api import ApiClient, Unreachable, connect, pod_path
from tests.support.kube.drill_pods import GPU, patient
from tests.support.kube.objects import make_node

GPUS = 8
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
MERGE = "application/strategic-merge-patch+json"
RENEW_S = 10.0


def now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class Kubelets:
    """All nodes' kubelets: `register`, then `renew` and `run`, each of which goes on for ever."""

    def __init__(self, api: ApiClient, count: int) -> None:
        self.api = api
        self.used: dict[str, dict[str, int]] = {f"gpu-{i:04d}": {} for i in range(count)}
        self.admitted: set[str] = set()

    def register(self) -> None:
        for i, name in enumerate(self.used):
            node = make_node(name, GPUS, rack=f"r{i // 4}", block=f"b{i // 8}")
            node["metadata"]["labels"]["kubernetes.io/hostname"] = name
            patient(self.api, "POST", "/api/v1/nodes", node)
            patient(self.api, "POST", LEASES, {"metadata": {"name": name}, "spec": self.lease(name)})

    def lease(self, name: str) -> dict[str, Any]:
        return {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": now()}

    def renew(self) -> None:
        while True:
            time.sleep(RENEW_S)
            for name in self.used:
                patient(self.api, "PATCH", f"{LEASES}/{name}", {"spec": self.lease(name)}, content=MERGE)

    def run(self) -> None:
        while True:
            try:
                listed = patient(self.api, "GET", "/api/v1/pods").body
                for pod in listed["items"]:
                    self.see("ADDED", pod)
                query = {"watch": "true", "resourceVersion": listed["metadata"]["resourceVersion"]}
                for event in self.api.stream("/api/v1/pods", query, 60.0):
                    if event["type"] == "ERROR":
                        break
                    self.see(event["type"], event["object"])
            except Unreachable:
                time.sleep(0.5)

    def see(self, what: str, pod: dict[str, Any]) -> None:
        meta, node, phase = pod["metadata"], pod["spec"].get("nodeName"), pod["status"].get("phase")
        if node not in self.used:
            return
        if what == "DELETED" or phase in ("Succeeded", "Failed"):
            self.used[node].pop(meta["uid"], None)
        elif meta.get("deletionTimestamp"):
            patient(self.api, "DELETE", pod_path(meta["namespace"], meta["name"]), {"gracePeriodSeconds": 0})
        elif phase == "Pending" and meta["uid"] not in self.admitted:
            self.admit(node, pod)

    def admit(self, node: str, pod: dict[str, Any]) -> None:
        meta, used = pod["metadata"], self.used[node]
        self.admitted.add(meta["uid"])
        gpus = sum(int(c["resources"].get("limits", {}).get(GPU, 0)) for c in pod["spec"]["containers"])
        if gpus + sum(used.values()) > GPUS:
            words = f"Pod was rejected: {GPU}, requested: {gpus}, used: {sum(used.values())}, capacity: {GPUS}"
            self.write(pod, {"phase": "Failed", "reason": f"OutOf{GPU}", "message": words})
            return
        used[meta["uid"]] = gpus
        ready = [{"type": "Ready", "status": "True"}]
        self.write(pod, {"phase": "Running", "startTime": now(), "conditions": ready})
        if seconds := meta.get("annotations", {}).get("jaxsched.io/fake-seconds"):
            timer = threading.Timer(float(seconds), self.write, [pod, {"phase": "Succeeded"}])
            timer.daemon = True
            timer.start()

    def write(self, pod: dict[str, Any], status: dict[str, Any]) -> None:
        meta = pod["metadata"]
        body = {"metadata": {"uid": meta["uid"]}, "status": status}
        patient(self.api, "PATCH", pod_path(meta["namespace"], meta["name"], "status"), body, content=MERGE)


def main(kubeconfig: str, count: int) -> None:
    kubelets = Kubelets(connect(kubeconfig), count)
    kubelets.register()
    threading.Thread(target=kubelets.renew, daemon=True).start()
    kubelets.run()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
