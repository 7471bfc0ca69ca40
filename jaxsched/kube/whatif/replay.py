"""A recorded day in the simulator: the gangs as jobs, the nodes as a cluster, any policy."""

import dataclasses
from collections.abc import Iterable, Iterator, Set
from typing import Any

import numpy as np
from jaxtyping import Float64

from jaxsched.cluster.hardware import Cluster, total_gpus
from jaxsched.errors import UserError
from jaxsched.kube.capacity.filters import rights_reason
from jaxsched.kube.capacity.fleet import gpu_nodes, gpu_types, read_fleet, warn_of_products
from jaxsched.kube.plan.planner import Planner
from jaxsched.kube.policy import GuardedPolicy
from jaxsched.kube.read.gangs import gang_key, natural, profile_of
from jaxsched.kube.read.groups import read_pod_group
from jaxsched.kube.read.objects import DONE_PHASES, Node, Pod, mapping, read_node, read_pod
from jaxsched.kube.read.settings import PlanSettings
from jaxsched.kube.read.snapshot import Snapshot, read_volume, read_volume_claim
from jaxsched.workload.jobs import JobList, join_types, make_job_list

RESOLUTION_S = 1.0  # of times in the API's objects
_READERS = {
    "nodes": read_node,
    "pods": read_pod,
    "podgroups": read_pod_group,
    "persistentvolumeclaims": read_volume_claim,
    "persistentvolumes": read_volume,
}


@dataclasses.dataclass(frozen=True)
class RecordedDay:
    """What a recording holds. Times of the last two are those of the real cluster."""

    cluster: Cluster
    jobs: JobList
    config: dict[str, Any]
    skipped: dict[str, int]  # gangs that are no jobs, by reason
    jct_s: Float64[np.ndarray, "J"]  # recorded
    wait_s: Float64[np.ndarray, "J"]  # recorded, until the last pod was bound

    def summary(self) -> list[str]:
        """Lines for a person: what was recorded."""
        skipped = _words(self.skipped) or "none"
        return [
            f"recorded: {len(self.jobs)} gangs on {total_gpus(self.cluster)} GPUs, mean JCT {self.jct_s.mean():.1f} s, "
            f"mean wait {self.wait_s.mean():.1f} s; left out: {skipped}",
            "simulated below with the recorded run times (ideal placements would have been as fast or faster):",
        ]


@dataclasses.dataclass
class _RecordedGang:
    """A gang in a recording."""

    pods: dict[str, Pod]
    bound_s: dict[str, float]
    ended_s: dict[str, float]


def read_day(lines: Iterable[dict[str, Any]], settings: PlanSettings, scheduler: str | None = None) -> RecordedDay:
    """Make jobs and a cluster of a recording.

    A gang's run time is from its last Binding to the end of its last pod. Gangs that are no jobs, for instance since
    their times cannot be, are left out and counted.

    Args:
        lines: As `read_recording` gives them.
        settings: How objects are read.
        scheduler: Whose gangs; None: everybody's.

    Raises:
        UserError: No gang ran from start to end, or no node has GPUs.
    """
    nodes: dict[str, Node] = {}
    gangs: dict[str, _RecordedGang] = {}
    key_of: dict[str, str] = {}
    for line in lines:
        if line["kind"] == "nodes" and line["type"] != "DELETED":
            node = read_node(line["object"])
            nodes[node.name] = node
        if line["kind"] != "pods":
            continue
        uid = str(mapping(line["object"], "metadata").get("uid", ""))
        if line["type"] == "DELETED":
            if uid in key_of:
                gangs[key_of[uid]].ended_s.setdefault(uid, line["t"])
            continue
        pod = read_pod(line["object"])
        if scheduler not in (None, pod.scheduler):
            continue
        key_of[uid] = gang_key(pod)
        gang = gangs.setdefault(key_of[uid], _RecordedGang({}, {}, {}))
        gang.pods[uid] = pod
        if pod.node:
            seen = uid in gang.bound_s
            gang.bound_s.setdefault(uid, line["t"])
            if seen and pod.phase in DONE_PHASES:  # `kube run` watches pods that live, others all of them
                gang.ended_s.setdefault(uid, line["t"])
    own = gpu_nodes(list(nodes.values()), settings)
    if not own:
        raise UserError(f"the recording has no node with {settings.gpu_resource}; there is no cluster to simulate")
    warn_of_products(own, settings)
    return _day(gangs, read_fleet(own, settings).split, _TypesOfNodes(own, settings), settings)


class _TypesOfNodes:
    """Which GPU types the nodes have to which a gang may go."""

    def __init__(self, nodes: list[Node], settings: PlanSettings) -> None:
        self._nodes, self._settings = nodes, settings
        self._types = [gpu_type.name for gpu_type in gpu_types(nodes, settings)]
        self._by_node = {node.name: name for node, name in zip(nodes, self._types)}
        self._known: dict[str, frozenset[str]] = {}

    def of(self, gang: _RecordedGang) -> str:
        """As `JobList.allowed`: those of nodes where all its workers may be, and where they were; "" if that is all."""
        allowed = set(self._types)
        for pod in _workers(gang, self._settings):
            allowed &= self._of_pod(pod)
        allowed |= {self._by_node[pod.node] for pod in gang.pods.values() if pod.node in self._by_node}
        return "" if allowed == set(self._types) else join_types(allowed)

    def _of_pod(self, pod: Pod) -> frozenset[str]:
        asks = repr((dict(pod.selector), pod.affinity, pod.tolerations))
        if asks not in self._known:
            pairs = zip(self._nodes, self._types)
            self._known[asks] = frozenset(name for node, name in pairs if not rights_reason(pod, node))
        return self._known[asks]


def _day(
    gangs: dict[str, _RecordedGang], cluster: Cluster, types: _TypesOfNodes, settings: PlanSettings
) -> RecordedDay:
    largest = int(np.asarray(cluster.group_gpus).max())
    tenants = sorted({pod.namespace for gang in gangs.values() for pod in gang.pods.values()})
    jobs, jct, wait, skipped = [], [], [], {}
    for key, gang in sorted(gangs.items(), key=lambda item: natural(item[0])):
        why_not = _why_no_job(gang, settings)
        if why_not:
            skipped[why_not] = skipped.get(why_not, 0) + 1
            continue
        job: dict[str, Any] = _job(gang, largest, settings) | {"allowed": types.of(gang)}
        end = max(gang.ended_s.values())
        tenant = next(iter(gang.pods.values())).namespace
        jobs.append(job | {"tenant": tenants.index(tenant), "tenant_name": tenant, "job_id": key})
        jct.append(end - job["submit_s"])
        wait.append(max(max(gang.bound_s.values()) - job["submit_s"], 0.0))
    if not jobs:
        why = _words(skipped) or "no pods"
        raise UserError(f"the recording holds no gang from its start to its end ({why}); record for longer")
    columns: dict[str, Any] = {name: [job[name] for job in jobs] for name in jobs[0]}
    origin = min(columns["submit_s"])
    columns["submit_s"] = [submit - origin for submit in columns["submit_s"]]
    config = {
        "recorded_jct_mean_s": float(np.mean(jct)),
        "recorded_wait_mean_s": float(np.mean(wait)),
        "skipped": skipped,
    }
    return RecordedDay(cluster, make_job_list(**columns), config, skipped, np.array(jct), np.array(wait))


def _job(gang: _RecordedGang, largest_group: int, settings: PlanSettings) -> dict[str, Any]:
    """The gang as arguments of `make_job_list`; a simulated worker lies in one GPU group."""
    pods = sorted(gang.pods.values(), key=lambda pod: natural(pod.name))
    workers = _workers(gang, settings)
    gpus = workers[0].units(settings.gpu_resource)
    parts = -(-gpus // largest_group)
    return {
        "submit_s": min(pod.created_s for pod in pods),
        "duration_s": max(max(gang.ended_s.values()) - max(gang.bound_s.values()), 1e-3),
        "workers": len(workers) * parts,
        "gpus_per_worker": -(-gpus // parts),
        "model": profile_of(pods, settings)[0],
    }


def _workers(gang: _RecordedGang, settings: PlanSettings) -> list[Pod]:
    return [pod for pod in gang.pods.values() if pod.units(settings.gpu_resource)]


def _why_no_job(gang: _RecordedGang, settings: PlanSettings) -> str:
    """Why a gang is no job of the simulation; "" if it is one."""
    workers = _workers(gang, settings)
    if not workers:
        return "without GPUs"
    if len(gang.bound_s) < len(gang.pods):
        return "never started"
    if len(gang.ended_s) < len(gang.pods):
        return "unfinished"
    if len({pod.requests for pod in workers}) > 1:
        return "with unequal workers"
    if not all(pod.created_s > 0.0 for pod in gang.pods.values()):
        return "without a time of creation"
    if any(pod.created_s > gang.bound_s[uid] + RESOLUTION_S for uid, pod in gang.pods.items()):
        return "created after they started"
    if any(gang.ended_s[uid] < gang.bound_s[uid] for uid in gang.pods):
        return "ended before they started"
    return ""


def _words(skipped: dict[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in skipped.items())


def plan_again(lines: Iterable[dict[str, Any]], settings: PlanSettings, policy: str) -> Iterator[str]:
    """Plan offline at every recorded plan; one line each, and how many gangs went to the same nodes."""
    planner = Planner(GuardedPolicy(policy, settings), settings)
    objects = _Objects()
    same = total = 0
    for line in lines:
        if line["kind"] != "plan":
            objects.change(line)
            continue
        then: dict[str, dict[str, str]] = line["placements"]
        snapshot = objects.snapshot(line["t"], {pod for pods in then.values() for pod in pods})
        plan = planner.plan(snapshot)
        now = {one.gang.key: {a.pod.key: a.node for a in one.assignments} for one in plan.placements}
        agreed = sum(sorted(now.get(key, {}).values()) == sorted(pods.values()) for key, pods in then.items())
        same, total = same + agreed, total + len(then)
        yield f"plan at {line['t']:.3f}: {len(then)} gangs then, {len(now)} now, {agreed} on the same nodes"
    yield f"{same} of {total} gangs on the same nodes as recorded"


def read_snapshot(lines: Iterable[dict[str, Any]], at_s: float | None = None) -> Snapshot:
    """The cluster as it was recorded.

    Args:
        lines: As `read_recording` gives them.
        at_s: Seconds after the first line; None: at the end.

    Raises:
        UserError: There are no lines, or not so many seconds.
    """
    objects, first_s, now_s = _Objects(), None, 0.0
    for line in lines:
        first_s = line["t"] if first_s is None else first_s
        if at_s is not None and line["t"] > first_s + at_s:
            return objects.snapshot(first_s + at_s)
        now_s = max(now_s, line["t"])
        if line["kind"] != "plan":
            objects.change(line)
    if first_s is None:
        raise UserError("the recording is empty; give a file written by --record")
    if at_s is not None and at_s > now_s - first_s:
        raise UserError(f"--at-s: {at_s:g} is after the end of the recording, should be at most {now_s - first_s:g}")
    return objects.snapshot(now_s)


class _Objects:
    """What a recording says of the cluster, up to some line."""

    def __init__(self) -> None:
        self._stores: dict[str, dict[str, Any]] = {kind: {} for kind in _READERS}

    def change(self, line: dict[str, Any]) -> None:
        """An object came, changed or went; or the recording began, perhaps anew."""
        if line["kind"] == "start":
            self._stores = {kind: {} for kind in _READERS}
            return
        store, uid = self._stores[line["kind"]], str(mapping(line["object"], "metadata").get("uid", ""))
        if line["type"] == "DELETED":
            store.pop(uid, None)
        else:
            store[uid] = _READERS[line["kind"]](line["object"])

    def snapshot(self, now_s: float, unbound: Set[str] = frozenset()) -> Snapshot:
        """The cluster; `unbound`: names of pods that are to wait again."""
        stores = self._stores
        pods = (dataclasses.replace(pod, node="") if pod.key in unbound else pod for pod in stores["pods"].values())
        return Snapshot(
            now_s=now_s,
            nodes=tuple(stores["nodes"].values()),
            pods=tuple(pods),
            groups=tuple(stores["podgroups"].values()),
            volume_claims=dict(stores["persistentvolumeclaims"].values()),
            volumes=dict(stores["persistentvolumes"].values()),
        )
