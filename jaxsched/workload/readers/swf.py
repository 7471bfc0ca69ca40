"""The Standard Workload Format of the Parallel Workloads Archive, version 2.2: 18 numbers a line, -1 is "not known".

Schema: cs.huji.ac.il/labs/parallel/workload/swf.html. Processors count as GPUs: as many as were allocated, else as were
requested. The requested time is the estimate, the group the tenant.
"""

import math
from collections.abc import Sequence

import numpy as np

from jaxsched.io.files import plain_number
from jaxsched.semantics import LONGEST_S
from jaxsched.workload.readers.cells import CANCELLED, COMPLETED, FAILED, Cells, estimates
from jaxsched.workload.readers.source import Columns, Source

HEADER = (
    *("job_number", "submit_time", "wait_time", "run_time", "allocated_processors", "average_cpu_time", "used_memory"),
    *("requested_processors", "requested_time", "requested_memory", "status", "user", "group", "executable", "queue"),
    *("partition", "preceding_job", "think_time"),
)
_STATUS = {0: FAILED, 1: COMPLETED, 5: CANCELLED}  # -1: not known


def _read(cells: Cells) -> Columns:
    status = cells.whole("status", minimum=-1)
    cells.leave_out(np.isin(status, (2, 3, 4)), "a part of another job", "status", "0, 1, 5 or -1")
    ended = np.array([_STATUS.get(int(code), COMPLETED) for code in status], np.int64)
    allocated = cells.whole("allocated_processors", minimum=-1)
    requested = cells.whole("requested_processors", minimum=-1)
    gpus = np.where(allocated > 0, allocated, requested)
    cells.leave_out(gpus <= 0, "no processors", "allocated_processors", "a whole number >= 1")
    unknown = cells.where("run_time", lambda cell: plain_number(cell) < 0)
    cells.leave_out(unknown, "no run time", "run_time", "a number > 0")
    asked = cells.number("requested_time", minimum=-1, maximum=LONGEST_S)
    return {
        "job_id": cells.names("job_number"),
        "submit_s": cells.number("submit_time", minimum=0, maximum=LONGEST_S),
        "duration_s": cells.run_s("run_time", ended),
        "workers": np.maximum(gpus, 1),
        "tenant": _known(cells.labels("group")),
        "user": _known(cells.labels("user")),
        "ended": ended,
        "estimate_s": estimates(asked),
    }


def _known(column: Sequence[str]) -> list[str]:
    return ["" if cell == "-1" else cell for cell in column]


def _fits(cells: Sequence[str]) -> bool:
    return sum(math.isfinite(plain_number(cell)) for cell in cells) > len(cells) // 2


SWF = Source(
    "swf",
    "the Standard Workload Format",
    (),
    _read,
    uses=(
        *("job_number", "submit_time", "run_time", "allocated_processors", "requested_processors", "requested_time"),
        *("status", "user", "group"),
    ),
    bare=(HEADER,),
    separator=" ",
    comment=";",
    fits=_fits,
    from_start=False,
    names="job_number",
    remark="processors count as GPUs",
)
