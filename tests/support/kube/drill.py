"""A drill on a real control plane: gangs are submitted over time, something is broken, every invariant is checked.

    python -m tests.support.kube.drill --kubeconfig F --nodes 8 --fault sigkill-self [--gangs 60] [--policy NAME]

Needs GPU nodes with kubelets (fake ones do, if they renew their Leases and play admission). It starts `jaxsched kube
run` itself, prints one JSON line and ends with 1 if an invariant was broken: every gang bound whole, no pod bound
twice, no node over capacity at any look, no pod rejected by a kubelet, no gang half-bound for longer than `--half-s`.
"""

import argparse
import json
import random
import signal
import sys
import threading
import time
from pathlib import Path

from jaxsched.kube.cluster.api import connect
from tests.support.kube.drill_faults import FAULTS, inject, uncordon
from tests.support.kube.drill_pods import NAMESPACE, clean, patient, pod_body, submit
from tests.support.kube.drill_process import Process
from tests.support.kube.drill_relay import Relay
from tests.support.kube.drill_watcher import Watcher


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
    first = Process(args, "drill-a", *elect)
    first.wait_ready()
    others = []
    if elect:
        time.sleep(3)
        others.append(Process(args, "drill-b", *elect))
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


if __name__ == "__main__":
    main()
