"""Recordings: what came in them as a history, from which later gangs are drawn, and recorded days in the simulator.

The history is cut into blocks of an hour. A future is a row of blocks drawn with replacement (a Bayesian bootstrap);
each brings the gangs that came in it, in the same order and with the same gaps, so bursts stay bursts. How likely each
block is, is drawn anew for every future, from a flat Dirichlet distribution (Rubin, The Bayesian Bootstrap, 1981): a
short history says little about the rate, and the futures differ accordingly. If the history has two days or more, a
block stands only for the same hour of the day, or the one before or after it.

Of a day the gangs become jobs, and the nodes a cluster, for any policy.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence, Set
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int64

from jaxsched.cluster.hardware import Cluster, total_gpus
from jaxsched.errors import UserError
from jaxsched.kube.capacity.filters import rights_reason
from jaxsched.kube.capacity.fleet import gpu_nodes, gpu_types, read_fleet, warn_of_products
from jaxsched.kube.plan.planner import Planner
from jaxsched.kube.policy import GuardedPolicy
from jaxsched.kube.read.gangs import Gang, form_gangs, gang_key, natural, profile_of
from jaxsched.kube.read.groups import PodGroup, read_pod_group
from jaxsched.kube.read.objects import DONE_PHASES, Node, Pod, mapping, read_node, read_pod
from jaxsched.kube.read.settings import PlanSettings
from jaxsched.kube.read.snapshot import Snapshot, read_volume, read_volume_claim
from jaxsched.workload.jobs import JobList, join_types, make_job_list

BLOCK_S = 3600.0
FEWEST_BLOCKS = 4  # a shorter history is cut finer
DAY_S = 86400.0
NEAR_S = 5400.0  # of a block's beginning from the time of day it stands for


@dataclasses.dataclass(frozen=True)
class RecordedSpan:
    """Everything that came between two instants, in seconds since the epoch; `gangs` by time."""

    begin_s: float
    end_s: float
    gangs: tuple[Gang, ...]


@dataclasses.dataclass(frozen=True)
class History:
    """Gangs that came, in blocks of time. UserError if it is empty."""

    gangs: tuple[Gang, ...]
    offset_s: Float64[np.ndarray, "gangs"]  # since the block began
    first: Int64[np.ndarray, "blocks+1"]  # where the gangs of each block begin
    begin_s: Float64[np.ndarray, "blocks"]  # since the epoch
    length_s: float  # of all blocks

    def __post_init__(self) -> None:
        if not self.gangs:
            raise UserError("--history: no gang came; give recordings in which some did, before the time asked about")

    def draw(self, now_s: float, until_s: float, seed: Sequence[int]) -> tuple[list[int], list[float]]:
        """One future: which gangs come, and how many seconds from now, up to `until_s`.

        A later `until_s` only adds to it.
        """
        draw = np.random.default_rng(list(seed))
        weight = draw.standard_exponential(len(self.begin_s))
        come: list[int] = []
        at_s: list[float] = []
        for number in range(int(np.ceil(until_s / self.length_s))):
            start_s = number * self.length_s
            share = np.where(self._alike(now_s + start_s), weight, 0.0)
            block = int(np.searchsorted(np.cumsum(share), draw.uniform(0.0, share.sum()), side="right"))
            block = min(block, len(weight) - 1)
            for gang in range(self.first[block], self.first[block + 1]):
                if start_s + self.offset_s[gang] <= until_s:
                    come.append(gang)
                    at_s.append(start_s + float(self.offset_s[gang]))
        return come, at_s

    @property
    def span_s(self) -> float:
        """Seconds that it covers."""
        return self.length_s * len(self.begin_s)

    def only(self, which: Bool[np.ndarray, "gangs"]) -> "History | None":
        """Without some of its gangs, in as many blocks; None if none is left."""
        if not which.any():
            return None
        before = np.concatenate([[0], np.cumsum(which)])
        return dataclasses.replace(
            self,
            gangs=tuple(gang for gang, kept in zip(self.gangs, which) if kept),
            offset_s=self.offset_s[which],
            first=before[self.first],
        )

    def _alike(self, at_s: float) -> Bool[np.ndarray, "blocks"]:
        """Blocks that may stand for one that begins then."""
        if self.span_s < 2 * DAY_S:
            return np.ones(len(self.begin_s), bool)
        apart_s = (self.begin_s - at_s + DAY_S / 2) % DAY_S - DAY_S / 2
        near = np.abs(apart_s) <= NEAR_S
        return near if near.any() else np.ones(len(near), bool)


def cut_into_blocks(stretches: Sequence[RecordedSpan]) -> History:
    """The history of some recorded stretches of time. What does not fill a block is left out, the oldest first."""
    spans = [one.end_s - one.begin_s for one in stretches]
    length_s = min(BLOCK_S, max(sum(spans) / FEWEST_BLOCKS, 1.0))
    gangs: list[Gang] = []
    offset_s: list[float] = []
    first, begin_s = [0], []
    for stretch, span_s in zip(stretches, spans):
        count = int(span_s / length_s * (1.0 + 1e-9))
        starts_s = [stretch.end_s - number * length_s for number in range(count, 0, -1)]
        cuts = np.searchsorted([gang.submit_s for gang in stretch.gangs], [*starts_s, stretch.end_s])
        for start_s, before, after in zip(starts_s, cuts, cuts[1:]):
            own = stretch.gangs[before:after]
            gangs += own
            offset_s += [gang.submit_s - start_s for gang in own]
            first.append(len(gangs))
            begin_s.append(start_s)
    return History(tuple(gangs), np.array(offset_s), np.array(first), np.array(begin_s), length_s)


def read_arrivals(
    lines: Iterable[dict[str, Any]], settings: PlanSettings, until_s: float = float("inf")
) -> RecordedSpan | None:
    """The gangs that were submitted while it was recorded, before `until_s` (since the epoch); None if it began later.

    A gang that cannot be read, or is not whole by then, is left out.
    """
    seen, groups, begin_s, end_s = _FirstSeenPods(settings), {}, None, 0.0
    for line in lines:
        if line["t"] >= until_s:
            end_s = until_s
            break
        begin_s = line["t"] if begin_s is None else begin_s
        end_s = max(end_s, line["t"])
        if line["kind"] == "start":
            seen.start()
        if line["kind"] == "pods":
            seen.change(line)
        if line["kind"] == "podgroups" and line["type"] != "DELETED":
            group = read_pod_group(line["object"])
            groups[group.key] = group
    if begin_s is None:
        return None
    gangs = [gang for gang in seen.gangs(tuple(groups.values()), end_s) if begin_s <= gang.submit_s < end_s]
    return RecordedSpan(begin_s, end_s, tuple(sorted(gangs, key=lambda gang: (gang.submit_s, gang.key))))


class _FirstSeenPods:
    """Pods as they first were, in layers: in each, a gang's name stands for one gang only."""

    def __init__(self, settings: PlanSettings) -> None:
        self.settings = dataclasses.replace(settings, settle_s=0.0)
        self.layers: list[list[Pod]] = []
        self._layer: dict[str, int] = {}  # by gang key, of the present gang of that name
        self._alive: dict[str, set[str]] = {}  # its pods that have not ended
        self._key: dict[str, str] = {}  # by uid

    def start(self) -> None:
        """The recording began, perhaps anew: of pods that do not come again nothing is left."""
        self._alive = {key: set() for key in self._alive}

    def change(self, line: dict[str, Any]) -> None:
        """A pod came, changed or went."""
        uid = str(mapping(line["object"], "metadata").get("uid", ""))
        if line["type"] != "DELETED" and uid not in self._key:
            pod = read_pod(line["object"])
            if pod.scheduler == self.settings.scheduler_name:
                self._add(dataclasses.replace(pod, node="", phase="Pending", terminating=False))
        phase = mapping(line["object"], "status").get("phase")
        if uid in self._key:
            ended = line["type"] == "DELETED" or phase in DONE_PHASES
            alive = self._alive[self._key[uid]]
            alive.discard(uid) if ended else alive.add(uid)

    def _add(self, pod: Pod) -> None:
        key = gang_key(pod)
        if not self._alive.get(key):  # nobody of that name is left, so this is another gang
            self._layer[key] = self._layer.get(key, -1) + 1
            self._alive[key] = set()
        if self._layer[key] == len(self.layers):
            self.layers.append([])
        self.layers[self._layer[key]].append(pod)
        self._alive[key].add(pod.uid)
        self._key[pod.uid] = key

    def gangs(self, groups: tuple[PodGroup, ...], now_s: float) -> list[Gang]:
        """All that can be read and are whole."""
        found = []
        for pods in self.layers:
            found += form_gangs(pods, groups, frozenset(), self.settings, now_s)
        return [gang for gang in found if gang.workers and gang.refusal is None and gang.waiting is None]


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

    key: str  # of its name and, from the second gang of that name on, which one it is
    pods: dict[str, Pod] = dataclasses.field(default_factory=dict)
    bound_s: dict[str, float] = dataclasses.field(default_factory=dict)
    ended_s: dict[str, float] = dataclasses.field(default_factory=dict)
    alive: set[str] = dataclasses.field(default_factory=set)  # pods that have not ended
    over: bool = False  # its pods had ended when they were first seen
    early: bool = False  # some ran already then
    replaced: bool = False  # pods came when others had ended


class _RecordedGangs:
    """The gangs of a recording. Where all pods of a name have ended, later ones of that name are another gang."""

    def __init__(self) -> None:
        self.all: list[_RecordedGang] = []
        self._latest: dict[tuple[str, bool], _RecordedGang] = {}  # by name, and whether they were over
        self._count: dict[str, int] = {}
        self._of_pod: dict[str, _RecordedGang] = {}  # by uid

    def start(self) -> None:
        """The recording began, perhaps anew: of pods that do not come again nothing is left."""
        for gang in self._latest.values():
            gang.alive.clear()

    def see(self, uid: str, pod: Pod, now_s: float, new: bool) -> None:
        """A pod came or changed; `new`: it comes, perhaps as the recording begins."""
        gang, done = self._of_pod.get(uid), pod.phase in DONE_PHASES
        if gang is None:
            gang = self._of_pod[uid] = self._find(gang_key(pod), done)
            gang.replaced |= len(gang.alive) < len(gang.pods)
        gang.alive.add(uid)
        gang.pods[uid] = pod
        if pod.node:
            seen = uid in gang.bound_s
            gang.early |= new and not seen and now_s > pod.created_s + 2 * RESOLUTION_S  # else it was made bound
            gang.bound_s.setdefault(uid, now_s)
            if seen and done:  # `kube run` watches pods that live, others all of them
                gang.ended_s.setdefault(uid, now_s)
        if done and not gang.over:
            gang.alive.discard(uid)

    def lose(self, uid: str, now_s: float) -> None:
        """A pod was deleted."""
        gang = self._of_pod.get(uid)
        if gang is not None:
            gang.ended_s.setdefault(uid, now_s)
            gang.alive.discard(uid)

    def _find(self, name: str, over: bool) -> _RecordedGang:
        """The gang of that name to which a new pod belongs."""
        gang = self._latest.get((name, over))
        if gang is None or not gang.alive:
            number = self._count[name] = self._count.get(name, 0) + 1 - over
            gang = self._latest[name, over] = _RecordedGang(name if number < 2 else f"{name}#{number}", over=over)
            self.all.append(gang)
        return gang


class _MostNodes:
    """The nodes as they were when there were most GPUs; others that came later took the place of some."""

    def __init__(self, settings: PlanSettings) -> None:
        self._settings = settings
        self._there: dict[str, Node] = {}
        self.ever: dict[str, Node] = {}  # all that were there at some time
        self._most: list[Node] = []
        self._gpus, self._most_gpus = 0, -1

    def start(self) -> None:
        """The recording began, perhaps anew: all nodes that are there come again."""
        self.most()
        self._there, self._gpus = {}, 0

    def change(self, line: dict[str, Any]) -> None:
        """A node came, changed or went."""
        node, gone = read_node(line["object"]), line["type"] == "DELETED"
        more = (0 if gone else self._count(node)) - self._count(self._there.get(node.name))
        if more < 0:
            self.most()
        self._gpus += more
        if gone:
            self._there.pop(node.name, None)
        else:
            self._there[node.name] = self.ever[node.name] = node

    def most(self) -> list[Node]:
        """Those of the moment with the most GPUs so far."""
        if self._gpus > self._most_gpus:
            self._most_gpus, self._most = self._gpus, list(self._there.values())
        return self._most

    def _count(self, node: Node | None) -> int:
        known = [] if node is None else gpu_nodes([node], self._settings)
        return sum(dict(one.allocatable)[self._settings.gpu_resource] for one in known)


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
    nodes, gangs = _MostNodes(settings), _RecordedGangs()
    for line in lines:
        if line["kind"] == "start":
            nodes.start()
            gangs.start()
        if line["kind"] == "nodes":
            nodes.change(line)
        if line["kind"] != "pods":
            continue
        uid = str(mapping(line["object"], "metadata").get("uid", ""))
        if line["type"] == "DELETED":
            gangs.lose(uid, line["t"])
            continue
        pod = read_pod(line["object"])
        if scheduler in (None, pod.scheduler):
            gangs.see(uid, pod, line["t"], line["type"] == "ADDED")
    own = gpu_nodes(nodes.most(), settings)
    if not own:
        raise UserError(f"the recording has no node with {settings.gpu_resource}; there is no cluster to simulate")
    warn_of_products(own, settings)
    return _day(
        gangs.all,
        read_fleet(own, settings).split,
        _TypesOfNodes(own, gpu_nodes(nodes.ever.values(), settings), settings),
        settings,
    )


class _TypesOfNodes:
    """Which GPU types the nodes have to which a gang may go."""

    def __init__(self, nodes: list[Node], ever: list[Node], settings: PlanSettings) -> None:
        """`ever`: these and others, that were there at other times."""
        self._nodes, self._settings = ever, settings
        self._types = [gpu_type.name for gpu_type in gpu_types(ever, settings)]
        self._by_node = {node.name: name for node, name in zip(ever, self._types)}
        self._there = {self._by_node[node.name] for node in nodes}
        self._known: dict[str, frozenset[str]] = {}

    def of(self, gang: _RecordedGang) -> str | None:
        """As `JobList.allowed`: those of nodes where all its workers may be, and where they were; "" if that is all.

        None: no node has such a type any more.
        """
        allowed = set(self._types)
        for pod in _workers(gang, self._settings):
            allowed &= self._of_pod(pod)
        allowed |= {self._by_node[pod.node] for pod in gang.pods.values() if pod.node in self._by_node}
        allowed &= self._there
        return None if not allowed else "" if allowed == self._there else join_types(allowed)

    def _of_pod(self, pod: Pod) -> frozenset[str]:
        asks = repr((dict(pod.selector), pod.affinity, pod.tolerations))
        if asks not in self._known:
            pairs = zip(self._nodes, self._types)
            self._known[asks] = frozenset(name for node, name in pairs if not rights_reason(pod, node))
        return self._known[asks]


def _day(gangs: list[_RecordedGang], cluster: Cluster, types: _TypesOfNodes, settings: PlanSettings) -> RecordedDay:
    largest = int(np.asarray(cluster.group_gpus).max())
    tenants = sorted({pod.namespace for gang in gangs for pod in gang.pods.values()})
    jobs, jct, wait, skipped = [], [], [], {}
    for gang in sorted(gangs, key=lambda gang: natural(gang.key)):
        why_not, allowed = _why_no_job(gang, settings), types.of(gang)
        why_not = why_not or ("for GPUs of nodes that were gone" if allowed is None else "")
        if why_not:
            skipped[why_not] = skipped.get(why_not, 0) + 1
            continue
        job: dict[str, Any] = _job(gang, largest, settings) | {"allowed": allowed}
        end = max(gang.ended_s.values())
        tenant = next(iter(gang.pods.values())).namespace
        jobs.append(job | {"tenant": tenants.index(tenant), "tenant_name": tenant, "job_id": gang.key})
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
    """The gang as arguments of `make_job_list`; a simulated worker lies in one GPU group.

    A pod that needs more is as few equal workers as have its GPUs.
    """
    pods = sorted(gang.pods.values(), key=lambda pod: natural(pod.name))
    workers = _workers(gang, settings)
    gpus = workers[0].units(settings.gpu_resource)
    parts = next(parts for parts in range(1, gpus + 1) if gpus % parts == 0 and gpus // parts <= largest_group)
    return {
        "submit_s": min(pod.created_s for pod in pods),
        "duration_s": max(max(gang.ended_s.values()) - max(gang.bound_s.values()), 1e-3),
        "workers": len(workers) * parts,
        "gpus_per_worker": gpus // parts,
        "model": profile_of(pods, settings)[0],
    }


def _workers(gang: _RecordedGang, settings: PlanSettings) -> list[Pod]:
    return [pod for pod in gang.pods.values() if pod.units(settings.gpu_resource)]


def _why_no_job(gang: _RecordedGang, settings: PlanSettings) -> str:
    """Why a gang is no job of the simulation; "" if it is one."""
    workers = _workers(gang, settings)
    if not workers:
        return "without GPUs"
    if gang.over:
        return "over before the recording"
    if gang.early:
        return "running before the recording"
    if gang.replaced:
        return "whose pods were replaced while others ran"
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
