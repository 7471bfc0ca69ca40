"""Logs of clusters, as their owners publish them: Microsoft's, SenseTime's, Shanghai AI Lab's and Alibaba's.

- Philly, the job log (JSON), and the table that ElasticFlow made of it: msr-fiddle/philly-traces, README.md, 29a1b87f
  (`cluster_job_log`); pkusys/ElasticFlow, 04a0109a, pollux/pollux_simulator/traces/philly.csv. A job's run time is the
  sum of its attempts, as in ElasticFlow's table, and its GPUs are those of the last attempt: the list of machines and
  GPUs that the attempt had.
- Helios (SenseTime) and Acme (Shanghai AI Lab) have nearly the same columns: S-Lab-System-Group/HeliosData, README.md,
  106713b0; InternLM/AcmeTrace, README.md, 6d6ac9cd (Kalos has four columns more). Run times are end_time - start_time,
  as both pages define them; in Kalos the column `duration` counts waiting, too.
- Alibaba's openb pods of 2023: hkust-adsl/kubernetes-scheduler-simulator, 8f3d6417, data/csv/openb_pod_list_*.csv;
  alibaba/clusterdata, cluster-trace-gpu-v2023, README.md. Times are seconds. A pod of one GPU may ask for a share of
  it. `gpu_spec` names the types of GPUs that it may run on, as the list of nodes names them in `model`; G1, G2 and G3
  are such types, too. CPUs and memory are reserved; a pod of several GPUs is a gang of one for each, and each reserves
  its part.
- Alibaba PAI 2020, the table of tasks, which has no header: alibaba/clusterdata, cluster-trace-gpu-v2020, README.md,
  02a1be14, and data/pai_task_table.header. The tasks of a job (chief, worker, ps) make one gang, from the first start
  to the last end; tasks without GPUs are left out. Times are seconds. The other tables are not looked at: users and the
  times of submission stand in pai_job_table alone, so a job is submitted here when its first task started.
- Alibaba's spot GPUs of 2026, `job_info_df.csv`: alibaba/clusterdata, cluster-trace-v2026-spot-gpu, README.md,
  7deb28c8. `gpu_request` is per instance: a job has `gpu_request * worker_num` GPUs, for `duration` seconds, of the
  type `gpu_model` that it asked for. docs/howto/your-log.md says what load that makes.
"""

import datetime
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int64

from jaxsched.io.files import plain_number
from jaxsched.semantics import LONGEST_S, SHORTEST_S
from jaxsched.workload.jobs import WHOLE
from jaxsched.workload.readers.cells import Cells, Columns, Source
from jaxsched.workload.readers.native import shared


def _read_philly(cells: Cells) -> Columns:
    ended = cells.ends("status")
    gpus = cells.gpus("num_gpus")
    first = 1 if cells.found.unit == "row" else 2  # lines are counted with the header's
    return {
        "job_id": [str(line - first) for line in cells.piece.numbers],  # the row's place in the file
        "duration_s": cells.run_s("duration", ended),
        "submit_s": cells.moments("timestamp"),
        "workers": gpus,
        "tenant": cells.labels("cluster"),
        "ended": ended,
    }


def _read_philly_log(cells: Cells) -> Columns:
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


def _philly_rows(value: Any) -> Iterable[dict[str, str]] | None:
    if not isinstance(value, list) or not value or not all(isinstance(job, dict) for job in value):
        return None
    return map(_philly_row, value) if any({"attempts", "jobid"} <= set(job) for job in value) else None


def _philly_row(job: dict[str, Any]) -> dict[str, str]:
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
    _read_philly,
    uses=("status",),
    passes=("gpu_time",),
)
PHILLY_LOG = Source(
    "philly-log",
    "Microsoft Philly, cluster_job_log",
    (),
    _read_philly_log,
    uses=(
        *("jobid", "status", "vc", "user", "submitted_time"),
        *("attempts", "attempts.start_time", "attempts.end_time", "attempts.detail.gpus"),
    ),
    rows=_philly_rows,
    names="jobid",
    remark="run times are the sum of a job's attempts, GPUs those of its last attempt",
)


def _read_slab(cells: Cells, tenant: str) -> Columns:
    gpus = cells.gpus("gpu_num")
    ended = cells.ends("state")
    cells.leave_out(cells.absent("start_time"), "never started", "start_time", "a date and time")
    cells.leave_out(cells.absent("end_time"), "no end", "end_time", "a date and time")
    duration_s = cells.between(cells.moments("start_time"), cells.moments("end_time"), ended, "end_time")
    return {
        "job_id": cells.names("job_id"),
        "submit_s": cells.moments("submit_time"),
        "duration_s": duration_s,
        "workers": gpus,
        "tenant": cells.labels(tenant),
        "user": cells.labels("user"),
        "ended": ended,
    }


_SLAB_NEEDS = ("job_id", "gpu_num", "state", "submit_time", "start_time", "end_time")
HELIOS = Source(
    "helios",
    "SenseTime's Helios",
    (*_SLAB_NEEDS, "vc"),
    lambda cells: _read_slab(cells, "vc"),
    uses=("user",),
    passes=("cpu_num", "node_num", "duration", "queue"),
    marks=("vc",),
)
ACME = Source(
    "acme",
    "Shanghai AI Lab's Acme",
    (*_SLAB_NEEDS, "type"),
    lambda cells: _read_slab(cells, "type"),
    uses=("user",),
    passes=(
        *("node_num", "cpu_num", "duration", "queue", "gpu_time"),
        *("mem_per_pod_GB", "shared_mem_per_pod", "fail_time", "stop_time"),
    ),
    marks=("type",),
    remark="tenants are the types of work, such as Pretrain",
)


def _read_openb(cells: Cells) -> Columns:
    gpus = cells.gpus("num_gpu")
    milli = shared(cells, "gpu_milli", cells.whole("gpu_milli", minimum=1), gpus)
    unscheduled = cells.absent("scheduled_time")
    pending = cells.where("pod_phase", lambda phase: phase in ("Pending", ""))
    cells.leave_out(unscheduled & pending, "never scheduled", "scheduled_time", "a time")
    cells.leave_out(cells.absent("deletion_time"), "never deleted", "deletion_time", "a time")
    created = cells.number("creation_time", minimum=0, maximum=LONGEST_S)
    with cells.only(~unscheduled):
        scheduled = cells.number("scheduled_time", minimum=0, maximum=LONGEST_S)
    started = np.where(unscheduled, created, scheduled)
    took = cells.number("deletion_time", minimum=0, maximum=LONGEST_S) - started
    cells.leave_out(took <= 0, "no positive duration", "deletion_time", "after the start")
    return {
        "job_id": cells.names("name"),
        "submit_s": created,
        "duration_s": np.maximum(np.where(took > 0, took, 1.0), SHORTEST_S),
        "workers": gpus,
        "milli": milli,
        "cpu_milli": _of_each(cells, "cpu_milli", gpus),
        "memory_mib": _of_each(cells, "memory_mib", gpus),
        "allowed": cells.gpu_types("gpu_spec"),
        "ended": cells.ends("pod_phase", strictly=False),
    }


def _of_each(cells: Cells, field: str, gpus: Int64[np.ndarray, "N"]) -> Int64[np.ndarray, "N"]:
    """What a pod reserves, in equal parts for its GPUs, rounded up; nothing where the file does not say."""
    most = np.maximum(cells.given(field, minimum=0), 0)
    return -(-most // np.maximum(gpus, 1))


OPENB = Source(
    "openb",
    "Alibaba's pods of 2023",
    ("name", "num_gpu", "gpu_milli", "creation_time", "deletion_time", "scheduled_time"),
    _read_openb,
    uses=("pod_phase", "gpu_spec", "cpu_milli", "memory_mib"),
    passes=("qos",),
    names="name",
    remark="pods without GPUs are left out, and so is what they took of CPUs and memory",
)


PAI_HEADER = (
    *("job_name", "task_name", "inst_num", "status", "start_time", "end_time"),
    *("plan_cpu", "plan_mem", "plan_gpu", "gpu_type"),
)


def _read_pai(cells: Cells) -> Columns:
    cells.leave_out(cells.absent("plan_gpu") | cells.zero("plan_gpu"), "no GPU", "plan_gpu", "a number > 0")
    cells.leave_out(cells.absent("start_time"), "never started", "start_time", "a time")
    ended = cells.ends("status")
    cells.leave_out(cells.absent("end_time"), "no end", "end_time", "a time")
    percent = np.nan_to_num(cells.number("plan_gpu", minimum=0.1, maximum=1e6), nan=100.0)
    instances = cells.whole("inst_num", minimum=1)
    shares = (percent < 100) & (instances == 1)
    cells.note((percent % 100 != 0) & ~shares, "instances that share GPUs with others have whole ones here")
    start = cells.number("start_time", minimum=0, maximum=LONGEST_S)
    end = cells.number("end_time", minimum=0, maximum=LONGEST_S)
    workers = instances * np.ceil(percent / 100).astype(np.int64)
    cells.wrong(workers >= 2**31, "inst_num", "fewer GPUs")
    return {
        "job_id": cells.names("job_name"),
        "submit_s": start,
        "duration_s": cells.between(start, end, ended, "end_time"),
        "workers": np.clip(workers, 1, 2**31 - 1),
        "milli": np.where(shares, np.maximum(np.rint(percent * 10), 1), WHOLE).astype(np.int64),
        "ended": ended,
    }


def _joined_tasks(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Tasks of one job as one gang, in the order of their first ones."""
    _, first, job = np.unique(columns["job_id"], return_index=True, return_inverse=True)
    size = len(first)
    workers, milli = np.zeros(size, np.int64), np.full(size, WHOLE)
    start, end, ended = np.full(size, np.inf), np.full(size, -np.inf), np.zeros(size, np.int64)
    np.add.at(workers, job, columns["workers"])
    np.minimum.at(start, job, columns["submit_s"])
    np.maximum.at(end, job, columns["submit_s"] + columns["duration_s"])
    np.maximum.at(ended, job, columns["ended"])
    alone = workers == 1
    milli[alone] = columns["milli"][first[alone]]
    made = {"submit_s": start, "duration_s": end - start, "workers": workers, "milli": milli, "ended": ended}
    order = np.argsort(first)
    return {name: (made[name] if name in made else column[first])[order] for name, column in columns.items()}


def _fits_pai(cells: Sequence[str]) -> bool:
    """Whether cells are of a task: numbers where it has some, or nothing."""
    return all(not cells[i] or np.isfinite(plain_number(cells[i].strip())) for i in (2, 4, 5, 6, 7, 8)) and bool(
        cells[0] and cells[3].strip() in ("Terminated", "Failed", "Running", "Waiting", "Interrupted", "")
    )


PAI = Source(
    "pai",
    "Alibaba PAI 2020, pai_task_table",
    ("job_name", "inst_num", "status", "start_time", "end_time", "plan_gpu"),
    _read_pai,
    passes=("task_name", "plan_cpu", "plan_mem", "gpu_type"),
    marks=("plan_gpu",),
    bare=(PAI_HEADER,),
    fits=_fits_pai,
    joined=_joined_tasks,
    remark="the GPU tasks of a job are one gang; it is submitted when the first of them started",
)


def _read_spot(cells: Cells) -> Columns:
    cells.leave_out(cells.absent("gpu_request") | cells.zero("gpu_request"), "no GPU", "gpu_request", "a number > 0")
    each = np.nan_to_num(cells.number("gpu_request", minimum=0.001, maximum=2**31 - 1), nan=1.0)
    count = cells.whole("worker_num", minimum=1)
    shares = (each < 1) & (count == 1)
    cells.note((each % 1 != 0) & ~shares, "instances that share GPUs with others have whole ones here")
    gpus = count * np.ceil(each).astype(np.int64)
    cells.wrong(gpus >= 2**31, "worker_num", "fewer GPUs")
    return {
        "job_id": cells.names("job_name"),
        "submit_s": cells.number("submit_time", minimum=0, maximum=LONGEST_S),
        "duration_s": cells.run_s("duration", np.zeros(len(cells), np.int64)),
        "workers": np.clip(gpus, 1, 2**31 - 1),
        "milli": np.where(shares, np.rint(each * WHOLE), WHOLE).astype(np.int64),
        "tenant": cells.labels("organization"),
        "allowed": cells.gpu_types("gpu_model"),
    }


SPOT = Source(
    "spot",
    "Alibaba's spot GPUs of 2026",
    ("job_name", "organization", "gpu_request", "worker_num", "submit_time", "duration"),
    _read_spot,
    uses=("gpu_model",),
    passes=("cpu_request", "job_type"),
    marks=("job_type",),
    names="job_name",
    remark="CPUs have no end here, whatever a job asks for; spot jobs are treated as the others",
)
