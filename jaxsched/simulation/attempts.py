"""Every attempt at a job: from a start until it is done, stopped, or its server fails (docs/semantics.md, section 10).

Where jobs are neither stopped nor fail, a job has one attempt, and nothing is kept for it.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int8, Int16, Int32, Int64, Shaped

DONE, STOPPED, FAILED, RUNNING = range(4)
ENDED = ("done", "stopped", "server failed", "still running")  # by these codes

Log = Mapping[str, Any]  # columns of starts, NumPy, in order of time: see `env.extensions.starts.Starts`


@dataclasses.dataclass(frozen=True)
class Attempts:
    """One entry per attempt, in order of start; `NK` GPU groups of the partition on one axis."""

    job: Int64[np.ndarray, "A"]  # position in the job list
    partition: Int64[np.ndarray, "A"]
    start_s: Float64[np.ndarray, "A"]
    end_s: Float64[np.ndarray, "A"]  # of one that goes on: the end of the run
    restart_s: Float64[np.ndarray, "A"]  # from its start on spent on a restart
    ended: Int8[np.ndarray, "A"]  # index into ENDED
    workers: Int8[np.ndarray, "A NK"]
    ps: Int16[np.ndarray, "A NK"] | None  # None: where `place_ps` puts them
    gpu: Int32[np.ndarray, "A"] | None  # shared GPU of the partition; -1: whole ones; None: nobody shares


def attempts_of_log(
    log: Log,
    now: Any,
    finish_s: Float64[np.ndarray, "J"],
    end_s: float,
    interval_s: float,
    restart_s: float,
) -> Attempts:
    """The attempts of a run from the log of its starts.

    An attempt that is followed by another lasted as long as the job has held GPUs in between, and what grew in between,
    stops or failures, ended it.

    Args:
        now: a table with what the log has in its columns `ran`, `stops` and `failure_restarts`, at the end, per job.
        finish_s: NaN of jobs that have not finished.
        end_s: of the run.
        restart_s: what a start costs from the second on.
    """
    job = np.asarray(log["job"], np.int64)
    order = np.argsort(job, kind="stable")
    follows = np.append(job[order][1:] == job[order][:-1], False)
    following = np.append(order[1:], -1)

    def after(name: str) -> Int64[np.ndarray, "A"]:
        """The value at the job's next start, or at the end of the run."""
        column, found = np.asarray(log[name], np.int64), np.empty(len(job), np.int64)
        found[order] = np.where(follows, column[following], np.asarray(now[name], np.int64)[job[order]])
        return found

    before = {name: np.asarray(log[name], np.int64) for name in ("ran", "stops", "failure_restarts")}
    start_s = np.asarray(log["boundary"], np.float64) * interval_s
    stopped, failed = (after(name) > before[name] for name in ("stops", "failure_restarts"))
    done = ~stopped & ~failed & ~np.isnan(finish_s[job])
    held_s = (after("ran") - before["ran"]) * interval_s
    last_s = np.where(done, finish_s[job], np.where(stopped | failed, start_s + held_s, end_s))
    again = before["stops"] + before["failure_restarts"] > 0
    return Attempts(
        job=job,
        partition=np.asarray(log["partition"], np.int64),
        start_s=start_s,
        end_s=last_s,
        restart_s=np.where(again, np.minimum(restart_s, last_s - start_s), 0.0),
        ended=np.select([stopped, failed, done], [STOPPED, FAILED, DONE], RUNNING).astype(np.int8),
        workers=log["workers"],
        ps=log.get("ps"),
        gpu=log.get("gpu"),
    )


def single_attempts(
    started: Bool[np.ndarray, "J"],
    start_s: Float64[np.ndarray, "J"],
    finish_s: Float64[np.ndarray, "J"],
    end_s: float,
    columns: Mapping[str, Shaped[np.ndarray, "J ..."] | None],
) -> Attempts:
    """Where every job starts at most once; `columns` are `partition`, `workers`, `ps` and `gpu`, per job."""
    job = np.flatnonzero(started)
    job = job[np.argsort(start_s[job], kind="stable")]
    done = ~np.isnan(finish_s[job])
    own = {name: None if column is None else column[job] for name, column in columns.items()}
    return Attempts(
        job=job,
        start_s=start_s[job],
        end_s=np.where(done, finish_s[job], end_s),
        restart_s=np.zeros(len(job)),
        ended=np.where(done, DONE, RUNNING).astype(np.int8),
        **{**own, "partition": np.asarray(own["partition"], np.int64)},
    )
