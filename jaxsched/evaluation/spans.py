"""Who held which GPU, and when: the one thing that timelines, pictures and reports draw."""

import dataclasses
import heapq

import numpy as np
from jaxtyping import Float64, Int64

from jaxsched.cluster.hardware import Cluster
from jaxsched.simulation.outcome import Outcome


@dataclasses.dataclass(frozen=True)
class Spans:
    """One entry per attempt and GPU, in order of start; an attempt on a shared GPU has a part of one."""

    attempt: Int64[np.ndarray, "S"]  # position in `Outcome.attempts`
    job: Int64[np.ndarray, "S"]  # position in the job list
    server: Int64[np.ndarray, "S"]  # row in the inventory
    group: Int64[np.ndarray, "S"]  # of the server
    gpu: Int64[np.ndarray, "S"]  # of the group; which one is ours to say, GPUs of a group are alike
    start_s: Float64[np.ndarray, "S"]
    end_s: Float64[np.ndarray, "S"]  # of an attempt that goes on: the end of the run


class _Group:
    """The GPUs of a group: which are free, and which are shared."""

    def __init__(self) -> None:
        self.spare: list[int] = []  # GPUs that have been given back
        self.used = 0  # and how many have ever been taken
        self.busy: list[tuple[float, int, int]] = []  # until when, which, and as which shared one (-1: whole)
        self.shared: dict[int, tuple[int, int]] = {}  # which each of the shared ones is, and how many are on it

    def free_until(self, now_s: float) -> None:
        """Take back what has ended by now."""
        while self.busy and self.busy[0][0] <= now_s:
            _, gpu, shared = heapq.heappop(self.busy)
            if shared >= 0:
                left = self.shared[shared][1] - 1
                self.shared[shared] = gpu, left
                if left:
                    continue
                del self.shared[shared]
            heapq.heappush(self.spare, gpu)

    def take(self, end_s: float, shared: int = -1) -> int:
        """A free GPU, or the one that stands for a shared one."""
        if shared in self.shared:
            gpu, others = self.shared[shared]
        else:
            gpu, others = heapq.heappop(self.spare) if self.spare else self.used, 0
            self.used = max(self.used, gpu + 1)
        if shared >= 0:
            self.shared[shared] = gpu, others + 1
        heapq.heappush(self.busy, (end_s, gpu, shared))
        return gpu


def spans_of(result: Outcome, cluster: Cluster) -> Spans:
    """The spans of a run. UserError unless its placements were recorded."""
    attempts, wide = result.attempts, result.jobs.gpus_per_worker
    k, server_id = cluster.shape[2], np.asarray(cluster.server_id)
    groups: dict[tuple[int, int], _Group] = {}
    rows: list[tuple[int, int, int, int, int, float, float]] = []
    shared = np.full(len(attempts.job), -1) if attempts.gpu is None else attempts.gpu
    times = zip(attempts.job.tolist(), attempts.start_s.tolist(), attempts.end_s.tolist(), shared.tolist())
    for i, (job, start_s, end_s, on) in enumerate(times):
        workers = attempts.workers[i]
        for place in np.flatnonzero(workers).tolist():
            key = int(server_id[attempts.partition[i], place // k]), place % k
            group = groups.setdefault(key, _Group())
            group.free_until(start_s)
            for _ in range(int(workers[place]) * int(wide[job])):
                rows.append((i, job, *key, group.take(end_s, on), start_s, end_s))
    columns = zip(*rows) if rows else [()] * 7
    kinds = (np.int64,) * 5 + (np.float64,) * 2
    return Spans(*(np.array(column, kind) for column, kind in zip(columns, kinds)))
