"""A drill on a real control plane: gangs are submitted over time, something is broken, every invariant is checked.

    python tests/kube/drill.py --kubeconfig F --nodes 8 --fault sigkill-self [--gangs 60] [--policy NAME]

Needs GPU nodes with kubelets (fake ones do, if they renew their Leases and play admission). It starts `jaxsched kube
run` itself, prints one JSON line and ends with 1 if an invariant was broken: every gang bound whole, no pod bound
twice, no node over capacity at any look, no pod rejected by a kubelet, no gang half-bound for longer than `--half-s`.
"""

import argparse
import atexit
import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from pathlib import Path

from jaxsched.kube.api import Api, Unreachable, connect, pod_path
from jaxsched.kube.quantity import to_units

GPU = "nvidia.com/gpu"
NAMESPACE = "default"
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


def patient(api: Api, method: str, path: str, body: object = None, **more: object) -> object:
    """A request that is repeated until somebody answers."""
    while True:
        try:
            answer = api.request(method, path, None, body, **more)
            if answer.status not in (429, 500, 502, 503, 504):
                return answer
        except Unreachable:
            pass
        time.sleep(0.5)


class Watcher(threading.Thread):
    """Polls all pods and checks the invariants at every look."""

    def __init__(self, api: Api, sizes: dict[str, int], half_s: float) -> None:
        super().__init__(daemon=True)
        self.api, self.sizes, self.half_s = api, sizes, half_s
        self.node_of: dict[str, str] = {}  # uid -> node, as first seen
        self.bound: dict[str, set[str]] = {}  # gang -> uids
        self.names: dict[str, set[str]] = {}  # gang -> names bound
        self.half_since: dict[str, float] = {}
        self.longest_half_s, self.broken = 0.0, []
        self.rejected = 0
        self.bound_times: list[float] = []
        self.deleted: set[str] = set()
        self.stop = threading.Event()
        self.ignore_half: set[str] = set()

    def run(self) -> None:
        while not self.stop.is_set():
            with contextlib.suppress(Unreachable):
                self.look()
            self.stop.wait(0.5)

    def look(self) -> None:
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
                    self.bound_times.append(now)
                self.names.setdefault(gang, set()).add(meta["name"])
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


class Process:
    """`jaxsched kube run` as a child."""

    def __init__(self, args: argparse.Namespace, name: str, port: int, *more: str) -> None:
        self.port, self.log = port, Path(args.logs) / f"{name}.log"
        command = [sys.executable, "-m", "jaxsched.cli", "kube", "run", "--kubeconfig", args.kubeconfig]
        command += ["--metrics-port", str(port), "--identity", name, "--patience-s", str(args.patience_s)]
        if args.policy.startswith("checkpoints/"):
            command += ["--checkpoint", args.policy]
        else:
            command += ["--policy", args.policy]
        self.child = subprocess.Popen([*command, *more], stderr=self.log.open("a"), stdout=self.log.open("a"))
        atexit.register(self.child.kill)

    def wait_ready(self, timeout_s: float = 180) -> None:
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            if self.child.poll() is not None:
                raise SystemExit(f"scheduler ended with {self.child.returncode}: {self.log.read_text()[-500:]}")
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=2) as answer:
                    if answer.status == 200:
                        return
            except OSError:
                time.sleep(0.3)
        raise SystemExit("the scheduler did not become ready")

    def metrics(self) -> dict[str, float]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as answer:
                lines = answer.read().decode().splitlines()
        except OSError:
            return {}
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")}

    def kill(self, number: int) -> None:
        self.child.send_signal(number)
        self.child.wait(60)


def submit(
    api: Api, gangs: list[tuple[str, int, int, float]], scheduler: str, every_s: float, stop: threading.Event
) -> None:
    for gang, size, gpus, seconds in gangs:
        for index in range(size):
            body = pod_body(gang, index, size, gpus, seconds, scheduler)
            patient(api, "POST", f"/api/v1/namespaces/{NAMESPACE}/pods", body)
        if stop.wait(every_s):
            return


def clean(api: Api) -> None:
    for _ in range(120):
        pods = patient(api, "GET", f"/api/v1/namespaces/{NAMESPACE}/pods").body["items"]
        ours = [p["metadata"]["name"] for p in pods if p["metadata"].get("labels", {}).get("drill")]
        if not ours:
            return
        for name in ours:
            patient(api, "DELETE", pod_path(NAMESPACE, name), {"gracePeriodSeconds": 0})
        time.sleep(0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kubeconfig", required=True)
    parser.add_argument("--fault", choices=FAULTS, default="none")
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--gangs", type=int, default=60)
    parser.add_argument("--policy", default="greedy-wait")
    parser.add_argument("--every-s", type=float, default=0.2, help="between two gangs")
    parser.add_argument("--seconds", type=float, default=2.0, help="mean run time of a gang")
    parser.add_argument("--patience-s", type=float, default=5.0)
    parser.add_argument("--half-s", type=float, default=60.0)
    parser.add_argument("--limit-s", type=float, default=240.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--logs", default="/tmp")
    parser.add_argument("--apiserver-restart", default="", help="shell command that starts a killed API server again")
    parser.add_argument("--apiserver-pid", default="", help="file with its process id")
    parser.add_argument("--etcd-compact", default="", help="shell command that compacts etcd")
    parser.add_argument("--foreign", type=int, default=4, help="pods of the default scheduler")
    args = parser.parse_args()

    api = connect(args.kubeconfig)
    clean(api)
    random.seed(args.seed)
    gangs = []
    for number in range(args.gangs):
        size = random.choice((1, 1, 2, 2, 3, 4, 4, 6, 8, 12, 16))
        gpus = random.choice([g for g in (1, 2, 4, 8) if size * g <= args.nodes * 8 // 2])
        gangs.append((f"g{number:03d}", size, gpus, round(random.uniform(0.5, 1.5) * args.seconds, 1)))
    sizes = {gang: size for gang, size, _, _ in gangs}
    watcher = Watcher(connect(args.kubeconfig), sizes, args.half_s)
    elect = ["--leader-elect", "--namespace", NAMESPACE] if args.fault == "leader-change" else []
    if args.fault == "watch-cut":
        args.relay = Relay(args.kubeconfig, Path(args.logs) / "relay.kubeconfig")
        args.kubeconfig = str(Path(args.logs) / "relay.kubeconfig")
    first = Process(args, "drill-a", 18081, *elect)
    first.wait_ready()
    others = []
    if elect:
        time.sleep(3)
        others.append(Process(args, "drill-b", 18082, *elect))
        others[0].wait_ready()
    for index in range(args.foreign):  # a second scheduler's pods must be counted
        body = pod_body(f"foreign{index}", 0, 1, 2, 1e4, "default-scheduler")
        body["metadata"]["annotations"].pop("jaxsched.io/fake-seconds")
        del body["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"]
        patient(api, "POST", f"/api/v1/namespaces/{NAMESPACE}/pods", body)
    watcher.start()
    began, stop = time.time(), threading.Event()
    feeder = threading.Thread(
        target=submit, args=(connect(args.kubeconfig), gangs, "jaxsched", args.every_s, stop), daemon=True
    )
    feeder.start()
    while len(watcher.names) < args.gangs // 4 and time.time() - began < args.limit_s:
        time.sleep(0.1)
    struck = time.time()
    current = inject(args, api, watcher, first, others, gangs)
    at_strike = len(watcher.node_of)
    recovered = None
    while time.time() - began < args.limit_s:
        if (
            recovered is None
            and any(t > struck + 0.5 for t in watcher.bound_times)
            and len(watcher.node_of) > at_strike
        ):
            recovered = min(t for t in watcher.bound_times if t > struck + 0.5) - struck
        if not feeder.is_alive() and watcher.whole():
            break
        if current.child.poll() is not None:
            watcher.broken.append(f"the scheduler ended with {current.child.returncode}")
            break
        time.sleep(0.2)
    took = time.time() - began
    watcher.stop.set()
    watcher.join(10)
    unbound = {g: f"{len(watcher.names.get(g, ()))}/{s}" for g, s in sizes.items() if len(watcher.names.get(g, ())) < s}
    unbound = {g: text for g, text in unbound.items() if g not in watcher.ignore_half}
    if unbound:
        watcher.broken.append(f"not bound whole: {unbound}")
    if watcher.longest_half_s > args.half_s:
        watcher.broken.append(f"a gang was half-bound for {watcher.longest_half_s:.1f} s")
    numbers = current.metrics()
    for process in [first, *others, current]:
        if process.child.poll() is None:
            process.kill(signal.SIGTERM)
    uncordon(api)
    clean(api)
    result = {
        "fault": args.fault,
        "nodes": args.nodes,
        "policy": args.policy,
        "gangs": args.gangs,
        "pods": sum(sizes.values()),
        "bound_whole": args.gangs - len(unbound),
        "seconds": round(took, 1),
        "first_bind_after_fault_s": None if recovered is None else round(recovered, 1),
        "longest_half_bound_s": round(watcher.longest_half_s, 1),
        "rejected": watcher.rejected,
        "binds": {k.split('"')[1]: v for k, v in numbers.items() if k.startswith("jaxsched_pod_binds_total")},
        "broken": watcher.broken[:5],
    }
    print(json.dumps(result), flush=True)
    sys.exit(1 if watcher.broken else 0)


def uncordon(api: Api) -> None:
    for node in patient(api, "GET", "/api/v1/nodes").body["items"]:
        if node["spec"].get("unschedulable"):
            patch = {"spec": {"unschedulable": None}}
            path, kind = f"/api/v1/nodes/{node['metadata']['name']}", "application/strategic-merge-patch+json"
            patient(api, "PATCH", path, patch, content=kind)


def wait_for_first_bind(api: Api, large: set[str], limit_s: float = 40.0) -> None:
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
    args: argparse.Namespace, api: Api, watcher: Watcher, first: Process, others: list[Process], gangs: list
) -> Process:
    """Break something; returns the process that should schedule from now on."""
    match args.fault:
        case "sigkill-self":
            wait_for_first_bind(api, {gang for gang, size, _, _ in gangs if size >= 6})
            first.kill(signal.SIGKILL)
            second = Process(args, "drill-c", 18083)
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


def delete_pods(api: Api, watcher: Watcher, which: object) -> None:
    for pod in patient(api, "GET", f"/api/v1/namespaces/{NAMESPACE}/pods").body["items"]:
        if which(pod) and pod["metadata"].get("labels", {}).get("drill"):
            patient(api, "DELETE", pod_path(NAMESPACE, pod["metadata"]["name"]), {"gracePeriodSeconds": 0})


class Relay:
    """A TCP relay in front of the API server whose connections can be cut."""

    def __init__(self, kubeconfig: str, out: Path) -> None:
        text = Path(kubeconfig).read_text()
        match = re.search(r"https://127.0.0.1:([0-9]+)", text)
        self.target = int(match[1])
        self.server = socket.create_server(("127.0.0.1", 0))
        self.open: list[socket.socket] = []
        out.write_text(text.replace(match[0], f"https://127.0.0.1:{self.server.getsockname()[1]}"))
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            near, _ = self.server.accept()
            try:
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                near.close()
                continue
            self.open += [near, far]
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self.pump, args=(one, other), daemon=True).start()

    def pump(self, one: socket.socket, other: socket.socket) -> None:
        try:
            while data := one.recv(65536):
                other.sendall(data)
        except OSError:
            pass
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        for end in self.open:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self.open.clear()


if __name__ == "__main__":
    main()
