"""Pools: sets of nodes whose gangs compete for them alone, so that each can be simulated by itself.

The simulator knows GPUs and no node rights. Gangs that may use the same nodes share a pool; pools that overlap are one,
and then some of its gangs may use a part of it only. They are simulated as if they could use all of it, for the sake
of the others, and nothing is said of themselves.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool

from jaxsched.cluster.hardware import Cluster
from jaxsched.kube.capacity.free_capacity import FreeCapacity
from jaxsched.kube.capacity.running import RunningPart
from jaxsched.kube.read.gangs import Gang
from jaxsched.kube.whatif.history import History
from jaxsched.pytree import on_device


@dataclasses.dataclass(frozen=True, eq=False)
class Pool:
    """Some nodes, the gangs that wait for them, and what runs there."""

    gangs: tuple[Gang, ...]  # higher priority first, then the oldest
    restricted: frozenset[str]  # keys of those that may use a part of the nodes only
    cluster: Cluster  # nodes of other pools have no GPUs here
    merged: bool  # the GPU groups of a node count as one
    parts: tuple[RunningPart, ...]  # whose workers of other pools are left out; in the view of `cluster`
    later: History | None = None  # what may come for these nodes; None: nobody


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
    return [
        _pool(
            capacity,
            members,
            {one.key for one in members if (legal[one.key] != nodes).any()},
            nodes,
            running,
            come,
        )
        for (nodes, members), come in zip(found, later)
    ]


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
    restricted: set[str],
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
    return Pool(
        gangs=tuple(sorted(gangs, key=lambda gang: (-gang.priority, gang.submit_s, gang.key))),
        restricted=frozenset(restricted),
        cluster=cluster.replace(group_gpus=on_device(gpus, np.int32)),
        merged=merged,
        parts=tuple(parts),
        later=later,
    )
