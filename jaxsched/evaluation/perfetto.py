"""A run as a trace for Perfetto (ui.perfetto.dev): servers are processes, GPUs are tracks, jobs are slices.

The format is the JSON of Chrome's trace events. Counters go over all: jobs that wait, GPUs in use, and how much of its
capacity is asked for of every link between racks.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from jaxsched.cluster.hardware import Cluster
from jaxsched.env.state import EnvParams
from jaxsched.evaluation.links import link_steps
from jaxsched.evaluation.replay import footprints_of
from jaxsched.evaluation.spans import spans_of
from jaxsched.evaluation.usage import steps
from jaxsched.files import write_text
from jaxsched.simulation.outcome import REJECTED, Outcome

_US = 1e6  # Perfetto counts microseconds
QUEUE = 0  # the process of the counters; server i is process i + 1


def trace_of(result: Outcome, cluster: Cluster, params: EnvParams) -> dict[str, Any]:
    """The trace as plain values; `params` are those of the run. UserError: see `spans_of`."""
    spans, jobs = spans_of(result, cluster), result.jobs
    events: list[dict[str, Any]] = [_name("process_name", QUEUE, 0, "the whole cluster")]
    most = int(np.asarray(cluster.group_gpus).max())
    tracks = sorted({(int(s), int(g), int(u)) for s, g, u in zip(spans.server, spans.group, spans.gpu)})
    for server in dict.fromkeys(server for server, _, _ in tracks):
        events.append(_name("process_name", server + 1, 0, f"server {server}"))
    for server, group, gpu in tracks:
        events.append(_name("thread_name", server + 1, group * most + gpu, f"group {group}, GPU {gpu}"))
    for i, job in enumerate(spans.job):
        events.append(
            {
                "name": str(jobs.job_id[job]),
                "cat": result.models[jobs.model[job]],
                "ph": "X",
                "pid": int(spans.server[i]) + 1,
                "tid": int(spans.group[i]) * most + int(spans.gpu[i]),
                "ts": spans.start_s[i] * _US,
                "dur": (spans.finish_s[i] - spans.start_s[i]) * _US,
                "args": {
                    "model": result.models[jobs.model[job]],
                    "GPUs": float(jobs.gpu_demand[job]),
                    "waited_s": float(result.queue_s[job]),
                    "ideal_s": float(jobs.duration_s[job]),
                },
            }
        )
    known = result.status != REJECTED
    waits = steps((jobs.submit_s[known], result.start_s[known], np.ones(int(known.sum()))))
    uses = steps((spans.start_s, spans.finish_s, np.ones(len(spans.job))))
    end_s = float(spans.finish_s.max(initial=0.0))
    links = link_steps(result, cluster, footprints_of(result, cluster, params), end_s)
    counters = [("jobs that wait", "count", waits), ("GPUs in use", "count", uses)]
    counters += [(name, "share of its capacity", use) for name, use in links.items()]
    for name, unit, found in counters:
        events += [
            {"name": name, "ph": "C", "pid": QUEUE, "tid": 0, "ts": time_s * _US, "args": {unit: height}}
            for time_s, height in zip(found.at_s.tolist(), found.height.tolist())
        ]
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"policy": result.policy}}


def write_trace(path: str | Path, result: Outcome, cluster: Cluster, params: EnvParams) -> None:
    """`trace_of` as a file."""
    write_text(path, json.dumps(trace_of(result, cluster, params), separators=(",", ":"), allow_nan=False) + "\n")


def _name(kind: str, process: int, track: int, text: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": track, "args": {"name": text}}
