"""Alibaba's spot GPUs of 2026, `job_info_df.csv`.

Schema: alibaba/clusterdata, cluster-trace-v2026-spot-gpu, README.md, 7deb28c8. `gpu_request` is per instance: a job
has `gpu_request * worker_num` GPUs, for `duration` seconds, of the type `gpu_model` that it asked for.
docs/howto/your-log.md says what load that makes.
"""

import numpy as np

from jaxsched.semantics import LONGEST_S
from jaxsched.workload.jobs import WHOLE
from jaxsched.workload.readers.cells import Cells
from jaxsched.workload.readers.source import Columns, Source


def _read(cells: Cells) -> Columns:
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
    _read,
    uses=("gpu_model",),
    passes=("cpu_request", "job_type"),
    marks=("job_type",),
    names="job_name",
    remark="CPUs have no end here, whatever a job asks for; spot jobs are treated as the others",
)
