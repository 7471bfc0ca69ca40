"""Placements that are equal in the simulator's eyes, and of these the one on the nodes that a gang prefers.

Two nodes of a rack are equal if their hardware, the GPUs that the gang may use, and what runs on them are. Two racks
are equal if their nodes are, one by one, and the tiers above them are the same. `S` GPU nodes, `A` all nodes.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from jaxtyping import Float, Int

from jaxsched.kube.capacity.fleet import Fleet, position, topology_labels
from jaxsched.kube.capacity.free_capacity import FreeCapacity, Target
from jaxsched.kube.capacity.running import RunningPart
from jaxsched.kube.read.gangs import Gang
from jaxsched.kube.read.settings import PlanSettings

LEAST_GAIN = 1e-6  # of a score, below which it is rounding


def find_preferred(
    capacity: FreeCapacity, gang: Gang, targets: Sequence[Target], running: Sequence[RunningPart]
) -> list[Target] | None:
    """Targets on equal nodes with a higher score; None if there are none. `running`: all gangs that have GPUs."""
    pods = [pod for pod, _, _ in targets]
    if not capacity.preferences.wanted(pods) or any(row < 0 for _, row, _ in targets):
        return None
    used, usable = Counter(row for _, row, _ in targets), capacity.usable(gang)
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
