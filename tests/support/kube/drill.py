"""A drill on a real control plane: gangs are submitted over time, something is broken, every invariant is checked.

    python -m tests.support.kube.drill --nodes 8 --fault sigkill-self [--gangs 60] [--policy NAME]

It starts a control plane with fake kubelets of its own, and `jaxsched kube run`. It prints one JSON line and ends with
1 if an invariant was broken: every gang bound whole, no pod bound twice, no node over capacity at any look, no pod
rejected by a kubelet, no gang half-bound for longer than `--half-s`.
"""

import argparse
import json
import random
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

from jaxsched.kube.cluster.api import ApiClient, connect
from tests.support.kube.control_plane import ControlPlane
from tests.support.kube.drill_faults import FAULTS, inject
from tests.support.kube.drill_pods import NAMESPACE, patient, pod_body, submit
from tests.support.kube.drill_process import Process
from tests.support.kube.drill_relay import Relay
from tests.support.kube.drill_watcher import Watcher


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
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
    parser.add_argument("--logs", default="", help="folder of the schedulers' logs; default: a new one")
    parser.add_argument("--foreign", type=int, default=4, help="pods of the default scheduler")
    return parser.parse_args()


def drawn(args: argparse.Namespace) -> list[tuple[str, int, int, float]]:
    """Gangs: name, pods, GPUs of each, seconds of run time."""
    random.seed(args.seed)
    gangs = []
    for number in range(args.gangs):
        size = random.choice((1, 1, 2, 2, 3, 4, 4, 6, 8, 12, 16))
        gpus = random.choice([g for g in (1, 2, 4, 8) if size * g <= args.nodes * 8 // 2])
        gangs.append((f"g{number:03d}", size, gpus, round(random.uniform(0.5, 1.5) * args.seconds, 1)))
    return gangs


def schedulers(args: argparse.Namespace) -> list[Process]:
    """The scheduler, ready; two with leader election where the leader is to be killed."""
    elect = ["--leader-elect", "--namespace", NAMESPACE] if args.fault == "leader-change" else []
    started = [Process(args, "drill-a", *elect)]
    started[0].wait_ready()
    if elect:
        time.sleep(3)
        started.append(Process(args, "drill-b", *elect))
        started[1].wait_ready()
    return started


def submit_foreign(api: ApiClient, count: int) -> None:
    """Pods of a second scheduler, which must be counted."""
    for index in range(count):
        body = pod_body(f"foreign{index}", 0, 1, 2, 1e4, "default-scheduler")
        body["metadata"]["annotations"].pop("jaxsched.io/fake-seconds")
        del body["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"]
        patient(api, "POST", f"/api/v1/namespaces/{NAMESPACE}/pods", body)


def drill(args: argparse.Namespace, plane: ControlPlane) -> dict:
    """What became of the gangs."""
    gangs = drawn(args)
    sizes = {gang: size for gang, size, _, _ in gangs}
    api = connect(args.kubeconfig)
    watcher = Watcher(connect(args.kubeconfig), sizes, args.half_s)
    if args.fault == "watch-cut":
        args.kubeconfig = str(Path(args.logs) / "relay.kubeconfig")
        args.relay = Relay(str(plane.kubeconfig), Path(args.kubeconfig))
    processes = schedulers(args)
    submit_foreign(api, args.foreign)
    watcher.start()
    began, stop = time.time(), threading.Event()
    feeder = threading.Thread(target=submit, args=(api, gangs, "jaxsched", args.every_s, stop), daemon=True)
    feeder.start()
    while len(watcher.names) < args.gangs // 4 and time.time() - began < args.limit_s:
        time.sleep(0.1)
    current = inject(args, plane, connect(str(plane.kubeconfig)), watcher, processes, gangs)
    while time.time() - began < args.limit_s:
        if not feeder.is_alive() and watcher.whole():
            break
        if current.child.poll() is not None:
            watcher.broken.append(f"the scheduler ended with {current.child.returncode}")
            break
        time.sleep(0.2)
    took = time.time() - began
    watcher.stop.set()
    watcher.join(10)
    numbers = current.metrics()
    for process in {*processes, current}:
        if process.child.poll() is None:
            process.kill(signal.SIGTERM)
    binds = {key.split('"')[1]: n for key, n in numbers.items() if key.startswith("jaxsched_pod_binds_total")}
    return outcome(args, watcher, sizes, took) | {"binds": binds}


def outcome(args: argparse.Namespace, watcher: Watcher, sizes: dict[str, int], took: float) -> dict:
    kept = {gang: size for gang, size in sizes.items() if gang not in watcher.ignore_half}  # the drill deletes some
    bound = {gang: len(watcher.names.get(gang, ())) for gang in kept}
    unbound = {gang: f"{bound[gang]}/{size}" for gang, size in kept.items() if bound[gang] < size}
    half = {gang: text for gang, text in unbound.items() if bound[gang]}
    if half or (unbound and args.fault != "delete-node"):  # without a node, what no longer fits stays pending
        watcher.broken.append(f"not bound whole: {unbound}")
    if watcher.longest_half_s > args.half_s:
        watcher.broken.append(f"a gang was half-bound for {watcher.longest_half_s:.1f} s")
    return {
        "fault": args.fault,
        "nodes": args.nodes,
        "policy": args.policy,
        "gangs": len(kept),
        "pods": sum(sizes.values()),
        "bound_whole": len(kept) - len(unbound),
        "not_whole": unbound,
        "seconds": round(took, 1),
        "first_bind_after_fault_s": watcher.recovered_s,
        "longest_half_bound_s": round(watcher.longest_half_s, 1),
        "rejected": watcher.rejected,
        "broken": watcher.broken[:5],
    }


def main() -> None:
    args = arguments()
    args.logs = args.logs or tempfile.mkdtemp(prefix="drill-")
    plane = ControlPlane(args.nodes)
    try:
        plane.start()
        args.kubeconfig = str(plane.kubeconfig)
        result = drill(args, plane)
    finally:
        plane.stop()
    print(json.dumps(result), flush=True)
    sys.exit(1 if result["broken"] else 0)


if __name__ == "__main__":
    main()
