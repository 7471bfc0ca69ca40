"""The policy's part of a plan: gangs by class into queues, rounds of decisions, and each decision reserved exactly.

Of placements that are equal in the simulator's eyes a gang gets the one on the nodes that it prefers. Two nodes of a
rack are equal if their hardware, the GPUs that the gang may use, and what runs on them are. Two racks are equal if
their nodes are, one by one, and the tiers above them are the same. `S` GPU nodes, `A` all nodes.
"""

import dataclasses
import time
import zlib
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence, Set

import numpy as np
from jaxtyping import Float, Int

from jaxsched.kube.capacity.fleet import Fleet, position, topology_labels
from jaxsched.kube.capacity.free_capacity import FreeCapacity, Placement, Target
from jaxsched.kube.capacity.ledger import RunningPart, find_running_parts
from jaxsched.kube.plan.explain import blame
from jaxsched.kube.policy import Decision, GuardedPolicy, PolicyError, build_arrays
from jaxsched.kube.read.gangs import Gang
from jaxsched.kube.read.settings import PlanSettings

LEAST_GAIN = 1e-6  # of a score, below which it is rounding


def find_preferred(
    capacity: FreeCapacity, gang: Gang, targets: Sequence[Target], running: Sequence[RunningPart], merged: bool
) -> list[Target] | None:
    """Targets on equal nodes with a higher score; None if there are none.

    `running`: all gangs that have GPUs. `merged`: the GPU groups of a node count as one.
    """
    pods = [pod for pod, _, _ in targets]
    if not capacity.preferences.wanted(pods) or any(row < 0 for _, row, _ in targets):
        return None
    used, usable = Counter(row for _, row, _ in targets), capacity.usable(gang, merged)
    if not all(usable[row].any() for row in used):  # a parameter server where no worker could be
        return None
    score = capacity.preferences.of_all(pods, capacity.allowed(gang.workers[0]))
    alike = _EqualNodes(capacity.fleet, capacity.settings, usable, running)
    where = alike.best(used, score)
    gain = sum(count * (score[where[row]] - score[row]) for row, count in used.items())
    return [(pod, where[row], groups) for pod, row, groups in targets] if gain > LEAST_GAIN else None


class _EqualNodes:
    """Which nodes and racks are equal."""

    def __init__(
        self, fleet: Fleet, settings: PlanSettings, usable: Int[np.ndarray, "S K"], running: Iterable[RunningPart]
    ) -> None:
        tiers = topology_labels(fleet.nodes, settings)
        self.rack = [(int(fleet.place[row, 0]), position(node, tiers)) for row, node in enumerate(fleet.nodes)]
        self.kind = _kinds(fleet, usable, running)
        self.rows: dict[tuple, list[int]] = {}
        for row, rack in enumerate(self.rack):
            self.rows.setdefault(rack, []).append(row)
        shared = Counter(where for _, where in self.rows)  # a rack in two partitions is like no other
        self.rack_kind = {
            rack: (rack[0], rack[1][:2], "" if shared[rack[1]] == 1 else rack, sorted(self.kind[row] for row in rows))
            for rack, rows in self.rows.items()
        }

    def best(self, used: Mapping[int, int], score: Float[np.ndarray, "A"]) -> dict[int, int]:
        """Node -> node in its place. Those with most pods choose first, racks first, then nodes in them."""
        by_rack: dict[tuple, list[int]] = {}
        for row in used:
            by_rack.setdefault(self.rack[row], []).append(row)
        taken: set[tuple] = set()
        where: dict[int, int] = {}
        for rack in sorted(by_rack, key=lambda one: (-sum(used[row] for row in by_rack[one]), one)):
            found = []
            for other in self.rows:
                if other not in taken and self.rack_kind[other] == self.rack_kind[rack]:
                    chosen = self._in_rack(by_rack[rack], other, used, score)
                    gain = sum(used[row] * score[to] for row, to in chosen.items())
                    found.append((gain, other == rack, other not in by_rack, other, chosen))
            *_, other, chosen = max(found, key=lambda one: one[:3])
            taken.add(other)
            where |= chosen
        return where

    def _in_rack(
        self, own: Sequence[int], rack: tuple, used: Mapping[int, int], score: Float[np.ndarray, "A"]
    ) -> dict[int, int]:
        """The best nodes of a rack for those that are used."""
        where: dict[int, int] = {}
        for kind in {self.kind[row] for row in own}:
            asking = sorted((row for row in own if self.kind[row] == kind), key=lambda row: (-used[row], row))
            there = [row for row in self.rows[rack] if self.kind[row] == kind]
            best = sorted(there, key=lambda row: (-score[row], row not in used, row))
            where |= dict(zip(asking, best))
        return where


def _kinds(fleet: Fleet, usable: Int[np.ndarray, "S K"], running: Iterable[RunningPart]) -> list[str]:
    """A text for each node; equal nodes have the same. A gang on several nodes is equal to no other."""
    load: dict[int, list[str]] = {}
    nodes_of = Counter(part.gang for part in running for _ in np.flatnonzero(part.workers.any(1)))
    for part in running:
        for slot in np.flatnonzero(part.workers.any(1)):
            name = part.gang if nodes_of[part.gang] > 1 else ""
            row = int(fleet.rows[part.partition, slot])
            load.setdefault(row, []).append(f"{part.model} {part.workers[slot].tolist()} {name}")
    hardware = [np.asarray(array) for array in (fleet.split.group_gpus, fleet.split.group_gpu_type)]
    cores = np.asarray(fleet.split.group_cores)
    kinds = []
    for row, (partition, slot) in enumerate(fleet.place):
        own = [array[partition, slot].tolist() for array in (*hardware, cores)]
        kinds.append(f"{own} {usable[row].tolist()} {sorted(load.get(row, []))}")
    return kinds


@dataclasses.dataclass(frozen=True)
class GangClass:
    """Gangs of one priority that may use the same GPUs of the same nodes, the oldest first."""

    gangs: tuple[Gang, ...]
    merged: bool  # the GPU groups of a node count as one, for all of them


def equivalence_classes(capacity: FreeCapacity, gangs: Sequence[Gang], alone: Set[str]) -> list[GangClass]:
    """Gangs that may use the same GPUs, higher priority first, then by the oldest; those of `alone` by themselves.

    Where one needs whole nodes, all that may use these are shown nodes as wholes: so they are in one queue, and the
    policy's order and what it reserves hold between them.
    """
    by_itself = {gang.key: gang.key if gang.key in alone else "" for gang in gangs}
    needs = {gang.key for gang in gangs if _needs_whole_nodes(capacity, gang)}
    views = {_legal(capacity, gang, True) for gang in gangs if gang.key in needs and not by_itself[gang.key]}
    needs |= {gang.key for gang in gangs if not by_itself[gang.key] and views and _legal(capacity, gang, True) in views}
    found: dict[Hashable, list[Gang]] = {}
    for gang in gangs:
        merged = gang.key in needs
        found.setdefault((merged, by_itself[gang.key], _legal(capacity, gang, merged)), []).append(gang)
    classes = [GangClass(tuple(alike), alike[0].key in needs) for alike in found.values()]
    return sorted(classes, key=lambda one: (-one.gangs[0].priority, one.gangs[0].submit_s, one.gangs[0].key))


def _needs_whole_nodes(capacity: FreeCapacity, gang: Gang) -> bool:
    with blame([gang]):
        return capacity.merged(gang)


def _legal(capacity: FreeCapacity, gang: Gang, merged: bool) -> tuple[int, bytes]:
    with blame([gang]):
        return gang.priority, capacity.usable(gang, merged).tobytes()


class PolicyRounds:
    """All decisions of one plan: how many, how long they took, and how the policy failed."""

    def __init__(self, policy: GuardedPolicy, capacity: FreeCapacity, running: list[RunningPart], now_s: float) -> None:
        self.policy, self.capacity, self.running, self.now_s = policy, capacity, running, now_s
        self.count, self.decision_s = 0, 0.0
        self.policy_failures: list[str] = []

    @property
    def exhausted(self) -> bool:
        """The plan has made all decisions that it may."""
        return self.count >= self.capacity.settings.max_decisions

    def place(self, alike: GangClass, before: Sequence[Placement], fallback: bool) -> tuple[list[Placement], set[str]]:
        """Rounds of decisions for one class, `before` being what the plan has placed so far.

        Returns what is placed and reserved, and the gangs that the policy placed but that do not fit exactly. A class
        with more gangs than the arrays hold at once gets further rounds: nothing with a lower priority goes before it.
        """
        placed: list[Placement] = []
        failed: set[str] = set()
        gangs = list(alike.gangs)
        while True:
            more, wrong, full = self._fill(gangs, alike.merged, [*before, *placed], fallback)
            placed += more
            failed |= wrong
            done = failed | {placement.gang.key for placement in more}
            gangs = [gang for gang in gangs if gang.key not in done]
            if not (more and full and gangs):
                return placed, failed

    def _fill(
        self, gangs: list[Gang], merged: bool, before: Sequence[Placement], fallback: bool
    ) -> tuple[list[Placement], set[str], bool]:
        """`place` for as many gangs as queues and running slots hold; also whether one of them was full."""
        capacity, settings = self.capacity, self.capacity.settings
        usable = capacity.usable(gangs[0], merged)
        queues, full = _queues(capacity, gangs, merged, usable)
        if not any(queues) or not usable.any():
            return [], set(), False
        running = self.running + _started(capacity, before, self.now_s)
        names = [*(gang.namespace for gang in gangs), *(part.namespace for part in running)]
        tenants = tenants_of(names, settings.tenants)
        arrays, rows = build_arrays(capacity.fleet, settings, queues, running, tenants, merged, self.now_s)
        start = time.perf_counter()
        fallback = fallback or not self.policy.is_ready(capacity.fleet)
        by = self.policy.fallback.name if fallback else self.policy.main.name
        placed: list[Placement] = []
        rest: list[Gang] = []
        failed: set[str] = set()
        swapped = False
        slots = (arrays.running_row < 0).sum(1)
        try:
            rounds = self.policy.begin(capacity.fleet, arrays, merged, fallback)
            while not self.exhausted:
                free = capacity.fleet.by_slot(capacity.usable(gangs[0], merged))
                decision = rounds.decide(free, self.count)
                self.count += 1
                for partition in np.flatnonzero(decision.placed):
                    gang = rows[decision.row[partition]]
                    targets = _targets(capacity, gang, int(partition), decision, merged)
                    placement, elsewhere = self._reserve(gang, targets, by, running, placed, merged)
                    swapped |= elsewhere
                    if placement is None:
                        failed.add(gang.key)
                    else:
                        placed.append(placement)
                        slots[partition] -= 1
                if failed or swapped or not decision.moved:
                    break  # the state shows a gang where it is not
        except PolicyError as error:
            self.policy_failures.append(str(error))
            done = {placement.gang.key for placement in placed}
            rest = [gang for gang in gangs if gang.key not in done]
        self.decision_s += time.perf_counter() - start
        full = full or swapped or bool((slots <= 0).any())
        if rest:
            others, wrong, fuller = self._fill(rest, merged, [*before, *placed], fallback=True)
            placed, failed, full = placed + others, failed | wrong, full or fuller
        return placed, failed, full

    def _reserve(
        self,
        gang: Gang,
        targets: list[Target] | None,
        by: str,
        running: list[RunningPart],
        placed: Sequence[Placement],
        merged: bool,
    ) -> tuple[Placement | None, bool]:
        """Reserve what was decided, or what is equal to it and the gang prefers; whether it was the latter."""
        capacity = self.capacity
        if targets is None:
            return None, False
        if capacity.preferences.wanted([pod for pod, _, _ in targets]):
            started = running + _started(capacity, placed, self.now_s)
            better = find_preferred(capacity, gang, targets, started, merged)
            placement = None if better is None else capacity.place(gang, better, by)
            if placement is not None:
                return placement, True
        return capacity.place(gang, targets, by), False


def _queues(
    capacity: FreeCapacity, gangs: Sequence[Gang], merged: bool, usable: Int[np.ndarray, "S K"]
) -> tuple[list[list[Gang]], bool]:
    """A queue per partition, and whether some hold not all of their gangs.

    In full ones the oldest gang stays, and those that fit now go before the others.
    """
    partitions = capacity.fleet.shape.partitions
    empty, now = capacity.fleet.by_slot(capacity.gpus(gangs[0], merged)), capacity.fleet.by_slot(usable)
    queues: list[list[tuple[bool, Gang]]] = [[] for _ in range(partitions)]
    for gang in gangs:
        size, count = min(gang.gpus_per_worker, 2**31 - 1), len(gang.workers)  # the arrays hold int32
        could = (empty // size).sum((1, 2)) >= count
        if not could.any():
            continue
        first = home_partition(gang.key, partitions)
        home = min(np.flatnonzero(could), key=lambda partition: (partition - first) % partitions)
        fits = bool((now[home] // size).sum() >= count)
        queues[home].append((fits, gang))
    cut, slots = [], capacity.settings.queue_slots
    for queue in queues:
        ranked = queue[:1] + sorted(queue[1:], key=lambda entry: not entry[0])
        cut.append([gang for _, gang in ranked[:slots]])
    return cut, any(len(queue) > slots for queue in queues)


def _started(capacity: FreeCapacity, placements: Sequence[Placement], now_s: float) -> list[RunningPart]:
    """Parts of the gangs that the plan has placed so far: classes see each other's."""
    assignments = [assignment for placement in placements for assignment in placement.assignments]
    moved = [dataclasses.replace(placed.pod, node=placed.node, created_s=now_s) for placed in assignments]
    return find_running_parts(capacity.fleet, capacity.ledger, moved, capacity.settings, now_s)


def _targets(
    capacity: FreeCapacity, gang: Gang, partition: int, decision: Decision, merged: bool
) -> list[Target] | None:
    """Targets for workers and PS; None if the policy's counts do not add up."""
    rows = capacity.fleet.rows[partition]
    targets: list[tuple[int, tuple[int, ...]]] = []
    for slot, group in np.argwhere(decision.workers[partition] > 0):
        where = (int(rows[slot]), () if merged else (int(group),))
        targets += [where] * int(decision.workers[partition, slot, group])
    ps_targets = [
        int(rows[slot])
        for slot, group in np.argwhere(decision.ps[partition] > 0)
        for _ in range(int(decision.ps[partition, slot, group]))
    ]
    if len(targets) != len(gang.workers) or len(ps_targets) != len(gang.ps) or any(row < 0 for row, _ in targets):
        return None
    workers = [(pod, row, groups) for pod, (row, groups) in zip(gang.workers, targets)]
    return workers + [(pod, row, ()) for pod, row in zip(gang.ps, ps_targets)]


def home_partition(key: str, partitions: int) -> int:
    """The partition that a gang goes to first: the same after every restart."""
    return zlib.crc32(key.encode()) % partitions


def tenants_of(names: Iterable[str], count: int) -> dict[str, int]:
    """Index of each namespace, alphabetically; the last index stands for all that are too many."""
    return {name: min(index, count - 1) for index, name in enumerate(sorted(set(names)))}
