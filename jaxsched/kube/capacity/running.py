"""What runs, for the policy's eyes: the part of each running gang that lies in a partition."""

import dataclasses
from collections.abc import Iterable

import numpy as np
from jaxtyping import Int

from jaxsched.kube.capacity.fleet import Fleet
from jaxsched.kube.capacity.ledger import Ledger
from jaxsched.kube.read.gangs import gang_key, profile_of
from jaxsched.kube.read.objects import DONE_PHASES, Pod
from jaxsched.kube.read.settings import PlanSettings


@dataclasses.dataclass(frozen=True)
class RunningPart:
    """The part of a running gang that lies in one partition."""

    partition: int
    workers: Int[np.ndarray, "N K"]  # one per GPU
    gpus: int
    model: int
    duration_s: float
    elapsed_s: float
    namespace: str
    gang: str  # its key

    def merged_workers(self) -> Int[np.ndarray, "N K"]:
        """The same workers in the merged view, all in group 0 of their node."""
        merged = np.zeros_like(self.workers)
        merged[:, 0] = np.minimum(self.workers.sum(1), 127)
        return merged


def find_running_parts(
    fleet: Fleet, ledger: Ledger, pods: Iterable[Pod], settings: PlanSettings, now_s: float
) -> list[RunningPart]:
    """The running gangs, of all schedulers, by partition, in the split view. Pods of unknown gangs stand alone.

    All-reduce depends on where the GPUs are, not on how pods share them: a worker here is one GPU.
    """
    gangs: dict[str, list[Pod]] = {}
    for pod in pods:
        if (
            ledger.row.get(pod.node, len(fleet.nodes)) < len(fleet.nodes)
            and pod.phase not in DONE_PHASES
            and pod.units(settings.gpu_resource)
        ):
            gangs.setdefault(gang_key(pod), []).append(pod)
    found = []
    for key, members in gangs.items():
        model, duration = profile_of(members, settings)
        began = min(pod.started_s or pod.created_s for pod in members)
        parts: dict[int, Int[np.ndarray, "N K"]] = {}
        for pod in members:
            row, taken = ledger.reserved[pod.uid]
            partition, slot = fleet.place[row]
            shape = (fleet.shape.servers, fleet.shape.groups)
            parts.setdefault(int(partition), np.zeros(shape, np.int64))[slot] += taken
        for partition, workers in parts.items():
            found.append(
                RunningPart(
                    partition=partition,
                    workers=np.minimum(workers, 127),
                    gpus=int(workers.sum()),
                    model=model,
                    duration_s=duration,
                    elapsed_s=max(now_s - began, 0.0),
                    namespace=members[0].namespace,
                    gang=key,
                )
            )
    return [part for part in found if part.gpus]
