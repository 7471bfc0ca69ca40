"""Microsoft's Philly: the job log as published (JSON), and the table that ElasticFlow made of it.

Schemas: msr-fiddle/philly-traces, README.md, 29a1b87f (`cluster_job_log`); pkusys/ElasticFlow, 04a0109a,
pollux/pollux_simulator/traces/philly.csv. A job's run time is the sum of its attempts, as in ElasticFlow's table, and
its GPUs are those of the last attempt: the list of machines and GPUs that the attempt had.
"""

import datetime
from collections.abc import Iterable
from typing import Any

from jaxsched.workload.readers.cells import Cells
from jaxsched.workload.readers.source import Columns, Source


def _read_table(cells: Cells) -> Columns:
    ended = cells.ends("status")
    gpus = cells.gpus("num_gpus")
    return {
        "job_id": [str(line - 2) for line in cells.piece.numbers],  # the row's place in the file
        "duration_s": cells.run_s("duration", ended),
        "submit_s": cells.moments("timestamp"),
        "workers": gpus,
        "tenant": cells.labels("cluster"),
        "ended": ended,
    }


def _read_log(cells: Cells) -> Columns:
    cells.wrong(cells.zero("attempts"), "attempts", "a list of attempts, each with start_time, end_time and detail")
    cells.leave_out(cells.absent("attempts"), "never started", "attempts", "attempts with a start_time")
    cells.leave_out(cells.absent("attempts.end_time"), "no end", "attempts.end_time", "a date and time")
    ended = cells.ends("status")
    cells.leave_out(cells.zero("attempts.detail.gpus"), "no GPU", "attempts.detail.gpus", "a list of GPUs")
    return {
        "job_id": cells.names("jobid"),
        "submit_s": cells.moments("submitted_time"),
        "duration_s": cells.run_s("attempts.start_time", ended),
        "workers": cells.whole("attempts.detail.gpus", minimum=1),
        "tenant": cells.labels("vc"),
        "user": cells.labels("user"),
        "ended": ended,
    }


def _rows(value: Any) -> Iterable[dict[str, str]] | None:
    if not isinstance(value, list) or not value or not all(isinstance(job, dict) for job in value):
        return None
    return map(_row, value) if any({"attempts", "jobid"} <= set(job) for job in value) else None


def _row(job: dict[str, Any]) -> dict[str, str]:
    """Cells of one job: `attempts` is their number, `start_time` their seconds, `gpus` how many the last one had."""
    row = {key: "" if value is None else str(value) for key, value in job.items() if key != "attempts"}
    attempts = job.get("attempts")
    if not isinstance(attempts, list) or not all(isinstance(attempt, dict) for attempt in attempts):
        return row | {"attempts": "0"}
    started = [attempt for attempt in attempts if attempt.get("start_time") is not None]
    row |= {f"attempts.{key}": "" for attempt in attempts for key in attempt if key not in ("start_time", "detail")}
    if not started:
        return row | {"attempts": ""}
    last, seconds = started[-1], [_took_s(attempt) for attempt in started]
    machines = last.get("detail") if isinstance(last.get("detail"), list) else []
    gpus = [machine.get("gpus") if isinstance(machine, dict) else None for machine in machines]
    row |= {f"attempts.detail.{key}": "" for one in machines if isinstance(one, dict) for key in one if key != "gpus"}
    known = [took for took in seconds if took is not None]
    return row | {
        "attempts": str(len(started)),
        "attempts.end_time": "" if last.get("end_time") is None else str(last["end_time"]),
        "attempts.start_time": str(sum(known)) if len(known) == len(seconds) else "an attempt without a time",
        "attempts.detail.gpus": str(sum(len(some) for some in gpus if isinstance(some, list))),
    }


def _took_s(attempt: dict[str, Any]) -> float | None:
    """Seconds of an attempt; 0 of one whose end was not recorded; None if its times are none."""
    start, end = attempt["start_time"], attempt.get("end_time")
    try:
        began = datetime.datetime.strptime(start, "%Y-%m-%d %H:%M:%S")
        took = 0.0 if end is None else (datetime.datetime.strptime(end, "%Y-%m-%d %H:%M:%S") - began).total_seconds()
    except (TypeError, ValueError):
        return None
    return took if took >= 0 else None


PHILLY = Source(
    "philly",
    "Microsoft Philly as ElasticFlow publishes it",
    ("timestamp", "duration", "num_gpus", "cluster"),
    _read_table,
    uses=("status",),
    passes=("gpu_time",),
)
PHILLY_LOG = Source(
    "philly-log",
    "Microsoft Philly, cluster_job_log",
    (),
    _read_log,
    uses=(
        *("jobid", "status", "vc", "user", "submitted_time"),
        *("attempts", "attempts.start_time", "attempts.end_time", "attempts.detail.gpus"),
    ),
    rows=_rows,
    names="jobid",
    remark="run times are the sum of a job's attempts, GPUs those of its last attempt",
)
