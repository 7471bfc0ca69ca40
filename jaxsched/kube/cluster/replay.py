"""A recorded day in the simulator: the gangs as jobs, the nodes as a cluster, any policy."""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from jaxsched.cluster.hardware import Cluster, total_gpus
from jaxsched.errors import UserError
from jaxsched.kube.planning.compiled_policy import CompiledPolicy
from jaxsched.kube.planning.fleet import gpu_nodes, read_fleet
from jaxsched.kube.planning.gangs import gang_key, natural, profile_of, read_pod_group
from jaxsched.kube.planning.objects import Node, Pod, read_node, read_pod
from jaxsched.kube.planning.plan import Planner
from jaxsched.kube.planning.settings import PlanSettings
from jaxsched.kube.planning.snapshot import Snapshot
from jaxsched.kube.planning.volume_claims import read_volume_claim
from jaxsched.workload.jobs import JobList, make_job_list

_READERS = {
    "nodes": read_node,
    "pods": read_pod,
    "podgroups": read_pod_group,
    "persistentvolumeclaims": read_volume_claim,
}


@dataclasses.dataclass(frozen=True)
class Day:
    """What a recording holds. Times of the last two are those of the real cluster."""

    cluster: Cluster
    jobs: JobList
    config: dict[str, Any]
    skipped: dict[str, int]  # gangs that are no jobs, by reason
    jct_s: np.ndarray  # float64[J], recorded
    wait_s: np.ndarray  # float64[J], recorded, until the last pod was bound

    def summary(self) -> list[str]:
        """Lines for a person: what was recorded."""
        skipped = ", ".join(f"{count} {reason}" for reason, count in self.skipped.items()) or "none"
        return [
            f"recorded: {len(self.jobs)} gangs on {total_gpus(self.cluster)} GPUs, mean JCT {self.jct_s.mean():.1f} s, "
            f"mean wait {self.wait_s.mean():.1f} s; left out: {skipped}",
            "simulated below with the recorded run times (ideal placements would have been as fast or faster):",
        ]


@dataclasses.dataclass
class _Life:
    """A gang in a recording."""

    pods: dict[str, Pod]
    bound_s: dict[str, float]
    ended_s: dict[str, float]


def recorded_day(lines: Iterable[dict[str, Any]], settings: PlanSettings, scheduler: str | None = None) -> Day:
    """The jobs and the cluster of a recording; UserError if it holds no finished gang or no GPU node.

    A gang's run time is from its last Binding to the end of its last pod.
    """
    nodes: dict[str, Node] = {}
    lives: dict[str, _Life] = {}
    key_of: dict[str, str] = {}
    for line in lines:
        if line["kind"] == "nodes" and line["type"] != "DELETED":
            node = read_node(line["object"])
            nodes[node.name] = node
        if line["kind"] != "pods":
            continue
        uid = str((line["object"].get("metadata") or {}).get("uid", ""))
        if line["type"] == "DELETED":
            if uid in key_of:
                lives[key_of[uid]].ended_s.setdefault(uid, line["t"])
            continue
        pod = read_pod(line["object"])
        if scheduler not in (None, pod.scheduler):
            continue
        key_of[uid] = gang_key(pod)
        life = lives.setdefault(key_of[uid], _Life({}, {}, {}))
        life.pods[uid] = pod
        if pod.node:
            life.bound_s.setdefault(uid, line["t"])
    own = gpu_nodes(list(nodes.values()), settings)
    if not own:
        raise UserError(f"the recording has no node with {settings.gpu_resource}; there is no cluster to simulate")
    return _day(lives, read_fleet(own, settings).split, settings)


def _day(lives: dict[str, _Life], cluster: Cluster, settings: PlanSettings) -> Day:
    columns: dict[str, list] = {name: [] for name in ("submit_s", "duration_s", "workers", "gpus_per_worker", "model")}
    names, jct, wait, skipped = [], [], [], {}
    largest = int(np.asarray(cluster.group_gpus).max())
    tenants = sorted({pod.namespace for life in lives.values() for pod in life.pods.values()})
    tenant = []
    for key, life in sorted(lives.items(), key=lambda item: natural(item[0])):
        pods = sorted(life.pods.values(), key=lambda pod: natural(pod.name))
        workers = [pod for pod in pods if pod.units(settings.gpu_resource)]
        trouble = _trouble(life, workers)
        if trouble:
            skipped[trouble] = skipped.get(trouble, 0) + 1
            continue
        submit, start, end = (
            min(pod.created_s for pod in pods),
            max(life.bound_s.values()),
            max(life.ended_s.values()),
        )
        gpus = workers[0].units(settings.gpu_resource)
        parts = -(-gpus // largest)  # a simulated worker lies in one GPU group
        columns["submit_s"].append(submit)
        columns["duration_s"].append(max(end - start, 1e-3))
        columns["workers"].append(len(workers) * parts)
        columns["gpus_per_worker"].append(-(-gpus // parts))
        columns["model"].append(profile_of(pods, settings)[0])
        tenant.append(tenants.index(pods[0].namespace))
        names.append(key)
        jct.append(end - submit)
        wait.append(max(start - submit, 0.0))
    if not names:
        raise UserError(
            f"the recording holds no gang from its start to its end ({skipped or 'no pods'}); record for longer"
        )
    origin = min(columns["submit_s"])
    columns["submit_s"] = [submit - origin for submit in columns["submit_s"]]
    jobs = make_job_list(**columns, tenant=tenant, job_id=names)
    config = {
        "recorded_jct_mean_s": float(np.mean(jct)),
        "recorded_wait_mean_s": float(np.mean(wait)),
        "skipped": skipped,
    }
    return Day(cluster, jobs, config, skipped, np.array(jct), np.array(wait))


def _trouble(life: _Life, workers: list[Pod]) -> str:
    """Why a gang is no job of the simulation; "" if it is one."""
    if not workers:
        return "without GPUs"
    if len(life.bound_s) < len(life.pods):
        return "never started"
    if len(life.ended_s) < len(life.pods):
        return "unfinished"
    if len({pod.requests for pod in workers}) > 1:
        return "with unequal workers"
    return ""


def plan_again(lines: Iterable[dict[str, Any]], settings: PlanSettings, policy: str) -> Iterator[str]:
    """Plan offline at every recorded plan; one line each, and how many gangs went to the same nodes."""
    planner = Planner(CompiledPolicy(policy, settings), settings)
    stores: dict[str, dict[str, Any]] = {kind: {} for kind in _READERS}
    same = total = 0
    for line in lines:
        if line["kind"] != "plan":
            uid = str((line["object"].get("metadata") or {}).get("uid", ""))
            if line["type"] == "DELETED":
                stores[line["kind"]].pop(uid, None)
            else:
                stores[line["kind"]][uid] = _READERS[line["kind"]](line["object"])
            continue
        then: dict[str, dict[str, str]] = line["placements"]
        unbound = {pod for pods in then.values() for pod in pods}
        pods = (dataclasses.replace(pod, node="") if pod.key in unbound else pod for pod in stores["pods"].values())
        snapshot = Snapshot(
            now_s=line["t"],
            nodes=tuple(stores["nodes"].values()),
            pods=tuple(pods),
            groups=tuple(stores["podgroups"].values()),
            volume_claims=dict(stores["persistentvolumeclaims"].values()),
        )
        plan = planner.plan(snapshot)
        now = {one.gang.key: {a.pod.key: a.node for a in one.assignments} for one in plan.placements}
        agreed = sum(sorted(now.get(key, {}).values()) == sorted(pods.values()) for key, pods in then.items())
        same, total = same + agreed, total + len(then)
        yield f"plan at {line['t']:.3f}: {len(then)} gangs then, {len(now)} now, {agreed} on the same nodes"
    yield f"{same} of {total} gangs on the same nodes as recorded"
