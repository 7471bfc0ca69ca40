"""Why a gang was not placed, in words."""

from collections import Counter

import numpy as np
from jaxtyping import Int

from jaxsched.kube.planning.free_capacity import FreeCapacity
from jaxsched.kube.planning.gangs import Gang
from jaxsched.kube.planning.objects import Refusal


def why_not(capacity: FreeCapacity, gang: Gang, policy: str) -> Refusal:
    """Counts of nodes by reason, as the default scheduler words it; `policy`: the name of the one that decided."""
    if capacity.ledger.vector(gang.workers) is None:
        names = [name for name, _ in gang.workers[0].requests if name not in capacity.ledger.column]
        return Refusal("Insufficient", f"no GPU node has {', '.join(names)}")
    filtered = capacity.filtered_out(gang.workers[0])
    if len(filtered) == len(capacity.fleet.nodes):
        counts = ", ".join(f"{count} {reason}" for reason, count in Counter(filtered.values()).most_common())
        return Refusal("NoNodeAllowed", f"no GPU node may take it: {counts or 'there is none'}")
    workers = capacity.workers(gang)
    now = capacity.by_partition(workers)
    if now.max(initial=0) >= len(gang.workers):
        return Refusal("PolicyWaits", f"it would fit now, but policy {policy} waits or prefers others")
    asked, largest = f"{len(gang.workers)} pods x {gang.gpus_per_worker} GPUs", capacity.largest_partition(gang)
    if largest < len(gang.workers):
        return Refusal(
            "LargerThanPartition",
            f"{asked}: of the nodes allowed, the largest of {capacity.fleet.shape.partitions} partitions holds "
            f"{largest} when empty, and all of them now {int(now.sum())}",
        )
    return Refusal(
        "Insufficient",
        f"{asked}, at most {int(now.max(initial=0))} fit one partition now; of {len(capacity.fleet.nodes)} GPU nodes: "
        f"{_of_nodes(capacity, gang, workers) or 'too few with room'}",
    )


def _of_nodes(capacity: FreeCapacity, gang: Gang, workers: Int[np.ndarray, "S K"]) -> str:
    """How many nodes each filter rejects, and how many are full. `workers`: so many fit now."""
    filtered = capacity.filtered_out(gang.workers[0])
    full = int(((workers.sum(1) == 0) & ~np.isin(np.arange(len(workers)), list(filtered))).sum())
    parts = [f"{count} {reason}" for reason, count in Counter(filtered.values()).most_common()]
    return ", ".join(parts + ([f"{full} without room for a pod of it"] if full else []))
