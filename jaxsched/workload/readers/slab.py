"""Helios (SenseTime) and Acme (Shanghai AI Lab), whose logs have nearly the same columns.

Schemas: S-Lab-System-Group/HeliosData, README.md, 106713b0; InternLM/AcmeTrace, README.md, 6d6ac9cd (Kalos has four
columns more). Run times are end_time - start_time, as both pages define them; in Kalos the column `duration` counts
waiting, too.
"""

from jaxsched.workload.readers.cells import Cells
from jaxsched.workload.readers.source import Columns, Source


def _read(cells: Cells, tenant: str) -> Columns:
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


_NEEDS = ("job_id", "gpu_num", "state", "submit_time", "start_time", "end_time")
HELIOS = Source(
    "helios",
    "SenseTime's Helios",
    (*_NEEDS, "vc"),
    lambda cells: _read(cells, "vc"),
    uses=("user",),
    passes=("cpu_num", "node_num", "duration", "queue"),
    marks=("vc",),
)
ACME = Source(
    "acme",
    "Shanghai AI Lab's Acme",
    (*_NEEDS, "type"),
    lambda cells: _read(cells, "type"),
    uses=("user",),
    passes=(
        *("node_num", "cpu_num", "duration", "queue", "gpu_time"),
        *("mem_per_pod_GB", "shared_mem_per_pod", "fail_time", "stop_time"),
    ),
    marks=("type",),
    remark="tenants are the types of work, such as Pretrain",
)
