"""Pools: sets of nodes whose gangs compete for them alone, so that each can be simulated by itself.

The simulator knows GPUs and their types, and no node rights. Gangs that may use the same nodes share a pool; pools
that overlap are one, and then some of its gangs may use a part of it only. If that is all nodes with some GPU types,
they are bound to these. Else they are simulated as if they could use all of it, for the sake of the others, and nothing
is said of themselves.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Int32

from jaxsched.cluster.hardware import Cluster
from jaxsched.kube.capacity.free_capacity import FreeCapacity
from jaxsched.kube.capacity.running import RunningPart
from jaxsched.kube.read.gangs import Gang
from jaxsched.kube.whatif.history import History
from jaxsched.pytree import on_device
from jaxsched.workload.jobs import join_types


@dataclasses.dataclass(frozen=True, eq=False)
class Pool:
    """Some nodes, the gangs that wait for them, and what runs there."""

    gangs: tuple[Gang, ...]  # higher priority first, then the oldest
    restricted: frozenset[str]  # keys of those that may use a part of the nodes only, which no GPU types tell
    allowed: Mapping[str, str]  # of the others, and of later gangs, that may use some GPU types only: key -> those
    cluster: Cluster  # nodes of other pools have no GPUs here
    merged: bool  # the GPU groups of a node count as one
    parts: tuple[RunningPart, ...]  # whose workers of other pools are left out; in the view of `cluster`
    later: History | None = None  # what may come for these nodes; None: nobody

    @property
    def gpu_sets(self) -> tuple[str, ...]:
        """As of `EnvConfig`."""
        return ("", *sorted(set(self.allowed.values()))) if self.allowed else ()

    def sets_of(self, gangs: Sequence[Gang]) -> Int32[np.ndarray, "gangs"]:
        """`JobTable.allowed` of some gangs."""
        places = [self.gpu_sets.index(self.allowed.get(gang.key, "")) for gang in gangs] if self.allowed else []
        return np.array(places, np.int32)


def pools_of(
    capacity: FreeCapacity,
    gangs: Sequence[Gang],
    running: Sequence[RunningPart],
    history: History | None = None,
) -> list[Pool]:
    """The pools of gangs of which each may use some node.

    A gang of the history belongs to the pool of which it may use most nodes. GPUs are left out beside which pods
    without GPUs, which never end here, leave too little of other resources for all gangs of the pool.
    """
    found: list[tuple[np.ndarray, list[Gang]]] = []  # which nodes, and who waits for them
    legal = {gang.key: _legal(capacity, gang) for gang in gangs}
    for gang in gangs:
        nodes, alike = legal[gang.key], [gang]
        apart = []
        for others, members in found:
            if (others & nodes).any():
                nodes, alike = nodes | others, members + alike
            else:
                apart.append((others, members))
        found = [*apart, (nodes, alike)]
    later = _by_pool(capacity, [nodes for nodes, _ in found], history)
    return [_pool(capacity, members, nodes, running, come) for (nodes, members), come in zip(found, later)]


def _bound(
    capacity: FreeCapacity, gangs: Iterable[Gang], nodes: Bool[np.ndarray, "S"]
) -> tuple[dict[str, str], set[str]]:
    """Of gangs that may use only some of the nodes: the GPU types that these have, and the gangs that none tell."""
    fleet = capacity.fleet
    kind = np.asarray(fleet.split.group_gpu_type)[fleet.place[:, 0], fleet.place[:, 1], 0]
    allowed: dict[str, str] = {}
    others: set[str] = set()
    for gang in gangs:
        own = _legal(capacity, gang) & nodes
        kinds = np.unique(kind[own])
        if (own == nodes).all():
            continue
        if (own == (nodes & np.isin(kind, kinds))).all():
            allowed[gang.key] = join_types(fleet.split.gpu_types[one] for one in kinds.tolist())
        else:
            others.add(gang.key)
    return allowed, others


def _by_pool(
    capacity: FreeCapacity, pools: Sequence[Bool[np.ndarray, "S"]], history: History | None
) -> list[History | None]:
    if history is None or not pools:
        return [None] * len(pools)
    legal = np.array([_legal(capacity, gang) for gang in history.gangs])
    common = np.array([(legal & nodes).sum(1) for nodes in pools])
    own = np.where(common.max(0) > 0, common.argmax(0), -1)
    return [history.only(own == number) for number in range(len(pools))]


def _legal(capacity: FreeCapacity, gang: Gang) -> Bool[np.ndarray, "S"]:
    return capacity.allowed(gang.workers[0])[: len(capacity.fleet.nodes)]


def _pool(
    capacity: FreeCapacity,
    gangs: Sequence[Gang],
    nodes: Bool[np.ndarray, "S"],
    running: Sequence[RunningPart],
    later: History | None,
) -> Pool:
    ledger = capacity.ledger_without_gpu_pods
    come = () if later is None else later.gangs
    fleet, merged = capacity.fleet, any(capacity.merged(gang) for gang in (*gangs, *come))
    inside = fleet.by_slot(np.broadcast_to(nodes[:, None], (len(nodes), fleet.shape.groups)).astype(int))
    cluster = fleet.merged if merged else fleet.split
    most = np.zeros(inside.shape, np.int64)
    for gang in (*gangs, *come):
        need = ledger.vector(gang.workers)
        usable = ledger.usable_groups(need, capacity.allowed(gang.workers[0]), merged)[: len(fleet.nodes)]
        most = np.maximum(most, fleet.by_slot(usable))
    parts = []
    for part in running:
        workers = np.where(inside[part.partition] > 0, part.merged_workers() if merged else part.workers, 0)
        if workers.any():
            parts.append(dataclasses.replace(part, workers=workers, gpus=int(workers.sum())))
    for part in parts:  # what runs there has room there
        most[part.partition] = np.maximum(most[part.partition], part.workers)
    gpus = np.where(inside > 0, np.minimum(np.asarray(cluster.group_gpus), most), 0)
    allowed, restricted = _bound(capacity, (*gangs, *come), nodes)
    return Pool(
        gangs=tuple(sorted(gangs, key=lambda gang: (-gang.priority, gang.submit_s, gang.key))),
        restricted=frozenset(restricted),
        allowed=allowed,
        cluster=cluster.replace(group_gpus=on_device(gpus, np.int32)),
        merged=merged,
        parts=tuple(parts),
        later=later,
    )
