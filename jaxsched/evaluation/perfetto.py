"""A run as a trace for Perfetto (ui.perfetto.dev): servers are processes, GPUs are tracks, attempts at jobs are slices.

An attempt that begins with a restart has that as a slice within. The format is the JSON of Chrome's trace events.
Counters go over all: jobs that wait, GPUs in use, and how much of its capacity is asked for of every link between
racks.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from jaxsched.cluster.hardware import Cluster
from jaxsched.env.state import EnvParams
from jaxsched.evaluation.replay import footprints_of
from jaxsched.evaluation.timelines import Steps, link_steps, spans_of, steps
from jaxsched.io.files import write_text
from jaxsched.simulation.attempts import ENDED
from jaxsched.simulation.outcome import NOT_ARRIVED, REJECTED, Outcome

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
