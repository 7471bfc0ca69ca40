"""Who held which GPU, and when: the one thing that timelines, pictures and reports draw."""

import dataclasses
import heapq

import numpy as np
from jaxtyping import Float64, Int64

from jaxsched.cluster.hardware import Cluster
from jaxsched.errors import UserError
from jaxsched.simulation.outcome import Outcome


@dataclasses.dataclass(frozen=True)
class Spans:
    """One entry per job and GPU, in order of start; a job that shares a GPU has a part of one."""

    job: Int64[np.ndarray, "S"]  # position in the job list
    server: Int64[np.ndarray, "S"]  # row in the inventory
    group: Int64[np.ndarray, "S"]  # of the server
    gpu: Int64[np.ndarray, "S"]  # of the group; which one is ours to say, GPUs of a group are alike
    start_s: Float64[np.ndarray, "S"]
    finish_s: Float64[np.ndarray, "S"]  # of a job that still runs: the end of the run


def spans_of(result: Outcome, cluster: Cluster) -> Spans:
    """The spans of a run. UserError unless its placements were recorded and no job was stopped."""
    if result.workers is None:
        raise UserError(f"timeline of {result.policy!r}: its placements were not recorded (record_placements)")
    if result.interruptions is not None and result.interruptions.stops.any():
        raise UserError(f"timeline of {result.policy!r}: jobs were stopped, of which only the last placement is known")
    end_s = max(result.stats.simulated_s, float(np.nanmax(result.finish_s, initial=0.0)))
    started = np.flatnonzero(result.partition >= 0)
    order = started[np.argsort(result.start_s[started], kind="stable")]
    groups_per_server = cluster.shape[2]
    server_id = np.asarray(cluster.server_id)
    free: dict[tuple[int, int], list[int]] = {}  # GPUs of a group that have been given back
    used: dict[tuple[int, int], int] = {}  # and how many have ever been taken
    busy: dict[tuple[int, int], list[tuple[float, int]]] = {}
    rows: list[tuple[int, int, int, int, float, float]] = []
    for job in order:
        start_s = float(result.start_s[job])
        finish_s = float(result.finish_s[job])
        finish_s = end_s if np.isnan(finish_s) else finish_s
        wide = int(result.jobs.gpus_per_worker[job])
        for place in np.flatnonzero(result.workers[job]):
            server = int(server_id[result.partition[job], place // groups_per_server])
            key = (server, int(place % groups_per_server))
            running, spare = busy.setdefault(key, []), free.setdefault(key, [])
            while running and running[0][0] <= start_s:
                heapq.heappush(spare, heapq.heappop(running)[1])
            for _ in range(int(result.workers[job][place]) * wide):
                gpu = heapq.heappop(spare) if spare else used.get(key, 0)
                used[key] = max(used.get(key, 0), gpu + 1)
                heapq.heappush(running, (finish_s, gpu))
                rows.append((int(job), *key, gpu, start_s, finish_s))
    columns = zip(*rows) if rows else [()] * 6
    kinds = (np.int64,) * 4 + (np.float64,) * 2
    return Spans(*(np.array(column, kind) for column, kind in zip(columns, kinds)))
