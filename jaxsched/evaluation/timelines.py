"""What was held over time: numbers that change, who held which GPU and when, how full the links between racks were.

`write_trace` writes it for Perfetto (ui.perfetto.dev), as JSON of Chrome's trace events: servers are processes, GPUs
are tracks, attempts at jobs are slices. An attempt that begins with a restart has that as a slice within. Counters go
over all: jobs that wait, GPUs in use, and how much of its capacity is asked for of every link between racks.
"""

import dataclasses
import heapq
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Float64, Int64

from jaxsched.cluster.hardware import Cluster
from jaxsched.dynamics.resources import layout_of
from jaxsched.env.state import EnvParams
from jaxsched.evaluation.replay import Footprints, footprints_of
from jaxsched.io.files import write_text
from jaxsched.simulation.outcome import ENDED, NOT_ARRIVED, REJECTED, Attempts, Outcome


@dataclasses.dataclass(frozen=True)
class Steps:
    """A number that changes at certain times: `height[i]` from `at_s[i]` on, 0 before."""

    at_s: Float64[np.ndarray, "N"]  # ascending
    height: Float64[np.ndarray, "N"]

    def integral(self, until_s: Float64[np.ndarray, "M"]) -> Float64[np.ndarray, "M"]:
        """The integral from the beginning up to each of these times."""
        before = np.concatenate([[0.0], np.cumsum(self.height[:-1] * np.diff(self.at_s))])
        i = np.maximum(np.searchsorted(self.at_s, until_s, side="right") - 1, 0)
        return before[i] + self.height[i] * np.maximum(until_s - self.at_s[i], 0.0)

    def mean(self, from_s: float, to_s: float) -> float:
        """The mean height between two times in seconds, the second the later."""
        return float(np.diff(self.integral(np.array([from_s, to_s])))[0] / (to_s - from_s))

    def highest(self, from_s: float, to_s: float) -> float:
        """The greatest height between two times in seconds, both included."""
        first = max(int(np.searchsorted(self.at_s, from_s, side="right")) - 1, 0)
        return float(self.height[first : max(int(np.searchsorted(self.at_s, to_s, side="right")), first + 1)].max())


def steps(*parts: tuple[Float64[np.ndarray, "J"], Float64[np.ndarray, "J"], Float64[np.ndarray, "J"]]) -> Steps:
    """The sum of pieces (from, to, height), times in seconds; what is NaN never happens."""
    times = np.concatenate([np.concatenate([begin, end]) for begin, end, _ in parts])
    jumps = np.concatenate([np.concatenate([height, -height]) for _, _, height in parts])
    happens = ~np.isnan(times)
    at_s, place = np.unique(times[happens], return_inverse=True)
    return Steps(at_s, np.cumsum(np.bincount(place, jumps[happens])))


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


@dataclasses.dataclass(frozen=True)
class LinkUse:
    """The links that were used at all, the busiest first."""

    names: list[str]
    use: Float[np.ndarray, "L T"]  # mean share of its capacity that jobs ask for, in T equal parts of the run


def link_steps(attempts: Attempts, cluster: Cluster, prints: Footprints) -> dict[str, Steps]:
    """The use of every link that was used, by its name: the share of its capacity that jobs ask for.

    That is what they would send alone: it may exceed 1. `prints` are the `footprints_of` the run.
    """
    first = cluster.shape[0] * layout_of(cluster).link.start
    pieces: dict[int, list[tuple[float, float, float]]] = {}
    for start_s, end_s, (resources, amounts) in zip(attempts.start_s, attempts.end_s, prints.used):
        for resource, amount in zip((resources - first).tolist(), amounts.tolist()):
            if resource >= 0:
                pieces.setdefault(resource, []).append((start_s, end_s, amount))
    names = link_names(cluster)
    return {names[link]: steps(tuple(np.array(rows).T)) for link, rows in sorted(pieces.items())}


def link_use(attempts: Attempts, cluster: Cluster, prints: Footprints, parts: int, end_s: float) -> LinkUse:
    """`link_steps` from time 0 to `end_s`, in so many equal parts."""
    edges = np.linspace(0.0, end_s, parts + 1)
    used = link_steps(attempts, cluster, prints)
    found = {name: np.diff(use.integral(edges)) / (end_s / parts) for name, use in used.items()}
    names = sorted(found, key=lambda name: -found[name].sum())
    return LinkUse(names, np.array([found[name] for name in names]).reshape(-1, parts))


def link_names(cluster: Cluster) -> list[str]:
    """What to call each link, by the routes that use it; the last name is of the dummy."""
    racks, links, route = (
        np.asarray(leaf) for leaf in jax.device_get((cluster.rack_id, cluster.link_id, cluster.route))
    )
    sources: dict[int, set[int]] = {}
    targets: dict[int, set[int]] = {}
    for p, t, u, e in np.argwhere(route > 0).tolist():
        sources.setdefault(int(links[p, e]), set()).add(int(racks[p, t]))
        targets.setdefault(int(links[p, e]), set()).add(int(racks[p, u]))

    def name(link: int) -> str:
        out, into = sources.get(link, set()), targets.get(link, set())
        if len(out) == 1 and len(into) != 1:
            return f"link {link}, out of rack {min(out)}"
        if len(into) == 1 and len(out) != 1:
            return f"link {link}, into rack {min(into)}"
        if len(out) == len(into) == 1:
            return f"link {link}, rack {min(out)} to {min(into)}"
        return f"link {link}"

    return [name(link) for link in range(cluster.link_bytes_s.shape[0])]


_US = 1e6  # Perfetto counts microseconds
QUEUE = 0  # the process of the counters; server i is process i + 1


def trace_of(result: Outcome, cluster: Cluster, params: EnvParams) -> dict[str, Any]:
    """The trace as plain values; `params` are those of the run. UserError: see `spans_of`."""
    spans, attempts, jobs = spans_of(result, cluster), result.attempts, result.jobs
    turn = _turns(attempts.job)
    events: list[dict[str, Any]] = [_name("process_name", QUEUE, 0, "the whole cluster")]
    most = int(np.asarray(cluster.group_gpus).max())
    tracks = sorted({(int(s), int(g), int(u)) for s, g, u in zip(spans.server, spans.group, spans.gpu)})
    for server in dict.fromkeys(server for server, _, _ in tracks):
        events.append(_name("process_name", server + 1, 0, f"server {server}"))
    for server, group, gpu in tracks:
        events.append(_name("thread_name", server + 1, group * most + gpu, f"group {group}, GPU {gpu}"))
    waited_s = np.where(np.isnan(result.queue_s), result.start_s - jobs.submit_s, result.queue_s)
    for i, (job, attempt) in enumerate(zip(spans.job, spans.attempt)):
        track = int(spans.server[i]) + 1, int(spans.group[i]) * most + int(spans.gpu[i])
        about = {
            "model": result.models[jobs.model[job]],
            "GPUs": float(jobs.gpu_demand[job]),
            "waited_s": float(waited_s[job]),
            "ideal_s": float(jobs.duration_s[job]),
            "attempt": int(turn[attempt]),
            "ended": ENDED[attempts.ended[attempt]],
        }
        name, kind = str(jobs.job_id[job]), result.models[jobs.model[job]]
        events.append(_slice(name, kind, track, spans.start_s[i], spans.end_s[i], about))
        restart_s = float(attempts.restart_s[attempt])
        if restart_s > 0:
            events.append(_slice("restart", "restart", track, spans.start_s[i], spans.start_s[i] + restart_s, {}))
    links = link_steps(attempts, cluster, footprints_of(attempts, jobs, cluster, params))
    waits, uses = _waiting(result), steps((spans.start_s, spans.end_s, np.ones(len(spans.job))))
    counters = [("jobs that wait", "count", waits), ("GPUs in use", "count", uses)]
    counters += [(name, "share of its capacity", use) for name, use in links.items()]
    for name, unit, found in counters:
        events += [
            {"name": name, "ph": "C", "pid": QUEUE, "tid": 0, "ts": time_s * _US, "args": {unit: height}}
            for time_s, height in zip(found.at_s.tolist(), found.height.tolist())
        ]
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"policy": result.policy}}


def _turns(job: Int64[np.ndarray, "A"]) -> Int64[np.ndarray, "A"]:
    """The number of each attempt at its job, from 1 on."""
    seen: dict[int, int] = {}
    found = np.empty(len(job), np.int64)
    for i, one in enumerate(job.tolist()):
        found[i] = seen[one] = seen.get(one, 0) + 1
    return found


def _waiting(result: Outcome) -> Steps:
    """How many jobs wait: those that are there, less those that hold GPUs."""
    attempts, known = result.attempts, (result.status != REJECTED) & (result.status != NOT_ARRIVED)
    finish_s = np.where(result.finished, result.finish_s, result.end_s)
    from_s = np.concatenate([result.jobs.submit_s[known], attempts.start_s])
    to_s = np.concatenate([finish_s[known], attempts.end_s])
    return steps((from_s, to_s, np.repeat([1.0, -1.0], [int(known.sum()), len(attempts.job)])))


def write_trace(path: str | Path, result: Outcome, cluster: Cluster, params: EnvParams) -> None:
    """`trace_of` as a file."""
    write_text(path, json.dumps(trace_of(result, cluster, params), separators=(",", ":"), allow_nan=False) + "\n")


def _slice(
    name: str, kind: str, track: tuple[int, int], from_s: float, to_s: float, about: dict[str, Any]
) -> dict[str, Any]:
    where = {"pid": track[0], "tid": track[1], "ts": from_s * _US, "dur": (to_s - from_s) * _US}
    return {"name": name, "cat": kind, "ph": "X", **where, "args": about}


def _name(kind: str, process: int, track: int, text: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": track, "args": {"name": text}}
