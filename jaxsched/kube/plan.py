"""The pure core: `Planner.plan(snapshot) -> Plan`. No I/O, no clock, no state but the compiled policy.

Whole gangs only: every gang of a plan has a node for each of its pending pods, checked against the ledger of all
resources. Gangs are shown to the policy in classes: those of a class may use the same nodes to the same extent, so that
the policy, which knows GPUs but neither taints nor memory, is shown only what is legal.
"""

import dataclasses
import hashlib
import time
from collections.abc import Iterable, Sequence

import numpy as np

from jaxsched.kube.brain import Brain, Decision, PolicyError
from jaxsched.kube.encode import Piece, build_inputs, home_of, on_cluster, pieces, tenants_of
from jaxsched.kube.filters import keeps_away
from jaxsched.kube.fleet import Fleet, Sizes, gpu_nodes, read_fleet, shape_of
from jaxsched.kube.gangs import Gang, form_gangs
from jaxsched.kube.ledger import Ledger, pods_that_fit
from jaxsched.kube.objects import Node, Pod, Refusal
from jaxsched.kube.settings import Settings
from jaxsched.kube.snapshot import Snapshot

PATIENCE_S = 600.0  # a gang that waits longer than this is late: the fallback places it, GPUs are kept for it


@dataclasses.dataclass(frozen=True)
class Assignment:
    """Where one pod goes."""

    pod: Pod
    node: str
    groups: tuple[int, ...]  # GPU groups on that node, advice


@dataclasses.dataclass(frozen=True)
class Placement:
    """Where one gang goes; `decision` identifies it in logs, events and annotations."""

    gang: Gang
    assignments: tuple[Assignment, ...]
    decision: str
    by: str  # the policy, the fallback, `rest` (of a gang that has started) or `span` (over several partitions)


@dataclasses.dataclass(frozen=True)
class Plan:
    """What to bind, in this order, and why the other gangs are not there."""

    placements: tuple[Placement, ...]
    reasons: dict[str, Refusal]  # by gang key
    pending: dict[str, Gang]  # every gang that has unbound pods, by key
    policy_failures: tuple[str, ...]  # nan, timeout or error: the fallback took over
    decision_s: float  # in the policy, all rounds
    rounds: int
    nodes_without_gpus: int
    refused_nodes: dict[str, str]  # name -> what cannot be read


class Planner:
    """Holds what survives from plan to plan: the compiled policy and the arrays of nodes that did not change."""

    def __init__(self, brain: Brain, settings: Settings, patience_s: float = PATIENCE_S) -> None:
        self.brain, self.settings, self.patience_s = brain, settings, patience_s
        self._shapes: tuple = ()
        self._fleet: Fleet | None = None
        self._room: Sizes | None = None

    def fleet(self, nodes: Sequence[Node]) -> Fleet:
        """The GPU nodes as arrays, in the sizes of the last time if they still fit."""
        own = gpu_nodes(nodes, self.settings)
        shapes = tuple(sorted(shape_of(node, self.settings) for node in own))
        if self._fleet is None or shapes != self._shapes:
            self._fleet, self._shapes = read_fleet(own, self.settings, self._room), shapes
            self._room = self._fleet.sizes if own else self._room
        current = {node.name: node for node in own}
        self._fleet = dataclasses.replace(self._fleet, nodes=tuple(current[node.name] for node in self._fleet.nodes))
        return self._fleet

    def plan(self, snapshot: Snapshot) -> Plan:
        """The plan for a snapshot; the same snapshot gives the same plan."""
        fleet = self.fleet(snapshot.nodes)
        self.brain.prepare(fleet)
        return _Work(self, snapshot, fleet).run()


class _Work:
    """One plan in the making."""

    def __init__(self, planner: Planner, snapshot: Snapshot, fleet: Fleet) -> None:
        self.settings, self.brain, self.patience_s = planner.settings, planner.brain, planner.patience_s
        self.snapshot, self.fleet = snapshot, fleet
        self.ledger = Ledger(fleet, snapshot.pods, self.settings.gpu_resource)
        self.running = pieces(fleet, self.ledger, snapshot.pods, self.settings, snapshot.now_s)
        self.reasons: dict[str, Refusal] = {}
        self.placements: list[Placement] = []
        self.failures: list[str] = []
        self.closed = np.zeros(len(fleet.nodes), bool)  # kept for the rest of gangs that have started
        self.rounds, self.decision_s = 0, 0.0
        self._away: dict[str, dict[int, str]] = {}

    def run(self) -> Plan:
        shot = self.snapshot
        gangs = form_gangs(shot.pods, shot.groups, shot.served, self.settings, shot.now_s)
        gangs = [gang for gang in gangs if gang.pending]
        ready = [gang for gang in gangs if self._may_start(gang)]
        for gang in ready:
            if gang.bound:
                self._finish(gang)
        whole = [gang for gang in ready if not gang.bound]
        self._span_large(whole)
        whole = [gang for gang in whole if not self._has(gang)]
        blocked: set[str] = set()
        for _ in range(2):  # a gang that only looked as if it fitted gets a second, exact look
            for one in self._classes([gang for gang in whole if gang.key not in blocked]):
                blocked |= self._place(one, fallback=False)
            whole = [gang for gang in whole if not self._has(gang)]
            if not blocked:
                break
            blocked = set()
        for gang in whole:
            self.reasons[gang.key] = self._why_not(gang)
        late = [gang for gang in whole if self._is_late(gang) and self.reasons[gang.key].reason == "PolicyWaits"]
        for one in self._classes(late):
            self._place(one, fallback=True)
        placed = {placement.gang.key for placement in self.placements}
        units = {node.name for node in self.fleet.nodes}
        return Plan(
            placements=tuple(self.placements),
            reasons={key: reason for key, reason in self.reasons.items() if key not in placed},
            pending={gang.key: gang for gang in gangs},
            policy_failures=tuple(self.failures),
            decision_s=self.decision_s,
            rounds=self.rounds,
            nodes_without_gpus=sum(node.name not in units and node.refusal is None for node in shot.nodes),
            refused_nodes={node.name: node.refusal.message for node in shot.nodes if node.refusal is not None},
        )

    def _may_start(self, gang: Gang) -> bool:
        reason = gang.refusal or gang.waiting or self._claims(gang)
        if reason is not None:
            self.reasons[gang.key] = reason
        return reason is None

    def _claims(self, gang: Gang) -> Refusal | None:
        """Volumes: only claims that are bound already; which nodes another may bind on is the volume binder's say."""
        for pod in gang.pending:
            for claim in pod.claims:
                trouble = self.snapshot.claims.get(f"{pod.namespace}/{claim}", "does not exist")
                if trouble:
                    return Refusal("VolumeUnsupported", f"pod {pod.key}: persistent volume claim {claim} {trouble}")
        return None

    def _has(self, gang: Gang) -> bool:
        return any(placement.gang.key == gang.key for placement in self.placements)

    def _is_late(self, gang: Gang) -> bool:
        return self.snapshot.now_s - gang.submit_s > self.patience_s

    def _away_from(self, pod: Pod) -> dict[int, str]:
        """Node row -> why the pod may not go there."""
        signature = str((pod.selector, pod.affinity, pod.tolerations))
        if signature not in self._away:
            reasons = ((row, keeps_away(pod, node)) for row, node in enumerate(self.fleet.nodes))
            self._away[signature] = {row: reason for row, reason in reasons if reason}
        return self._away[signature]

    def _eligible(self, pod: Pod) -> np.ndarray:
        """bool[S]: nodes that the pod may go to and that are not kept for others."""
        eligible = ~self.closed
        eligible[list(self._away_from(pod))] = False
        return eligible

    def _merged(self, gang: Gang) -> bool:
        return gang.gpus_per_worker > max((max(groups) for groups in self.fleet.groups), default=0)

    def _usable(self, gang: Gang) -> np.ndarray:
        """int[S, K]: GPUs that the gang's workers may use."""
        need = self.ledger.vector(gang.workers)
        return self.ledger.usable_groups(need, self._eligible(gang.workers[0]), self._merged(gang))

    # Gangs that no partition can hold

    def _span_large(self, gangs: Sequence[Gang]) -> None:
        """Place gangs over several partitions that are too large for one, and late ones that no partition has room for.

        A partition is how agents share the work, not a wall. For the first late gang that fits nowhere, but would when
        our own pods have ended, nodes are kept free of others: those with most free GPUs, as many as it then needs.
        """
        keeping = False
        for gang in gangs:
            room = self._usable(gang) // max(gang.gpus_per_worker, 1)
            here = on_cluster(self.fleet, room).sum((1, 2)).max(initial=0)
            late = self._is_late(gang)
            if here >= len(gang.workers) or not (late or self._largest_partition(gang) < len(gang.workers)):
                continue
            if self._span(gang, room) or not late or keeping:
                continue
            capacity, missing = self._capacity_then(gang), len(gang.workers)
            if capacity.sum() < missing:
                continue
            keeping = True
            for row in sorted(np.flatnonzero(capacity), key=lambda row: (-room[row].sum(), row)):
                if missing > 0:
                    self.closed[row], missing = True, missing - int(capacity[row])

    def _span(self, gang: Gang, room: np.ndarray) -> bool:
        """Fill nodes of the partition with most room first; whether the gang fits and is placed."""
        by_partition = on_cluster(self.fleet, room).sum((1, 2))
        order = sorted(
            range(len(room)), key=lambda row: (-by_partition[self.fleet.place[row, 0]], -room[row].sum(), row)
        )
        merged = self._merged(gang)
        seats = [
            (row, () if merged else (group,))
            for row in order
            for group in range(room.shape[1])
            for _ in range(int(room[row, group]))
        ]
        if len(seats) < len(gang.workers):
            return False
        chosen = [(pod, row, groups) for pod, (row, groups) in zip(gang.workers, seats)]
        return self._commit(gang, chosen + [(pod, -1, ()) for pod in gang.ps], "span")

    def _capacity_then(self, gang: Gang) -> np.ndarray:
        """int[S]: workers of the gang on each node once all pods of our own have ended; others may stay for good."""
        ledger = self._lasting()
        need = ledger.vector(gang.workers)
        usable = ledger.usable_groups(need, self._eligible(gang.workers[0]), self._merged(gang))
        return (usable // max(gang.gpus_per_worker, 1)).sum(1)

    def _lasting(self, also: Sequence[Pod] = ()) -> Ledger:
        """What is free once all pods of our own but `also` have ended."""
        others = [pod for pod in self.snapshot.pods if pod.scheduler != self.settings.scheduler_name]
        return Ledger(self.fleet, [*others, *also], self.settings.gpu_resource)

    def _capacity(self, gang: Gang) -> np.ndarray:
        """int[S, K]: workers of the gang that each group (of the split or merged view) holds when it is empty."""
        return self._gpus(self._merged(gang)) // max(gang.gpus_per_worker, 1)

    def _gpus(self, merged: bool) -> np.ndarray:
        """int[S, K]: GPUs of each group; in the merged view all of a node's are in group 0."""
        gpus = self.ledger.group_gpus
        if not merged:
            return gpus
        return np.concatenate([gpus.sum(1, keepdims=True), np.zeros_like(gpus[:, 1:])], 1)

    # The policy's part

    def _classes(self, gangs: Sequence[Gang]) -> list[list[Gang]]:
        """Gangs that may use the same GPUs, higher priority first, then by the oldest gang."""
        classes: dict[tuple, list[Gang]] = {}
        for gang in gangs:
            classes.setdefault((-gang.priority, self._merged(gang), self._usable(gang).tobytes()), []).append(gang)
        return sorted(classes.values(), key=lambda one: (-one[0].priority, one[0].submit_s, one[0].key))

    def _queues(self, gangs: Sequence[Gang], usable: np.ndarray) -> list[list[Gang]]:
        """A queue per partition. In full ones the oldest gang stays, and those that fit now go before the others."""
        partitions = self.fleet.sizes.partitions
        merged = self._merged(gangs[0])
        could_room = np.where(self._eligible(gangs[0].workers[0])[:, None], self._gpus(merged), 0)
        empty = on_cluster(self.fleet, could_room)
        now = on_cluster(self.fleet, usable)
        queues: list[list[tuple[bool, Gang]]] = [[] for _ in range(partitions)]
        for gang in gangs:
            size, count = gang.gpus_per_worker, len(gang.workers)
            could = (empty // size).sum((1, 2)) >= count
            if not could.any():
                continue
            first = home_of(gang.key, partitions)
            home = min(np.flatnonzero(could), key=lambda partition: (partition - first) % partitions)
            fits = bool((now[home] // size).sum() >= count)
            queues[home].append((fits, gang))
        limit = self.settings.queue_slots
        cut = []
        for queue in queues:
            ranked = queue[:1] + sorted(queue[1:], key=lambda entry: not entry[0])
            cut.append([gang for _, gang in ranked[:limit]])
        return cut

    def _place(self, gangs: list[Gang], fallback: bool) -> set[str]:
        """Rounds of decisions for one class. Returns gangs that the policy placed but that do not fit exactly."""
        usable, merged = self._usable(gangs[0]), self._merged(gangs[0])
        queues = self._queues(gangs, usable)
        if not any(queues) or not usable.any():
            return set()
        spaces = tenants_of(
            [*(g.namespace for g in gangs), *(p.namespace for p in self.running)], self.settings.tenants
        )
        running = self.running + self._started()
        inputs, rows = build_inputs(self.fleet, self.settings, queues, running, spaces, merged, self.snapshot.now_s)
        start = time.perf_counter()
        state = self.brain.begin(self.fleet, inputs, merged)
        failed: set[str] = set()
        while self.rounds < self.settings.max_decisions:
            free = on_cluster(self.fleet, self._usable(gangs[0]))
            try:
                state, decision = self.brain.decide(state, free, self.rounds, fallback)
            except PolicyError as error:
                self.failures.append(str(error))
                fallback = True
                continue
            self.rounds += 1
            for partition in np.flatnonzero(decision.placed):
                gang = rows[decision.row[partition]]
                chosen = self._chosen(gang, int(partition), decision, merged)
                by = self.brain.spare.name if fallback else self.brain.main.name
                if chosen is None or not self._commit(gang, chosen, by):
                    failed.add(gang.key)
            if failed or not decision.moved:
                break  # after a failure the state shows what is not there
        self.decision_s += time.perf_counter() - start
        return failed

    def _started(self) -> list[Piece]:
        """Pieces of the gangs that this plan has placed so far: classes see each other's."""
        pods = [assignment.pod for placement in self.placements for assignment in placement.assignments]
        node_of = {a.pod.uid: a.node for placement in self.placements for a in placement.assignments}
        moved = [dataclasses.replace(pod, node=node_of[pod.uid], created_s=self.snapshot.now_s) for pod in pods]
        return pieces(self.fleet, self.ledger, moved, self.settings, self.snapshot.now_s)

    def _chosen(
        self, gang: Gang, partition: int, decision: Decision, merged: bool
    ) -> list[tuple[Pod, int, tuple[int, ...]]] | None:
        """(pod, node row, groups) for workers and PS; None if the policy's counts do not add up."""
        rows = self.fleet.rows[partition]
        seats: list[tuple[int, tuple[int, ...]]] = []
        for slot, group in np.argwhere(decision.workers[partition] > 0):
            where = (int(rows[slot]), () if merged else (int(group),))
            seats += [where] * int(decision.workers[partition, slot, group])
        ps_seats = [
            int(rows[slot])
            for slot, group in np.argwhere(decision.ps[partition] > 0)
            for _ in range(int(decision.ps[partition, slot, group]))
        ]
        if len(seats) != len(gang.workers) or len(ps_seats) != len(gang.ps) or any(row < 0 for row, _ in seats):
            return None
        workers = [(pod, row, groups) for pod, (row, groups) in zip(gang.workers, seats)]
        return workers + [(pod, row, ()) for pod, row in zip(gang.ps, ps_seats)]

    # Exact booking

    def _commit(self, gang: Gang, chosen: Sequence[tuple[Pod, int, tuple[int, ...]]], by: str) -> bool:
        """Book all pods or none. PS that do not fit where they should, and helpers, go near the workers."""
        done: list[Assignment] = []

        def book(pod: Pod, row: int, groups: tuple[int, ...]) -> None:
            taken = self.ledger.take(pod, row, groups)
            done.append(Assignment(pod, self.fleet.nodes[row].name, taken))

        near = [row for _, row, _ in chosen]
        wanted = [(pod, row, groups) for pod, row, groups in chosen]
        for pod, row, groups in wanted + [(pod, -1, ()) for pod in gang.helpers]:
            fits = row >= 0 and self._eligible(pod)[row] and self.ledger.fits(pod, row)
            if not fits and not pod.units(self.settings.gpu_resource):
                row = self._somewhere(pod, near)
                fits = row >= 0
            if not fits:
                for assignment in done:
                    self.ledger.give(assignment.pod)
                return False
            book(pod, row, groups)
        self.placements.append(Placement(gang, tuple(done), decision_id(done), by))
        return True

    def _somewhere(self, pod: Pod, near: Iterable[int]) -> int:
        """The node for a pod that the policy does not place: one of `near`, else the one with least free GPUs."""
        gpu = self.ledger.column[self.settings.gpu_resource]
        fits = [row for row in np.flatnonzero(self._eligible(pod)) if self.ledger.fits(pod, int(row))]
        near = set(near)
        return int(min(fits, key=lambda row: (row not in near, self.ledger.free[row, gpu], row), default=-1))

    def _finish(self, gang: Gang) -> None:
        """Place the unbound pods of a gang that has started, all or none, before anything else.

        If they do not fit, one node for each that would fit without our other pods takes no other gang until they do.
        """
        near = [self.ledger.row[pod.node] for pod in gang.bound if pod.node in self.ledger.row]
        chosen: list[tuple[Pod, int, tuple[int, ...]]] = []
        trial: list[Pod] = []
        for pod in (*gang.workers, *gang.ps, *gang.helpers):
            row = self._somewhere(pod, near)
            if row < 0:
                break
            self.ledger.take(pod, row)
            trial.append(pod)
            chosen.append((pod, row, ()))
        for pod in trial:
            self.ledger.give(pod)
        if len(chosen) == len(gang.pending) and self._commit(dataclasses.replace(gang, helpers=()), chosen, "rest"):
            return
        gpu = self.ledger.column[self.settings.gpu_resource]
        then = self._lasting(gang.bound)
        for pod in gang.workers:
            able = [row for row in np.flatnonzero(self._eligible(pod)) if then.fits(pod, int(row))]
            if able:
                self.closed[max(able, key=lambda row: (self.ledger.free[row, gpu], -row))] = True
        short = len(gang.pending) - len(chosen)
        self.reasons[gang.key] = Refusal(
            "GangIncomplete", f"{len(gang.bound)} pods run, {short} of the other {len(gang.pending)} fit nowhere"
        )

    # Explanations

    def _why_not(self, gang: Gang) -> Refusal:
        """Why a gang was not placed: counts of nodes by reason, as the default scheduler words it."""
        total, pod = len(self.fleet.nodes), gang.workers[0]
        need = self.ledger.vector(gang.workers)
        if need is None:
            names = [name for name, _ in pod.requests if name not in self.ledger.column]
            return Refusal("Insufficient", f"no GPU node has {', '.join(names)}")
        away = self._away_from(pod)
        usable = self._usable(gang)
        room = usable // max(gang.gpus_per_worker, 1)
        by_partition = on_cluster(self.fleet, room).sum((1, 2))
        if by_partition.max(initial=0) >= len(gang.workers):
            return Refusal(
                "PolicyWaits", f"it would fit now, but policy {self.brain.main.name} waits or prefers others"
            )
        counts: dict[str, int] = {}
        for reason in away.values():
            counts[reason] = counts.get(reason, 0) + 1
        full = int(((room.sum(1) == 0) & ~np.isin(np.arange(total), list(away))).sum())
        parts = [f"{count} {reason}" for reason, count in sorted(counts.items(), key=lambda item: -item[1])]
        parts += [f"{full} without room for a pod of it"] if full else []
        largest = self._largest_partition(gang)
        if largest < len(gang.workers):
            return Refusal(
                "LargerThanPartition",
                f"{len(gang.workers)} pods x {gang.gpus_per_worker} GPUs: of the nodes allowed, the largest of "
                f"{self.fleet.sizes.partitions} partitions holds {largest} when empty, and all of them now "
                f"{int(by_partition.sum())}",
            )
        return Refusal(
            "Insufficient",
            f"{len(gang.workers)} pods x {gang.gpus_per_worker} GPUs, at most {int(by_partition.max(initial=0))} fit "
            f"one partition now; of {total} GPU nodes: {', '.join(parts) or 'too few with room'}",
        )

    def _largest_partition(self, gang: Gang) -> int:
        pods = np.where(self._eligible(gang.workers[0])[:, None], self._capacity(gang), 0).sum(1)
        need = self.ledger.vector(gang.workers)
        pods = np.zeros_like(pods) if need is None else np.minimum(pods, pods_that_fit(self.ledger.total, need))
        sums = np.zeros(self.fleet.sizes.partitions, np.int64)
        np.add.at(sums, self.fleet.place[:, 0], pods)
        return int(sums.max(initial=0))


def decision_id(assignments: Sequence[Assignment]) -> str:
    """12 hexadecimal digits that depend on the pods and where they go."""
    text = "\n".join(f"{one.pod.uid} {one.node} {one.groups}" for one in assignments)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
