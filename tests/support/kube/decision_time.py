"""Decision time on clusters of fake objects: python -m tests.support.kube.decision_time NODES POLICY [PLANS]."""

import random
import sys
import time

import numpy as np

from jaxsched.kube.plan.planner import Planner
from jaxsched.kube.policy import GuardedPolicy
from jaxsched.kube.read.objects import read_node, read_pod
from jaxsched.kube.read.settings import PlanSettings
from jaxsched.kube.read.snapshot import Snapshot
from tests.support.kube.objects import NOW, make_node, make_pod


def main(size: int, policy: str, plans: int) -> None:
    draw = random.Random(0)
    nodes = tuple(read_node(make_node(f"n{i}", rack=f"r{i // 4}", block=f"b{i // 16}")) for i in range(size))
    pods = []
    for i in range(size // 2):  # half of the nodes are busy with gangs of two pods
        pods += [read_pod(make_pod(f"run{i}-{k}", 4, f"run{i}", 2, node=f"n{i}", uid=f"run{i}-{k}")) for k in range(2)]
    planner = Planner(GuardedPolicy(policy, PlanSettings()), PlanSettings())
    planner.policy.prepare(planner.fleet(nodes))
    decision, whole, placed = [], [], 0
    for number in range(plans):
        count, gpus = draw.choice((1, 2, 4, 8, 16)), draw.choice((1, 2, 4))
        gang = [read_pod(make_pod(f"g{number}-{k}", gpus, f"g{number}", count, uid=f"g{k}")) for k in range(count)]
        began = time.perf_counter()
        plan = planner.plan(Snapshot(now_s=NOW, nodes=nodes, pods=(*pods, *gang)))
        whole.append(time.perf_counter() - began)
        decision.append(plan.decision_s)
        placed += len(plan.placements)
    p50, p99 = np.percentile(np.array(decision) * 1e3, (50, 99))
    all50, all99 = np.percentile(np.array(whole) * 1e3, (50, 99))
    print(
        f"{size} nodes, {policy}: decision p50 {p50:.0f} ms, p99 {p99:.0f} ms; whole plan p50 {all50:.0f} ms, "
        f"p99 {all99:.0f} ms; {placed} of {plans} placed; compiled in {planner.policy.compile_s:.0f} s"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 200)
