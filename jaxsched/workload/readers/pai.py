"""Alibaba PAI 2020: the table of tasks, which has no header.

Schema: alibaba/clusterdata, cluster-trace-gpu-v2020, README.md, 02a1be14, and data/pai_task_table.header. The tasks of
a job (chief, worker, ps) make one gang, from the first start to the last end; tasks without GPUs are left out. Times
are seconds. The other tables are not looked at: users and the times of submission stand in pai_job_table alone, so a
job is submitted here when its first task started.
"""

from collections.abc import Sequence

import numpy as np

from jaxsched.io.files import plain_number
from jaxsched.semantics import LONGEST_S
from jaxsched.workload.jobs import WHOLE
from jaxsched.workload.readers.cells import Cells
from jaxsched.workload.readers.source import Columns, Source

HEADER = (
    *("job_name", "task_name", "inst_num", "status", "start_time", "end_time"),
    *("plan_cpu", "plan_mem", "plan_gpu", "gpu_type"),
)


def _read(cells: Cells) -> Columns:
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


def _joined(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
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


def _fits(cells: Sequence[str]) -> bool:
    """Whether cells are of a task: numbers where it has some, or nothing."""
    return all(not cells[i] or np.isfinite(plain_number(cells[i].strip())) for i in (2, 4, 5, 6, 7, 8)) and bool(
        cells[0] and cells[3].strip() in ("Terminated", "Failed", "Running", "Waiting", "Interrupted", "")
    )


PAI = Source(
    "pai",
    "Alibaba PAI 2020, pai_task_table",
    ("job_name", "inst_num", "status", "start_time", "end_time", "plan_gpu"),
    _read,
    passes=("task_name", "plan_cpu", "plan_mem", "gpu_type"),
    marks=("plan_gpu",),
    bare=(HEADER,),
    fits=_fits,
    joined=_joined,
    remark="the GPU tasks of a job are one gang; it is submitted when the first of them started",
)
