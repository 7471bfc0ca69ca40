"""What a drill breaks."""

import argparse
import signal
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from jaxsched.kube.cluster.api import ApiClient, pod_path
from tests.support.kube.control_plane import ControlPlane
from tests.support.kube.drill_pods import NAMESPACE, patient
from tests.support.kube.drill_process import Process
from tests.support.kube.drill_watcher import Watcher

FAULTS = (
    "none",
    "sigkill-self",
    "sigkill-apiserver",
    "watch-cut",
    "compaction",
    "leader-change",
    "cordon",
    "drain",
    "delete-node",
    "delete-gang",
)
DOWN_S = 2.0  # that a killed API server stays away


def uncordon(api: ApiClient) -> None:
    for node in patient(api, "GET", "/api/v1/nodes").body["items"]:
        if node["spec"].get("unschedulable"):
            patch = {"spec": {"unschedulable": None}}
            path, kind = f"/api/v1/nodes/{node['metadata']['name']}", "application/strategic-merge-patch+json"
            patient(api, "PATCH", path, patch, content=kind)


def wait_for_first_bind(api: ApiClient, large: set[str], limit_s: float = 40.0) -> None:
    """Until the first pod of one of these gangs is bound, seen by a watch: a moment in the middle of a gang."""
    version = api.request("GET", "/api/v1/pods").body["metadata"]["resourceVersion"]
    query = {"watch": "true", "resourceVersion": version, "timeoutSeconds": str(int(limit_s))}
    for event in api.stream("/api/v1/pods", query, limit_s):
        pod = event["object"]
        gang = pod.get("metadata", {}).get("labels", {}).get("scheduling.x-k8s.io/pod-group")
        if gang in large and event["type"] == "MODIFIED" and pod["spec"].get("nodeName"):
            return


def busiest(watcher: Watcher) -> str:
    return Counter(watcher.node_of.values()).most_common(1)[0][0]


def inject(
    args: argparse.Namespace,
    plane: ControlPlane,
    api: ApiClient,
    watcher: Watcher,
    processes: list[Process],
    gangs: list[tuple[str, int, int, float]],
) -> Process:
    """Break something; returns the process that should schedule from now on. The watcher is told the moment."""
    first = processes[0]
    match args.fault:
        case "none":
            watcher.strike()
        case "sigkill-self":
            wait_for_first_bind(api, {gang for gang, size, _, _ in gangs if size >= 6})
            first.kill(signal.SIGKILL)
            watcher.strike()
            return Process(args, "drill-c")
        case "leader-change":
            first.kill(signal.SIGKILL)
            watcher.strike()
            return processes[1]
        case "sigkill-apiserver" | "compaction":
            if args.fault == "compaction":
                plane.compact()
            watcher.strike()
            plane.restart(DOWN_S)  # after a compaction too: the server's watch cache would hide it
        case "watch-cut":
            args.relay.cut()
            watcher.strike()
        case "cordon" | "drain":
            node = busiest(watcher)
            path, kind = f"/api/v1/nodes/{node}", "application/strategic-merge-patch+json"
            patient(api, "PATCH", path, {"spec": {"unschedulable": True}}, content=kind)
            timer = threading.Timer(20.0, uncordon, [api])
            timer.daemon = True  # all may be bound, and the API server gone, before that
            timer.start()
            if args.fault == "drain":
                delete_pods(api, lambda pod: pod["spec"].get("nodeName") == node)
            watcher.strike()
        case "delete-node":
            patient(api, "DELETE", f"/api/v1/nodes/{busiest(watcher)}")
            watcher.strike()
        case "delete-gang":
            for gang, size, _, _ in gangs[args.gangs // 3 : args.gangs // 3 + 5]:
                watcher.ignore_half.add(gang)
                for index in range(size):
                    patient(api, "DELETE", pod_path(NAMESPACE, f"{gang}-{index}"), {"gracePeriodSeconds": 0})
            watcher.strike()
    return first


def delete_pods(api: ApiClient, which: Callable[[dict[str, Any]], bool]) -> None:
    for pod in patient(api, "GET", f"/api/v1/namespaces/{NAMESPACE}/pods").body["items"]:
        if which(pod) and pod["metadata"].get("labels", {}).get("drill"):
            patient(api, "DELETE", pod_path(NAMESPACE, pod["metadata"]["name"]), {"gracePeriodSeconds": 0})
