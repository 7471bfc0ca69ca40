"""What a drill breaks."""

import argparse
import os
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxsched.kube.cluster.api import ApiClient, connect, pod_path
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
    args: argparse.Namespace, api: ApiClient, watcher: Watcher, first: Process, others: list[Process], gangs: list
) -> Process:
    """Break something; returns the process that should schedule from now on."""
    match args.fault:
        case "sigkill-self":
            wait_for_first_bind(api, {gang for gang, size, _, _ in gangs if size >= 6})
            first.kill(signal.SIGKILL)
            second = Process(args, "drill-c")
            return second
        case "leader-change":
            first.kill(signal.SIGKILL)
            return others[0]
        case "sigkill-apiserver":
            os.kill(int(Path(args.apiserver_pid).read_text()), signal.SIGKILL)
            time.sleep(2)
            subprocess.run(args.apiserver_restart, shell=True, check=True, stdout=subprocess.DEVNULL)
        case "compaction":
            subprocess.run(args.etcd_compact, shell=True, check=True, stdout=subprocess.DEVNULL)
            os.kill(int(Path(args.apiserver_pid).read_text()), signal.SIGKILL)  # its watch cache would hide it
            time.sleep(2)
            subprocess.run(args.apiserver_restart, shell=True, check=True, stdout=subprocess.DEVNULL)
        case "watch-cut":
            args.relay.cut()
        case "cordon" | "drain":
            node = busiest(watcher)
            path, kind = f"/api/v1/nodes/{node}", "application/strategic-merge-patch+json"
            patient(api, "PATCH", path, {"spec": {"unschedulable": True}}, content=kind)
            threading.Timer(20.0, uncordon, [connect(args.kubeconfig)]).start()
            if args.fault == "drain":
                delete_pods(api, watcher, lambda pod: pod["spec"].get("nodeName") == node)
        case "delete-node":
            patient(api, "DELETE", f"/api/v1/nodes/{busiest(watcher)}")
        case "delete-gang":
            for gang, size, _, _ in gangs[args.gangs // 3 : args.gangs // 3 + 5]:
                watcher.ignore_half.add(gang)
                for index in range(size):
                    patient(api, "DELETE", pod_path(NAMESPACE, f"{gang}-{index}"), {"gracePeriodSeconds": 0})
    return first


def delete_pods(api: ApiClient, watcher: Watcher, which: Callable[[dict[str, Any]], bool]) -> None:
    for pod in patient(api, "GET", f"/api/v1/namespaces/{NAMESPACE}/pods").body["items"]:
        if which(pod) and pod["metadata"].get("labels", {}).get("drill"):
            patient(api, "DELETE", pod_path(NAMESPACE, pod["metadata"]["name"]), {"gracePeriodSeconds": 0})
