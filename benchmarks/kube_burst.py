"""The bursts of docs/kubernetes.md: python -m benchmarks.kube_burst [SCHEDULER ...]

One API server, from the folder KUBEBUILDER_ASSETS, with 1,000 fake nodes of 8 GPUs and no kubelets. For each scheduler
in turn: 1,000 pods wait when it is started (cold); 1,000 are created while it is idle (burst); 1,000 more of 8 GPUs are
created, more than fit (full). A SCHEDULER is `kube-scheduler`, `kube-scheduler:unthrottled` (1,000 requests a second
instead of 50), a policy or a checkpoint; `POLICY:gangs` gives it the same pods in gangs of 8.
"""

import argparse
import concurrent.futures
import contextlib
import json
import os
import random
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

from jaxsched.kube.cluster.api import ApiClient, Unreachable, connect
from tests.support.kube.control_plane import ControlPlane
from tests.support.kube.drill_pods import NAMESPACE, patient, pod_body
from tests.support.kube.server import free_port

PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
SCHEDULERS = (
    "kube-scheduler", "kube-scheduler:unthrottled", "greedy-wait", "greedy-wait:gangs", "checkpoints/quickstart",
)  # fmt: skip
GANG, THREADS, LIMIT_S = 8, 16, 300.0


class Binds(threading.Thread):
    """Sees every pod that gets a node: `at_s` by name."""

    def __init__(self, api: ApiClient) -> None:
        super().__init__(daemon=True)
        self.api, self.at_s = api, {}

    def run(self) -> None:
        query = {"watch": "true", "fieldSelector": "spec.nodeName!=", "allowWatchBookmarks": "true"}
        version = self.api.request("GET", "/api/v1/pods", {"limit": 1}).body["metadata"]["resourceVersion"]
        while True:  # the server ends watches of slow clients; the next one goes on where this one was
            with contextlib.suppress(Unreachable):
                for event in self.api.stream("/api/v1/pods", query | {"resourceVersion": version}, LIMIT_S):
                    if event["type"] == "ERROR":
                        print(f"the benchmark's own watch has gaps: {event['object']}", file=sys.stderr)
                        return
                    version = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] in ("ADDED", "MODIFIED"):
                        self.at_s.setdefault(event["object"]["metadata"]["name"], time.time())


class Process:
    """A scheduler, and what it costs."""

    def __init__(self, plane: ControlPlane, name: str, logs: Path) -> None:
        self.port, self.began_s = free_port(), time.time()
        self.ours = not name.startswith("kube-scheduler")
        policy = name.removesuffix(":gangs")
        if self.ours:
            kind = "--checkpoint" if policy.startswith("checkpoints/") else "--policy"
            command = [sys.executable, "-m", "jaxsched.cli", "kube", "run", "--kubeconfig", str(plane.kubeconfig)]
            command += [kind, policy, "--metrics-port", str(self.port)]
        else:
            command = [str(plane.folder / "kube-scheduler"), f"--kubeconfig={plane.kubeconfig}", "--leader-elect=false"]
            command += [f"--secure-port={self.port}", "--bind-address=127.0.0.1"]
            command += ["--authorization-always-allow-paths=/metrics,/readyz"]
            command += ["--kube-api-qps=1000", "--kube-api-burst=2000"] if name.endswith(":unthrottled") else []
        log = (logs / f"{name.replace('/', '-')}.log").open("w")
        self.child = subprocess.Popen(command, stdout=log, stderr=log)

    def metrics(self) -> list[tuple[str, float]]:
        import ssl

        scheme, trust = ("http", None) if self.ours else ("https", ssl._create_unverified_context())
        with urllib.request.urlopen(f"{scheme}://127.0.0.1:{self.port}/metrics", timeout=30, context=trust) as answer:
            lines = answer.read().decode().splitlines()
        pairs = [line.rsplit(" ", 1) for line in lines if line and not line.startswith("#")]
        return [(name, float(value)) for name, value in pairs]

    def compiled(self) -> bool:
        """The policy decides, not the fallback."""
        return not self.ours or ("jaxsched_policy_ready", 1.0) in self.metrics()

    def quantile(self, name: str, share: float) -> float:
        """Of a histogram, all label values together, between bucket bounds as Prometheus does, in seconds."""
        counts: dict[float, float] = {}
        for key, value in self.metrics():
            if key.startswith(f"{name}_bucket"):
                bound = float(key.split('le="')[1].split('"')[0])
                counts[bound] = counts.get(bound, 0.0) + value
        low, below = 0.0, 0.0
        wanted = share * max(counts.values(), default=0.0)
        for bound, count in sorted(counts.items()):
            if count >= wanted and count > below:
                return low if bound == float("inf") else low + (bound - low) * (wanted - below) / (count - below)
            low, below = bound, count
        return float("nan")

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.child.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak_mb(self) -> float:
        status = Path(f"/proc/{self.child.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1024


def bodies(prefix: str, count: int, scheduler: str, gang: int, gpus: tuple[int, ...]) -> list[dict]:
    """The same pods for every scheduler: 2 CPUs, 4 GiB and GPUs drawn alike for the pods of a gang of 8."""
    draw, found = random.Random(0), []
    for first in range(0, count, GANG):
        gpu = draw.choice(gpus)
        for number in range(first, min(first + GANG, count)):
            size = min(GANG, count - first) if gang > 1 else 1
            name = f"{prefix}-{first if gang > 1 else number}"
            body = pod_body(name, number, size, gpu, 3600.0, scheduler)
            found.append(body)
    return found


def create(api: ApiClient, pods: list[dict]) -> None:
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        for response in pool.map(lambda body: patient(api, "POST", PODS, body), pods):
            if not response.ok:
                sys.exit(f"a pod was not created: {response.message}")


def until(check, limit_s: float = LIMIT_S) -> bool:
    end = time.time() + limit_s
    while not (true := check()) and time.time() < end:
        time.sleep(0.1)
    return true


def clear(api: ApiClient) -> None:
    patient(api, "DELETE", PODS, {"gracePeriodSeconds": 0}, read_s=120)
    if not until(lambda: not patient(api, "GET", PODS, read_s=60).body["items"]):
        sys.exit("pods of the run before do not go away")


def waiting(api: ApiClient) -> tuple[int, int]:
    """Pods without a node, and those among them without the condition PodScheduled."""
    pods = [pod for pod in patient(api, "GET", PODS, read_s=60).body["items"] if not pod["spec"].get("nodeName")]
    told = [any(one["type"] == "PodScheduled" for one in pod["status"].get("conditions", ())) for pod in pods]
    return len(pods), len(pods) - sum(told)


def measure(plane: ControlPlane, name: str, count: int, logs: Path) -> dict:
    api = connect(str(plane.kubeconfig))
    gang = GANG if name.endswith(":gangs") else 1
    scheduler = "default-scheduler" if name.startswith("kube-scheduler") else "jaxsched"
    binds = Binds(api)
    binds.start()
    result = {"scheduler": name, "load": round(os.getloadavg()[0], 1)}

    create(api, bodies("cold", count, scheduler, gang, (1, 2, 4, 8)))
    process = Process(plane, name, logs)
    try:
        until(lambda: len(binds.at_s) >= count or process.child.poll() is not None)
        at_s = sorted(binds.at_s.values())
        if process.child.poll() is not None or not at_s:
            sys.exit(f"{name} ended or bound nothing; see {logs}")
        result |= {"cold_bound": len(at_s), "cold_first_s": at_s[0] - process.began_s}
        result |= {"cold_rate": (len(at_s) - 1) / (at_s[-1] - at_s[0]), "cold_cpu_s": process.cpu_s()}
        until(process.compiled)
        result |= {"compiled_s": time.time() - process.began_s}
        clear(api)
        time.sleep(5.0)

        binds.at_s.clear()
        before, cpu_s = time.time(), process.cpu_s()
        create(api, bodies("burst", count, scheduler, gang, (1, 2, 4, 8)))
        created_s = time.time() - before
        until(lambda: len(binds.at_s) >= count)
        at_s = sorted(binds.at_s.values())
        result |= {"bound": len(at_s), "created_s": created_s, "burst_first_s": at_s[0] - before}
        result |= {"rate": len(at_s) / (at_s[-1] - before), "burst_cpu_s": process.cpu_s() - cpu_s}
        names = ("jaxsched_scheduling_algorithm_duration_seconds", "scheduler_scheduling_algorithm_duration_seconds")
        own = names[0] if process.ours else names[1]
        result |= {f"decision_p{int(q * 100)}_ms": process.quantile(own, q) * 1e3 for q in (0.5, 0.99)}

        before = time.time()
        create(api, bodies("full", count, scheduler, gang, (8,)))
        until(lambda: len(binds.at_s) >= count + result["bound"] or not waiting(api)[1])
        result |= {"told_s": time.time() - before, "peak_mb": process.peak_mb(), "cpu_s": process.cpu_s()}
        result |= dict(zip(("wait", "without_condition"), waiting(api)))
    finally:
        process.child.kill()
        process.child.wait(30)
        clear(api)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("schedulers", nargs="*", default=SCHEDULERS)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=1000)
    args = parser.parse_args()
    plane = ControlPlane(args.nodes, alone=True)
    try:
        plane.start()
        for name in args.schedulers:
            print(json.dumps(measure(plane, name, args.pods, plane.home)), flush=True)
    finally:
        plane.stop()


if __name__ == "__main__":
    main()
